package org.apache.spark.sql.redisstate.checkpoint

import java.io.IOException
import java.net.URI
import java.nio.file.{Files, Path}

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FSDataInputStream, FileStatus, Path => HadoopPath, RawLocalFileSystem}
import org.apache.hadoop.security.AccessControlException
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.execution.streaming.state.StateStoreId

import org.redisstate.core.copy.CopiedStore
import org.redisstate.core.errors.{ConfigException, UnavailableException}

/** Shares of `redisMemory` while stores are only planned. */
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

  private def share(total: Long, state: Path, own: StateStoreId, listed: CopiedStore*): Long =
    new PlannedStores(state.toString, new Configuration()).share(total, own, listed, tasks = 3)

  /** Number of partitions among which a large bound is divided. */
  private def partitions(state: Path, own: StateStoreId, listed: CopiedStore*): Int = {
    val total = 1L << 40
    (total / (share(total, state, own, listed: _*) + (64 << 10))).toInt
  }

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

  test("a folder that does not answer is UNAVAILABLE, and no smaller query") {
    val state = Files.createTempDirectory("planned")
    metadata(state, 0, "default" -> 2)
    metadata(state, 1, "left" -> 5)
    val conf = new Configuration
    conf.set("fs.gone.impl", classOf[GoneFileSystem].getName)
    val own = StateStoreId(s"gone:$state", 0, 1, "default")
    val stores = new PlannedStores(own.checkpointRootLocation, conf)
    def share() = stores.share(1L << 40, own, Nil, tasks = 3)
    Seq("list", "open").foreach { failing =>
      GoneFileSystem.failing = failing
      val late =
        try intercept[UnavailableException](share())
        finally GoneFileSystem.failing = ""
      assert(late.getMessage.contains(state.toString) && late.getMessage.contains("no route"))
    }
    assert((1L << 40) / (share() + (64 << 10)) == 7)
  }

  test("metadata that the process may not read counts as none") {
    val state = Files.createTempDirectory("planned")
    metadata(state, 1, "default" -> 5)
    val conf = new Configuration
    conf.set("fs.gone.impl", classOf[GoneFileSystem].getName)
    val own = StateStoreId(s"gone:$state", 0, 1, "default")
    GoneFileSystem.failing = "denied open"
    try assert(PlannedStores.metadata(own.checkpointRootLocation, 1, conf).isEmpty)
    finally GoneFileSystem.failing = ""
    assert(PlannedStores.metadata(own.checkpointRootLocation, 1, conf).nonEmpty)
  }

  test("a store that is only planned refuses no query") {
    val state = Files.createTempDirectory("planned")
    // Spark plans as many for a global aggregation, which has one.
    metadata(state, 0, "default" -> 200)
    metadata(state, 1, "default" -> 200)
    val own = StateStoreId(state.toString, 1, 7, "default")
    val total = 300L << 20
    assert(share(total, state, own, CopiedStore(1, "default", 200)) == 1L << 20)
    assert(share(2 * total, state, own) == 2 * total / 400 - (64 << 10))
    val one = Seq(CopiedStore(0, "default", 1), CopiedStore(1, "default", 200))
    assert(share(total, state, own, one: _*) == (total - 201 * (64 << 10)) / 201)
    intercept[ConfigException](
      share(total, state, own, CopiedStore(0, "default", 200), CopiedStore(1, "default", 200)))
  }
}

/** A folder of this machine that may not answer. */
private[redisstate] final class GoneFileSystem extends RawLocalFileSystem {
  override def getUri: URI = URI.create("gone:///")
  override def getScheme: String = "gone"

  override def listStatus(f: HadoopPath): Array[FileStatus] = {
    GoneFileSystem.check("list")
    super.listStatus(f)
  }

  override def open(f: HadoopPath, bufferSize: Int): FSDataInputStream = {
    GoneFileSystem.check("open")
    super.open(f, bufferSize)
  }
}

private[redisstate] object GoneFileSystem {
  @volatile var failing = ""

  def check(step: String): Unit = {
    if (step == failing) throw new IOException("no route to the folder")
    if (s"denied $step" == failing) throw new AccessControlException("denied")
  }
}
