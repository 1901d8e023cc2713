package org.redisstate.core.store

import scala.util.Using

import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.errors.FencedException
import org.redisstate.core.protocol.{CheckpointFormat, CommitLog}

/** A start that is asked to look at Spark's log, while another one goes back and comes as far again. */
class SecondLookSuite extends AnyFunSuite {
  import TestPartition._

  for (format <- Seq(CheckpointFormat.V1, CheckpointFormat.V2))
    test(s"what was logged after a look is not dropped: format ${format.number}") {
      Using(new RedisServerProcess()) { server =>
        val partition = new TestPartition(server)
        def write(store: PartitionVersions, version: Long, value: String): Unit = {
          val session = store.open(version).write()
          try {
            put(session, key(0, "k"), value)
            session.commit()
            ()
          } finally session.abort()
        }
        try {
          val first = partition.store("first", format = format)
          write(first, 0, "old")
          write(first, 1, "older")
          // Registered in this order, so both may take what the first run holds.
          Seq("back", "late").foreach(partition.registry.register(_, byDriver = true, 0, Map.empty))
          val back = partition.store("back", format = format)
          var looks = 0
          val log: CommitLog = _ => {
            looks += 1
            // Rewound to nothing: the log is empty when it is read, and the other start is faster.
            if (looks == 1) {
              write(back, 0, "new")
              write(back, 1, "newer")
            }
            looks > 1
          }
          val late = partition.store("late", format = format, log = Some(log))
          intercept[FencedException](write(late, 0, "late"))
          assert(looks == 2)
          val newest = rows(partition.store("back", format = format).open(2).iterator(0))
          assert(newest.map(_._2) == Seq("6e65776572"))
        } finally partition.close()
      }.get
    }
}
