package org.apache.spark.sql.redisstate.copies

import scala.util.Using

import org.redisstate.core.RedisServerProcess

/**
 * Prints what copies of a partition cost: bytes that each one writes, and bytes of its whole state.
 *
 * Arguments: rows, rows of a batch, batches between two copies, copies.
 */
object CopyTimings {
  def main(arguments: Array[String]): Unit = {
    val numbers = arguments.map(_.toInt)
    val (rows, changed, every, copies) = (numbers(0), numbers(1), numbers(2), numbers(3))
    Using.resource(new RedisServerProcess) { server =>
      val query = new SharedCopiesSuite.Query(server)
      query.put(rows, rows)
      query.commit(1)
      query.snapshot()
      var written, whole = 0L
      (1 to copies).foreach { number =>
        (1 to every).foreach(_ => query.put(changed, rows))
        query.snapshot()
        val before = query.files.values.sum
        val began = System.nanoTime()
        query.copier.copy(query.opened)
        val ms = (System.nanoTime() - began) / 1000000L
        val newest = query.manifests.maxBy(_.version)
        val copy = query.files.values.sum - before
        val state = newest.segments.valuesIterator.map(_.bytes).sum
        if (number > 1) {
          written += copy
          whole += state
        }
        println(s"copy $number: $copy bytes written, $state bytes of state, $ms ms")
      }
      println(f"without the first: ${100.0 * written / whole}%.1f %% of the state")
    }
  }
}
