package org.redisstate.core.store

import java.nio.charset.StandardCharsets.ISO_8859_1

import scala.collection.mutable

import org.redisstate.core.RedisServerProcess
import org.redisstate.core.backend.{Command, Transport}
import org.redisstate.core.local.{Room, RowValidator}
import org.redisstate.core.protocol.PartitionClient

/** What a real server answered, so that a schedule can be tried thousands of times: a thread that waits for a socket cannot be stepped. */
private[store] final class Recording(server: Transport) extends Transport {
  private val answers = mutable.HashMap.empty[String, Seq[AnyRef]]
  @volatile private var playing: Map[String, Seq[AnyRef]] = _

  /** From here on each request gets the answer that it got first, and no other request is answered. */
  def play(): Unit = playing = answers.toMap

  override def exchange(commands: Seq[Command]): Seq[AnyRef] = {
    val request = commands
      .map(c => (c.name +: c.args.toSeq.map(new String(_, ISO_8859_1))).mkString(" "))
      .mkString("\n")
    if (playing == null) answers.getOrElseUpdate(request, server.exchange(commands))
    else playing.getOrElse(request, throw new IllegalStateException(s"not recorded: $request"))
  }

  override def close(): Unit = server.close()
}

/** The newest snapshot of a partition with a row in its buckets and one in an ordered family, and how reads of it are answered. */
private[store] final class RecordedSnapshot(server: RedisServerProcess) extends AutoCloseable {
  import TestPartition._

  private var recording: Recording = _
  private val partition = new TestPartition(
    server,
    between = real => {
      recording = new Recording(real)
      recording
    })
  private val store = partition.store("a")
  val client: PartitionClient = store.client
  val head: SegmentHead = {
    val session = store.open(0).write()
    session.defineFamily(Default)
    session.defineFamily(Ordered)
    put(session, key(0, "a"), "1")
    put(session, key(3, "b"), "2")
    store.addSnapshot(session.commit())
    val segment = client.open("", Some(1), None, Nil).segments.head
    val loader = new SegmentLoader(client, RowValidator.None, new StoreCounters, Room.Unbounded)
    val found = loader.heads(Seq(segment)).head
    require(loader.base(found).loadAll(() => false))
    recording.play()
    found
  }

  override def close(): Unit = partition.close()
}
