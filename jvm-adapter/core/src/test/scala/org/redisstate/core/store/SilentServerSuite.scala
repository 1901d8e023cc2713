package org.redisstate.core.store

import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.backend.{Clock, Command, Transport, TransportException}
import org.redisstate.core.errors.UnavailableException

/** Background work of stores whose server does not answer: it shares few threads with all others. */
class SilentServerSuite extends AnyFunSuite with BeforeAndAfterAll {
  import SilentServerSuite._
  import TestPartition._

  private lazy val server = new RedisServerProcess()
  override def afterAll(): Unit = server.close()

  private def onServer(clock: Clock = Clock.System)(
      test: (TestPartition, Silence) => Unit): Unit = {
    var silence: Silence = null
    val p = new TestPartition(
      server,
      clock = clock,
      deadlineMs = DeadlineMs,
      between = inner => {
        silence = new Silence(inner)
        silence
      })
    try test(p, silence)
    finally p.close()
  }

  private def write(p: TestPartition): Unit = {
    val session = p.store("a").open(0).write()
    (0 until 1000).foreach(i => put(session, key(0, s"k$i"), s"v$i"))
    session.commit()
    ()
  }

  test("reading ahead holds no helper for each store of a silent server") {
    onServer() { (p, silence) =>
      write(p)
      val writer = p.store("a")
      writer.open(1)
      writer.requestSnapshot()
      IdleBackground.await()
      p.client.open("", Some(1), None, Nil)
      assert(writer.addSnapshot(writer.open(1).pin))
      silence.of = _.startsWith("redis-state-background")
      val beganNs = System.nanoTime()
      val stores = (1 to StoresMax).map(n => p.store(s"reader$n"))
      stores.foreach(_.open(1))
      IdleBackground.await()
      assert(silence.tries > 0)
      assert((System.nanoTime() - beganNs) / 1000000 < 3 * DeadlineMs)
      // Whoever needs the rows reads them.
      stores.foreach(store => assert(rows(store.open(1).iterator(0)).size == 1000))
    }
  }

  test("a load or a commit that is answered ends the pause") {
    onServer(new StandingClock) { (p, silence) =>
      val session = p.store("a").open(0).write()
      put(session, key(0, "x"), "1")
      def isPaused = !p.client.whileAnswering(())
      for (ends <- Seq[() => Any](() => session.commit(), () => p.store("b").open(1))) {
        silence.of = _ => true
        intercept[UnavailableException](p.client.whileAnswering {
          p.client.open("", None, None, Nil): Unit
        }): Unit
        silence.of = _ => false
        assert(isPaused)
        ends(): Unit
        IdleBackground.await()
        assert(!isPaused)
      }
    }
  }

  test("previews of a silent server leave the thread to those of others") {
    onServer() { (p, silence) =>
      val sessions = (1 to StoresMax).map { n =>
        val session = p.store(s"run$n", previewEveryMs = Some(3600000L)).open(0).write()
        put(session, key(0, "x"), n.toString)
        session
      }
      silence.of = _ => true
      val beganNs = System.nanoTime()
      sessions.foreach(_.preview.get.run())
      assert((System.nanoTime() - beganNs) / 1000000 < 3 * DeadlineMs)
      // The next preview has what the skipped ones would have had.
      silence.of = _ => false
      Iterator.continually {
        sessions.last.preview.get.run()
        p.preview.nonEmpty
      }.dropWhile(!_).next(): Unit
    }
  }
}

object SilentServerSuite {
  private val DeadlineMs = 1000L
  private val StoresMax = 10

  /** Time that passes only while somebody sleeps. */
  private final class StandingClock extends Clock {
    @volatile var nowMs = 0L
    override def sleep(ms: Long): Unit = nowMs += ms
  }

  /** A server that does not answer some threads. */
  private final class Silence(inner: Transport) extends Transport {
    @volatile var of: String => Boolean = _ => false
    private val seen = new ConcurrentHashMap[String, Integer]
    def tries: Int = seen.values.asScala.map(_.intValue).sum

    override def exchange(commands: Seq[Command]): Seq[AnyRef] = {
      val thread = Thread.currentThread.getName
      if (of(thread)) {
        seen.merge(thread, 1, (a, b) => a + b)
        throw new TransportException("no answer", null)
      }
      inner.exchange(commands)
    }

    override def close(): Unit = inner.close()
  }
}
