package org.apache.spark.sql.redisstate

import java.io.File
import java.nio.file.Files

import org.json4s.JsonAST.JValue
import org.json4s.jackson.JsonMethods

/** The files of tests/vectors, which every implementation reads. */
private[redisstate] object SharedVectors {
  def read(name: String): JValue = {
    val file = Iterator
      .iterate(new File(".").getCanonicalFile)(_.getParentFile)
      .takeWhile(_ != null)
      .map(new File(_, s"tests/vectors/$name.json"))
      .find(_.isFile)
      .getOrElse(throw new IllegalStateException("tests/vectors is not above the working folder"))
    JsonMethods.parse(Files.readString(file.toPath))
  }
}
