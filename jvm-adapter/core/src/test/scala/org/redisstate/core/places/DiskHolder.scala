package org.redisstate.core.places

import java.nio.file.{Files, Path}

/** A process that holds a folder with a copy in it, and then waits to be killed. */
private[places] object DiskHolder {
  def main(args: Array[String]): Unit = {
    val folder = DiskFolder.open(Path.of(args.head))
    Files.write(folder.newFile(), Array[Byte](1, 2, 3))
    println(folder.path)
    Thread.sleep(60000)
  }
}
