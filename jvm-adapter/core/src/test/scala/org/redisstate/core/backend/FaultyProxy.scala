package org.redisstate.core.backend

import java.io.{IOException, InputStream, OutputStream}
import java.net.{InetAddress, InetSocketAddress, ServerSocket, Socket}
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.atomic.AtomicInteger

import scala.annotation.tailrec
import scala.jdk.CollectionConverters._
import scala.util.Random

/** Fault applied to the bytes that a client sends, and to their connection. */
sealed abstract class LineFault(val name: String)

object LineFault {
  case object Cut extends LineFault("cut")
  case object Delay extends LineFault("delay")

  /** The request and all later bytes are swallowed; the connection stays open. */
  case object BlackHole extends LineFault("black hole")

  /** The request arrives, its reply is lost, and the connection is cut. */
  case object ReplyLost extends LineFault("reply lost")

  /** The request and its reply arrive in pieces of a few bytes. */
  case object Slices extends LineFault("slices")

  val All: Seq[LineFault] = Seq(Cut, Delay, BlackHole, ReplyLost, Slices)
}

/**
 * A TCP proxy on a loopback port. A fate is drawn for whatever a client sends at once; connections
 * are numbered, and each draws from numbers of its own that the seed gives.
 *
 * @param chances of each fault; what is left of 1 passes
 */
final class FaultyProxy(serverPort: Int, seed: Long, chances: Map[LineFault, Double])
    extends AutoCloseable {
  import FaultyProxy._

  private val listening = new ServerSocket(0, Backlog, InetAddress.getLoopbackAddress)
  private val links = ConcurrentHashMap.newKeySet[Link]()
  private val made = new AtomicInteger
  private val counts = new ConcurrentHashMap[String, Integer]
  val port: Int = listening.getLocalPort

  start("accept") {
    while (true) {
      val client = listening.accept()
      val link = new Link(client, new Random(seed * 1000003L + made.incrementAndGet()))
      links.add(link)
      start("forward")(link.forward())
    }
  }

  /** Number of times that each fault occurred. */
  def met: Map[String, Int] = counts.asScala.view.mapValues(_.intValue).toMap

  override def close(): Unit = {
    listening.close()
    links.forEach(_.cut())
  }

  private final class Link(client: Socket, random: Random) {
    private val server = new Socket
    @volatile private var losesReply = false
    @volatile private var sliced = false

    def cut(): Unit = {
      links.remove(this)
      Seq(client, server).foreach { socket =>
        try {
          socket.setSoLinger(true, 0) // a reset, as of a broken line
          socket.close()
        } catch { case _: IOException => () } // it is closed
      }
    }

    def forward(): Unit =
      try {
        server.connect(new InetSocketAddress(InetAddress.getLoopbackAddress, serverPort))
        Seq(client, server).foreach(_.setTcpNoDelay(true))
        start("backward")(backward())
        pump(client.getInputStream, server.getOutputStream)(() => request())
      } finally cut()

    private def backward(): Unit =
      try pump(server.getInputStream, client.getOutputStream)(() => !losesReply)
      finally cut()

    /** Applies a fault to the bytes just received; false ends the connection. */
    private def request(): Boolean = {
      val fault = draw()
      fault.foreach(f => counts.merge(f.name, 1, (a, b) => a + b))
      sliced = fault.contains(LineFault.Slices)
      fault match {
        case Some(LineFault.Cut) => false
        case Some(LineFault.BlackHole) =>
          val in = client.getInputStream
          val nowhere = new Array[Byte](ChunkBytes)
          while (in.read(nowhere) >= 0) {}
          false
        case Some(LineFault.Delay) =>
          Thread.sleep(DelayMs)
          true
        case Some(LineFault.ReplyLost) =>
          losesReply = true
          true
        case _ => true
      }
    }

    private def draw(): Option[LineFault] = {
      @tailrec def at(left: List[LineFault], drawn: Double): Option[LineFault] = left match {
        case Nil => None
        case fault :: _ if drawn < chances.getOrElse(fault, 0.0) => Some(fault)
        case fault :: more => at(more, drawn - chances.getOrElse(fault, 0.0))
      }
      at(LineFault.All.toList, random.nextDouble())
    }

    private def pump(in: InputStream, out: OutputStream)(passes: () => Boolean): Unit = {
      val chunk = new Array[Byte](ChunkBytes)
      var length = in.read(chunk)
      while (length >= 0 && passes()) {
        val pieces = if (sliced) math.min(length / SliceBytes, SlicesMax) else 0
        for (piece <- 0 until pieces) out.write(chunk, piece * SliceBytes, SliceBytes)
        out.write(chunk, pieces * SliceBytes, length - pieces * SliceBytes)
        length = in.read(chunk)
      }
    }
  }
}

object FaultyProxy {
  val DelayMs = 200L
  private val Backlog = 64
  private val ChunkBytes = 1 << 16
  private val SliceBytes = 3
  private val SlicesMax = 80

  private def start(name: String)(body: => Unit): Unit = {
    val run: Runnable = () =>
      try body
      catch { case _: IOException => () } // one side is gone, so the other one goes
    val thread = new Thread(run, s"proxy-$name")
    thread.setDaemon(true)
    thread.start()
  }
}
