package org.redisstate.core.format

/** Text numbers and uids (docs/format.md, section 1). */
private[format] object EntryText {
  private val UidMax = 64

  /** The number, or -1 when the text is none below 2^63. */
  def number(text: String): Long = {
    val digits = text.nonEmpty && text.length <= 19 && text.forall(c => c >= '0' && c <= '9')
    if (!digits || (text.length > 1 && text(0) == '0')) -1
    else text.toLongOption.getOrElse(-1)
  }

  def isUid(text: String): Boolean =
    text.nonEmpty && text.length <= UidMax && text != "-" && text.forall { c =>
      (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
      c == '_' || c == '.' || c == '-'
    }
}
