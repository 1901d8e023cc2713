package org.redisstate.core.local

import java.util.concurrent.atomic.AtomicInteger

import org.redisstate.core.concurrent.GuardedBy
import org.redisstate.core.format.{Family, Tombstone}

/**
 * Traces which rows of a write set have changed since another thread took them last. The thread
 * that changes rows notes where they lie: bytes of a layer never change, so nothing is copied
 * before the other thread takes them. Lists grow in place, so their changes are kept twice.
 *
 * @param first layer for changes
 * @param initial families of the write set
 * @param isTableNew whether the version below has no table of families
 * @param bytesMax so many bytes may wait that the write set does not hold
 */
private[core] final class ChangeTrace(
    first: Layer,
    initial: Seq[Family],
    isTableNew: Boolean,
    bytesMax: Long = ChangeTrace.BytesMax) {
  import ChangeTrace._

  // Of the thread that changes rows.
  private var layer = first
  private var count = 0
  private var listIds = listsOf(initial)

  /** Number of noted entries; set behind the entries and their bytes. */
  private val reached = new AtomicInteger

  @GuardedBy("this") private var noted = new Array[Int](FirstEntries)
  @GuardedBy("this") private var bytes = first.bytes
  @GuardedBy("this") private var taken = 0
  @GuardedBy("this") private var before = Vector.empty[Step]
  @GuardedBy("this") private var entriesBefore = 0L

  /** Bytes of layers in `before` that the write set does not have any more. */
  @GuardedBy("this") private var freed = 0L
  @GuardedBy("this") private var lists = new Layer(ListRows)
  @GuardedBy("this") private var families = initial
  @GuardedBy("this") private var hasNewTable = isTableNew
  @volatile private var held = 0L
  @volatile private var over = false

  /** Returns whether the changes of a key are noted by the methods for lists. */
  def isList(key: Array[Byte]): Boolean =
    listIds.nonEmpty && listIds(StoredKey.familyOf(key, 0))

  /** Notes the entry that the present layer got last. */
  def note(entry: Int): Unit = {
    if (count == noted.length) makeRoom()
    if (layer.bytes ne bytes) synchronized { bytes = layer.bytes }
    noted(count) = entry
    count += 1
    reached.lazySet(count)
  }

  def putList(hash: Int, key: Array[Byte], keyLength: Int, value: Array[Byte], length: Int): Unit =
    changeLists(_.put(hash, key, 0, keyLength, value, 0, length))

  def appendToList(
      hash: Int,
      key: Array[Byte],
      keyLength: Int,
      elements: Array[Byte],
      length: Int): Unit =
    changeLists(_.append(hash, key, 0, keyLength, elements, 0, length))

  def removeList(hash: Int, key: Array[Byte], keyLength: Int): Unit =
    changeLists(_.remove(hash, key, 0, keyLength))

  private def changeLists(change: Layer => Unit): Unit = synchronized {
    if (!over) {
      change(lists)
      checkBounds()
    }
  }

  /** Notes that a range was removed; the next changes are in another layer. */
  def removeRange(range: Tombstone, next: Layer): Unit = synchronized {
    leave(isKept = false)
    val isOfLists = listIds(range.family)
    if (!over) {
      before :+= Cleared(range, isOfLists)
      if (isOfLists) lists.clear(range)
    }
    begin(next)
  }

  /**
   * Notes that the next changes are in another layer.
   *
   * @param isKept whether the write set holds the present layer until its end
   */
  def follow(next: Layer, isKept: Boolean): Unit = synchronized {
    leave(isKept)
    begin(next)
  }

  /** Notes the families from now on, which are others than those of the version below. */
  def describe(all: Seq[Family]): Unit = {
    listIds = listsOf(all)
    synchronized {
      families = all
      hasNewTable = true
    }
  }

  /**
   * Returns whether changes are missing: the trace has ended, or too much has changed since the
   * last `take`.
   */
  def isOver: Boolean = over

  /** Bytes that wait for `take` and that the write set does not hold. */
  def heldBytes: Long = held

  /** Frees what waits; further changes are not traced. For any thread. */
  def end(): Unit = synchronized {
    over = true
    forget()
  }

  /**
   * Returns the changes since the last call, in their order; for one other thread.
   *
   * @param most so many changes at most, the oldest, if neither lists nor ranges are among those
   *   that wait
   */
  def take(most: Long = Long.MaxValue): Changes = synchronized {
    seal()
    // An empty layer stays here, and gets the lists that change later.
    val ofLists = if (lists.isEmpty) NoLists else lists
    val puts = before.collect { case put: Put => put }
    if (entriesBefore > most && lists.isEmpty && puts.size == before.size)
      new Changes(takeOldest(puts, most.toInt), ofLists, families, hasNewTable)
    else {
      val found = new Changes(before, ofLists, families, hasNewTable)
      forget()
      found
    }
  }

  /**
   * @param puts all steps in `before`
   * @param most less than the number of their entries
   */
  @GuardedBy("this") private def takeOldest(puts: Vector[Put], most: Int): Vector[Put] = {
    val ends = puts.scanLeft(0)(_ + _.entries)
    val whole = ends.lastIndexWhere(_ <= most)
    val part = most - ends(whole)
    val left = puts(whole).drop(part) +: puts.drop(whole + 1)
    before = left
    entriesBefore -= most
    freed = left.iterator.filter(_.isCopied).map(_.bytes).distinct.map(_.length.toLong).sum
    held = freed
    if (part == 0) puts.take(whole) else puts.take(whole) :+ puts(whole).take(part)
  }

  @GuardedBy("this") private def forget(): Unit = {
    before = Vector.empty
    entriesBefore = 0
    freed = 0
    held = 0
    if (!lists.isEmpty) lists = new Layer(ListRows)
  }

  /** Seals the changes of a layer that gets no more of them. */
  @GuardedBy("this") private def leave(isKept: Boolean): Unit = {
    seal()
    val first = before.lastIndexWhere(!isOfPresent(_)) + 1
    if (!isKept && first < before.size) {
      val own = java.util.Arrays.copyOf(bytes, math.min(bytes.length, layer.usedBytes))
      (first until before.size).foreach { i =>
        before = before.updated(i, before(i).in(own))
      }
      freed += own.length
      checkBounds()
    }
  }

  @GuardedBy("this") private def isOfPresent(step: Step): Boolean = step match {
    case put: Put => put.of eq layer
    case _ => false
  }

  /** Moves the entries that are not taken yet into a step. */
  @GuardedBy("this") private def seal(): Unit = {
    val end = reached.get
    if (end > taken) {
      if (!over) {
        before :+= Put(bytes, java.util.Arrays.copyOfRange(noted, taken, end), layer)
        entriesBefore += end - taken
        checkBounds()
      }
      taken = end
    }
  }

  @GuardedBy("this") private def checkBounds(): Unit = {
    held = freed + lists.usedBytes
    if (entriesBefore > EntriesMax || held > bytesMax) end()
  }

  @GuardedBy("this") private def begin(next: Layer): Unit = {
    layer = next
    bytes = next.bytes
    restart()
  }

  @GuardedBy("this") private def restart(): Unit = {
    count = 0
    taken = 0
    reached.set(0)
  }

  private def makeRoom(): Unit = synchronized {
    if (count >= BatchEntries) {
      seal()
      restart()
    } else noted = java.util.Arrays.copyOf(noted, noted.length * 2)
  }
}

