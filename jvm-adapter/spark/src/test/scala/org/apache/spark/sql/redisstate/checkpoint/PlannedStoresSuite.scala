package org.apache.spark.sql.redisstate.checkpoint

import java.nio.file.{Files, Path}

import org.apache.hadoop.conf.Configuration
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.execution.streaming.state.StateStoreId

import org.redisstate.core.copy.CopiedStore

/** The number of partitions among which `redisMemory` is divided. */
class PlannedStoresSuite extends AnyFunSuite {

  private def metadata(state: Path, operator: Long, stores: (String, Int)*): Unit = {
    val folder = Files.createDirectories(state.resolve(operator.toString).resolve("_metadata"))
    val infos = stores.map { case (name, partitions) =>
      s"""{"storeName":"$name","numColsPrefixKey":0,"numPartitions":$partitions}"""
    }
    val info = s"""{"operatorId":$operator,"operatorName":"symmetricHashJoin"}"""
    Files.writeString(
      folder.resolve("metadata"),
      s"""v1\n{"operatorInfo":$info,"stateStoreInfo":[${infos.mkString(",")}]}""")
  }

  private def partitions(state: Path, own: StateStoreId, listed: CopiedStore*): Int =
    new PlannedStores(state.toString, new Configuration()).partitions(own, listed, tasks = 3)

  test("stores that no task has listed count as they are planned") {
    val state = Files.createTempDirectory("planned")
    metadata(state, 0, "default" -> 2)
    metadata(state, 1, "left" -> 5, "right" -> 5)
    val own = StateStoreId(state.toString, 0, 1, "default")
    assert(partitions(state, own) == 12)
    assert(partitions(state, own, CopiedStore(1, "left", 6), CopiedStore(7, "old", 4)) == 17)
    assert(partitions(state, own, CopiedStore(0, "default", 1)) == 11)
  }

  test("a store without metadata counts as the tasks of its stage, and as its own partition") {
    val state = Files.createTempDirectory("planned")
    assert(partitions(state, StateStoreId(state.toString, 0, 1, "default")) == 3)
    assert(partitions(state, StateStoreId(state.toString, 0, 9, "default")) == 10)
    Files.writeString(Files.createDirectories(state.resolve("0/_metadata")).resolve("metadata"), "")
    assert(partitions(state, StateStoreId(state.toString, 0, 1, "default")) == 3)
    val missing = StateStoreId(state.resolve("missing").toString, 0, 0, "default")
    assert(partitions(state.resolve("missing"), missing, CopiedStore(0, "default", 2)) == 2)
  }
}
