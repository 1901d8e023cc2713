package org.apache.spark.sql.redisstate.stores.joins

import scala.collection.mutable

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{
  Expression,
  Predicate,
  UnsafeProjection,
  UnsafeRow
}
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreId, UnsafeRowPair}
import org.apache.spark.sql.redisstate.stores.{
  KeyedFamily,
  KeysAhead,
  RowsAhead,
  StateAhead,
  TaskStores,
  Windows
}

import org.redisstate.core.concurrent.GuardedBy

/**
 * Rows of one side that a join removes in each batch, found by a scan of the counts of all keys.
 */
private[redisstate] sealed trait JoinRemoval

private[redisstate] object JoinRemoval {

  /** All rows of the keys for which an expression is true. */
  final case class ByKey(removed: Expression) extends JoinRemoval

  /** Some rows; to find them, the join reads all rows. */
  case object ByValue extends JoinRemoval
}

/**
 * Reads ahead for the rows of one side of a join: the rows of the other side with the same join
 * key, and the rows of its own side that it replaces. Both follow from the number of rows with that
 * key, which is read first. For the task that runs the join, which has opened its stores before it
 * asks for the first row.
 *
 * @param operator id of the join
 * @param format of its state
 * @param keys makes a function for the join key of a row
 */
private[redisstate] final class JoinAhead(
    operator: Long,
    isLeft: Boolean,
    format: Int,
    removal: Option[JoinRemoval],
    keys: () => UnsafeProjection) {
  import JoinAhead._

  private lazy val own = sideOf(isLeft)
  private lazy val other = sideOf(!isLeft)
  private lazy val counts = Seq(own, other).flatMap(_.counts)
  private lazy val ofFormat4 = Seq(isLeft, !isLeft).flatMap(opened(_, JoinKeys.RowsByTime))
    .map(one => KeyedFamily.ofPrefix(one.store, one.codec))
  private val waiting = new WaitingKeys

  /** Returns the rows, unchanged and in order. */
  def over(rows: Iterator[InternalRow]): Iterator[InternalRow] =
    if (format >= ByTimeFormat) {
      lazy val keyOf = keys()
      Windows.ofRows(rows, () => KeysAhead.of(keyOf, ofFormat4))
    } else {
      lazy val keyOf, keyOfCounted = keys()
      val counted = Windows.ofRows(rows, () => KeysAhead.of(keyOfCounted, counts))
      val read = Windows.ofRows(counted, () => InputAhead.of(keyOf, own, other, waiting))
      new BegunWith(read, () => followRemoval())
    }

  private def followRemoval(): Unit =
    for (how <- removal; counts <- own.counts) {
      lazy val isAsked: UnsafeRow => Boolean = how match {
        case JoinRemoval.ByKey(removed) =>
          val predicate = Predicate.create(removed, Nil)
          predicate.eval(_)
        case JoinRemoval.ByValue => _ => true
      }
      counts.store.follow(
        counts.codec.family.name,
        pairs => Windows.ofPairs(pairs, () => RemovalAhead.of(own, isAsked)))
    }

  private def sideOf(isLeft: Boolean): Side =
    new Side(opened(isLeft, JoinKeys.Counts), opened(isLeft, JoinKeys.Rows))

  /** Finds a kind of rows: until format 2 it has a store of its own, since then a family. */
  private def opened(isLeft: Boolean, kind: String): Option[KeyedFamily] = {
    val name = (if (isLeft) JoinKeys.Left else JoinKeys.Right) + kind
    val (store, family) =
      if (format >= FamiliesFormat) (StateStoreId.DEFAULT_STORE_NAME, name)
      else (name, StateStore.DEFAULT_COL_FAMILY_NAME)
    TaskStores.find(operator, store)
      .flatMap(found => found.codecOfTask(family).map(KeyedFamily(found, _)))
  }
}

