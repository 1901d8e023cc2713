package org.apache.spark.sql.redisstate.stores

import java.util.concurrent.{CyclicBarrier, FutureTask, TimeUnit}

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.redisstate.{ProviderHarness, SessionOnServer}

/** Stores that two threads of a task use, as Spark's `applyInPandasWithState` may do. */
class SharedStoreSuite extends AnyFunSuite with SessionOnServer {
  import SharedStoreSuite._

  override protected def settings: Map[String, String] = Map(SharedStore.Setting -> "true")

  test("one thread reads and scans groups while another one writes others") {
    assert(spark.conf.get(SharedStore.Setting) == "true")
    val harness = new ProviderHarness(server.url)
    import harness.{key, provider, value}
    val made = provider(harness.newId())
    val old = (0 until Groups).map(i => s"old$i" -> i)
    harness.commit(made, 0, old: _*)
    val store = made.getStore(1)
    val (read, written) = (old.map(row => key(row._1)), (0 until Groups).map(i => key(s"new$i")))
    val rows = (0 until Groups).map(value)
    val together = new CyclicBarrier(2)
    val writes = new FutureTask[Unit](() => {
      together.await(60, TimeUnit.SECONDS)
      written.indices.foreach { i =>
        store.put(written(i), rows(i))
        if (i % 2 == 0) store.remove(written(i))
      }
    })
    new Thread(writes).start()
    together.await(60, TimeUnit.SECONDS)
    read.indices.foreach(i => assert(store.get(read(i)).getInt(0) == i))
    assert(store.iterator().count(_.key.getUTF8String(0).toString.startsWith("old")) == Groups)
    writes.get(60, TimeUnit.SECONDS)
    store.commit()
    val expected = old ++ (1 until Groups by 2).map(i => s"new$i" -> i)
    assert(harness.read(made, 2) == expected.toMap)
  }
}

private object SharedStoreSuite {
  private val Groups = 20000
}
