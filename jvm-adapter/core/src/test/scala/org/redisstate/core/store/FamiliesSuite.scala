package org.redisstate.core.store

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.format.MultiValue

/** Column families of a version, through commits, snapshots and loads. */
class FamiliesSuite extends AnyFunSuite with BeforeAndAfterAll {
  import TestPartition._

  private lazy val server = new RedisServerProcess()
  override def afterAll(): Unit = server.close()

  private def partition(name: String)(body: TestPartition => Unit): Unit = test(name) {
    val partition = new TestPartition(server)
    try body(partition)
    finally partition.close()
  }

  private val timers = Ordered.copy(name = "timers", internal = true)

  partition("the id of a removed family is not given again, whatever was loaded since") { p =>
    val first = p.store("a").open(0).write()
    Seq(Prefixed, Lists, Ordered).foreach(first.defineFamily)
    assert(first.highestFamilyId == 3)
    first.removeFamily(3)
    assert(first.highestFamilyId == 3)
    first.commit()
    val reloaded = p.store("a").open(1).write()
    assert(reloaded.highestFamilyId == 3)
    reloaded.removeFamily(2)
    put(reloaded, key(0, "x"), "1")
    reloaded.commit()
    val store = p.store("a")
    (2L until 7L).foreach { v =>
      val session = store.open(v).write()
      put(session, key(0, "x"), s"$v")
      session.commit()
    }
    store.open(7)
    store.requestSnapshot()
    assert(store.snapshotIfDue())
    assert(p.store("a").open(7).write().highestFamilyId == 3)
  }

  partition("keys of internal families are counted apart") { p =>
    val store = p.store("a")
    val session = store.open(0).write()
    session.defineFamily(Lists)
    session.defineFamily(timers)
    (0 until 10).foreach(i => put(session, key(0, s"k$i"), "v"))
    (0 until 4).foreach(i => put(session, key(3, s"t$i"), "v"))
    append(session, key(2, "l"), "one")
    append(session, key(2, "l"), "two")
    assert(session.numKeys == 11 && session.numInternalKeys == 4)
    session.commit()
    val next = p.store("a").open(1).write()
    assert(next.numKeys == 11 && next.numInternalKeys == 4)
    next.remove(key(3, "t0"), 4)
    next.remove(key(0, "k0"), 4)
    next.deleteRange(3, None, Some("t2".getBytes("UTF-8")))
    assert(next.numKeys == 10 && next.numInternalKeys == 2)
    next.commit()
    val reader = p.store("reader").open(2)
    assert(reader.numKeys == 10)
    assert(rows(reader.iterator(3)).size == 2)
    val other = p.store("a")
    other.open(2)
    other.requestSnapshot()
    assert(other.snapshotIfDue())
    assert(p.store("a").open(2).write().numInternalKeys == 2)
  }

  partition("a list of many megabytes is staged some times over, not once for each append") { p =>
    val store = p.store("a")
    val session = store.open(0).write()
    session.defineFamily(Lists)
    val value = new scala.util.Random(1).nextBytes(64 << 10)
    val element = MultiValue.encode(Seq(value))
    val list = key(2, "long")
    val appends = 400
    (0 until appends).foreach(_ => session.append(list, list.length, element, element.length))
    session.commit()
    assert(store.client.bytesSent.get < 8L * appends * element.length)
    val slice = new org.redisstate.core.local.Slice
    assert(p.store("a").open(1).get(list, list.length, slice))
    assert(slice.length == appends * element.length)
  }
}