private[redisstate] object JoinAhead {

  /** State formats since which a join has one store, and no counts. */
  private val FamiliesFormat = 3
  private val ByTimeFormat = 4

  /** Families of one side. */
  private final class Side(val counts: Option[KeyedFamily], val rows: Option[KeyedFamily]) {
    private lazy val indexed = rows.map(one => new IndexedKeys(one.codec.layout.keySchema))

    /** Adds rows of a join key, as long as there is room. */
    def add(key: UnsafeRow, from: Long, until: Long, reads: RowsAhead): Unit =
      for (one <- rows; keys <- indexed) {
        var index = from
        while (index < until && !reads.isFull) {
          reads.add(one.codec, keys.of(key, index))
          index += 1
        }
      }

    /** True if the rows of a key may get another expiry when the first one of a batch is added. */
    def isTimed: Boolean = rows.exists(_.store.isInstanceOf[JoinStore])
  }

  /** Numbers of rows of one side. */
  private final class Counts(family: KeyedFamily) {
    private val reads = family.store.ahead()

    /** Returns the number of rows of a join key; None if only a read could find it. */
    def of(key: UnsafeRow): Option[Long] =
      Option.when(reads.forall(_.isHere(family.codec, key)))(
        family.store.peek(family.codec, key).fold(0L)(_.getLong(0)))
  }

  /**
   * Join keys of rows that are in a window, and not yet processed by the join. Thread-safe: another
   * thread may end the windows with the task.
   */
  private final class WaitingKeys {
    @GuardedBy("this") private val rows = mutable.HashMap.empty[UnsafeRow, Int]

    def of(key: UnsafeRow): Int = synchronized(rows.getOrElse(key, 0))
    def add(key: UnsafeRow): Unit = synchronized { rows(key) = of(key) + 1 }

    def remove(key: UnsafeRow): Unit = synchronized {
      val left = of(key) - 1
      if (left > 0) rows(key) = left else rows -= key
    }
  }

  /** Reads rows for the input of one side, if their numbers are known. */
  private final class InputAhead(
      keyOf: UnsafeProjection,
      own: Side,
      other: Side,
      ownReads: Option[RowsAhead],
      otherReads: Option[RowsAhead],
      waiting: WaitingKeys)
      extends StateAhead[InternalRow] {
    override protected val reads: Seq[RowsAhead] = (ownReads ++ otherReads).toSeq.distinct
    private val ownCounts = own.counts.map(new Counts(_))
    private val otherCounts = other.counts.map(new Counts(_))

    /** Waiting keys of this window. */
    @GuardedBy("this") private val keys = mutable.ArrayBuffer.empty[UnsafeRow]

    override def add(row: InternalRow): Unit = {
      val key = keyOf(row)
      val before = waiting.of(key)
      if (before == 0) {
        for (into <- otherReads; counts <- otherCounts; count <- counts.of(key))
          other.add(key, 0, count, into)
      }
      for (into <- ownReads; counts <- ownCounts; count <- counts.of(key)) {
        val from = if (own.isTimed && before == 0) 0L else count + before
        own.add(key, from, count + before + 1, into)
      }
      val kept = key.copy()
      synchronized {
        keys += kept
        waiting.add(kept)
      }
    }

    /** May be called by another thread when the task ends. */
    override def close(): Unit = {
      super.close()
      synchronized {
        keys.foreach(waiting.remove)
        keys.clear()
      }
    }
  }

  private object InputAhead {
    def of(
        keyOf: UnsafeProjection,
        own: Side,
        other: Side,
        waiting: WaitingKeys): Option[InputAhead] = {
      val ofOwn = own.rows.flatMap(_.store.ahead())
      val ofOther =
        if (own.rows.map(_.store) == other.rows.map(_.store)) ofOwn
        else other.rows.flatMap(_.store.ahead())
      Option.when(ofOwn.nonEmpty || ofOther.nonEmpty)(
        new InputAhead(keyOf, own, other, ofOwn, ofOther, waiting))
    }
  }

  /** Reads rows for the scan of the counts of one side. */
  private final class RemovalAhead(side: Side, isAsked: UnsafeRow => Boolean, into: RowsAhead)
      extends StateAhead[UnsafeRowPair] {
    override protected val reads: Seq[RowsAhead] = Seq(into)

    override def add(pair: UnsafeRowPair): Unit =
      if (isAsked(pair.key)) side.add(pair.key, 0, pair.value.getLong(0), into)
  }

  private object RemovalAhead {
    def of(side: Side, isAsked: UnsafeRow => Boolean): Option[RemovalAhead] =
      side.rows.flatMap(_.store.ahead()).map(new RemovalAhead(side, isAsked, _))
  }

  /** Runs an action before the first row is requested. */
  private final class BegunWith(rows: Iterator[InternalRow], begin: () => Unit)
      extends Iterator[InternalRow] {
    private lazy val begun: Iterator[InternalRow] = {
      begin()
      rows
    }
    override def hasNext: Boolean = begun.hasNext
    override def next(): InternalRow = begun.next()
  }
}
