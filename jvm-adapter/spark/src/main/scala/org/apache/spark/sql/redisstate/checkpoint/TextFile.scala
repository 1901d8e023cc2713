package org.apache.spark.sql.redisstate.checkpoint

import java.io.FileNotFoundException
import java.nio.charset.StandardCharsets.UTF_8

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

/** Small text files of a checkpoint. */
private[redisstate] object TextFile {

  /** Returns the text of a file, or None if the file does not exist. */
  def read(file: Path, hadoopConf: Configuration): Option[String] =
    try {
      val in = file.getFileSystem(hadoopConf).open(file)
      try Some(new String(in.readAllBytes(), UTF_8))
      finally in.close()
    } catch { case _: FileNotFoundException => None }
}
