package org.apache.spark.sql.redisstate

/** Tests of Spark's that say nothing about our provider, or ask for another's nature, each with its reason. Everything else runs. */
private[redisstate] object NotRun {

  /** How the name of a suite of Spark's begins, what a test's name holds, and the reason. */
  private val Tests: Seq[(String, String, String)] = Seq(
    (
      "Streaming",
      "(with changelog checkpointing = false)",
      "RocksDB's change log is an option of RocksDB: the tests run once, not with and without it")
  )

  /** @param suite ours; it is named after Spark's with `OnRedis` behind it */
  def reason(suite: Class[_], test: String): Option[String] =
    Tests.collectFirst {
      case (of, part, why) if suite.getSimpleName.startsWith(of) && test.contains(part) => why
    }
}