private[core] object ChangeTrace {
  private val FirstEntries = 1 << 10
  private val BatchEntries = 1 << 16

  /** Most changes that may wait. */
  private[core] val EntriesMax = 1L << 22
  private val BytesMax = 256L << 20
  private val ListRows = 16

  /** Never changes. */
  private val NoLists = new Layer(0)

  private sealed trait Step {
    def entries: Int = 0

    /** Returns the step with a copy of its bytes that nobody else holds. */
    def in(own: Array[Byte]): Step = this
  }

  /** @param of layer that has the bytes; null where nobody else holds them */
  private final case class Put(bytes: Array[Byte], noted: Array[Int], of: Layer) extends Step {
    def isCopied: Boolean = of eq null
    override def entries: Int = noted.length
    override def in(own: Array[Byte]): Step = copy(bytes = own, of = null)
    def take(oldest: Int): Put = copy(noted = noted.take(oldest))
    def drop(oldest: Int): Put = copy(noted = noted.drop(oldest))
  }

  private final case class Cleared(range: Tombstone, isOfLists: Boolean) extends Step

  /**
   * Changes that were taken together.
   *
   * @param families of the write set when they were taken
   * @param hasNewTable whether the version below has other families
   */
  final class Changes private[ChangeTrace] (
      steps: Vector[Step],
      lists: Layer,
      val families: Seq[Family],
      val hasNewTable: Boolean) {

    def isEmpty: Boolean = steps.isEmpty && lists.isEmpty

    /** Number of changed rows without lists; a row counts as often as it has changed. */
    def entries: Int = steps.iterator.map(_.entries).sum

    /** Ranges that were removed, in their order. */
    def tombstones: Seq[Tombstone] = steps.collect { case Cleared(range, _) => range }

    /** Returns the last change of each key. */
    def layer: Layer = {
      val rows = new Layer(math.max(16, entries))
      steps.foreach {
        case Put(bytes, noted, _) =>
          val from = new FixedRows(bytes)
          noted.foreach(add(rows, from, _))
        case Cleared(range, isOfLists) => if (!isOfLists) rows.clear(range)
      }
      if (lists.isEmpty) rows else Layer.merge(Seq(rows, lists))
    }

    private def add(rows: Layer, from: FixedRows, entry: Int): Unit = {
      val hash = from.hashOf(entry)
      val key = from.keyOffset(entry)
      val length = from.keyLength(entry)
      if (from.isRemoved(entry)) rows.remove(hash, from.bytes, key, length)
      else
        rows.put(
          hash,
          from.bytes,
          key,
          length,
          from.bytes,
          from.valueOffset(entry),
          from.valueLength(entry))
    }
  }

  private def listsOf(families: Seq[Family]): Set[Int] =
    families.filter(_.multiValue).map(_.id).toSet
}
