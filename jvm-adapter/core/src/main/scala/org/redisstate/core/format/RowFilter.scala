package org.redisstate.core.format

/** Answers which rows are not there, by the hashes of their bucketing bytes. Thread-safe. */
trait RowFilter {

  /** Returns whether no row has a hash. */
  def denies(hash: Int): Boolean

  /** Bytes in memory. */
  def bytes: Long
}

object RowFilter {

  /** Denies nothing. */
  val Unknown: RowFilter = new RowFilter {
    override def denies(hash: Int): Boolean = false
    override def bytes: Long = 0L
  }

  /** Filter that could not be read now; denies nothing. */
  val Unread: RowFilter = new RowFilter {
    override def denies(hash: Int): Boolean = false
    override def bytes: Long = 0L
  }

  /** Filter of what has no rows. */
  val Nothing: RowFilter = new RowFilter {
    override def denies(hash: Int): Boolean = true
    override def bytes: Long = 0L
  }

  /** Filter of rows that are in several places. */
  def allOf(filters: Seq[RowFilter]): RowFilter =
    if (filters.contains(Unread)) Unread
    else if (filters.contains(Unknown)) Unknown
    else
      filters.filter(_ ne Nothing) match {
        case Nil => Nothing
        case Seq(one) => one
        case some => new RowFilter {
            private val each = some.toArray
            override val bytes: Long = some.iterator.map(_.bytes).sum

            override def denies(hash: Int): Boolean = {
              var i = 0
              while (i < each.length && each(i).denies(hash)) i += 1
              i == each.length
            }
          }
      }
}
