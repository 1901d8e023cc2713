package org.redisstate.core.protocol.manifest

import org.redisstate.core.errors.FormatException

/** Parsers of Redis fields, which another program may have overwritten. */
private[protocol] object Stored {

  /** A number in a field, or in a script's answer, which repeats fields. */
  def number(what: String, word: String): Long =
    word.toLongOption.getOrElse(
      throw new FormatException(
        s"$what: a field of the state's metadata is not a number. Restore the " +
          "server's data from before the damage; if another program writes there, give redis-state its " +
          "own database or a keyPrefix."))
}
