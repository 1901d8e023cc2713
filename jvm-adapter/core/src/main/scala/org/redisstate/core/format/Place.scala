package org.redisstate.core.format

import org.redisstate.core.errors.FormatException

/** Location of a segment's blocks (docs/format.md, sections 14 and 17). */
sealed trait Place {

  /** The value of the manifest's field for it; empty where there is no such field. */
  def text: String
}

object Place {

  /** The partition's own key in Redis. */
  case object Own extends Place {
    override val text: String = ""
  }

  /** Partition of another checkpoint, under the same ident; its manifest has the place there. */
  final case class Foreign(gen: String) extends Place {
    override def text: String = s"p $gen"
  }

  /**
   * A region of a block file.
   *
   * @param file name below the folder of the checkpoint's block files
   * @param offset first byte of the region
   * @param bytes of the region
   * @param headBytes number of bytes at the end of the region that describe what is before them
   */
  final case class InFile(file: String, offset: Long, bytes: Long, headBytes: Int) extends Place {
    override def text: String = s"f $file $offset $bytes $headBytes"
  }

  /** A region has at most so many bytes, and begins at most there. */
  val RegionBytesMax: Long = 1L << 40
  private val HeadBytesMin = 8

  /** Ending of the name of a copy's file. */
  val CopyEnding: String = "copy"
  private val OfGen = "p ([0-9a-f]{32})".r
  private val Number = "(?:0|[1-9][0-9]*)"
  private val Version = "[1-9][0-9]*"
  private val Name =
    s"$Number-$Number-[0-9a-f]{16}/$Version-$Version-[0-9a-f]{32}\\.(?:seg|$CopyEnding)"
  private val OfFile = s"f ($Name) ($Number) ($Number) ($Number)".r
  private val FileName = Name.r

  /** Returns whether a name has the form of a block file's, or a copy's. */
  def isFileName(name: String): Boolean = FileName.matches(name)

  /** Returns whether a name has the form of a file's that copies have written. */
  def isCopyName(name: String): Boolean = isFileName(name) && name.endsWith(s".$CopyEnding")

  /**
   * @param of the segment, for messages
   * @throws FormatException if the place is of an unknown kind, or damaged
   */
  def parse(of: String, text: String): Place = {
    def bad(found: String): Nothing =
      throw new FormatException(s"the place of ${of.take(200)} $found: ${text.take(200)}")
    text match {
      case "" => Own
      case OfGen(gen) => Foreign(gen)
      case OfFile(file, offset, bytes, head) =>
        val at = EntryText.number(offset)
        val length = EntryText.number(bytes)
        val end = EntryText.number(head)
        val fits = at >= 0 && at <= RegionBytesMax && length <= RegionBytesMax &&
          end >= HeadBytesMin && end <= length && end <= Int.MaxValue
        if (!fits) bad("has numbers that it cannot have")
        InFile(file, at, length, end.toInt)
      case _ => bad("is malformed, or of a kind that this release does not know")
    }
  }
}
