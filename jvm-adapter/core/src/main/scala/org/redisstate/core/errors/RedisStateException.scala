package org.redisstate.core.errors

/**
 * Root of everything that the store raises. `tests/vectors/twins.json` names what each kind is in
 * Python, and `docs/errors.md` has a paragraph for it.
 *
 * @param kind stable name, also the first word of the message: `[REDIS_<kind>]`
 * @param retryable whether the same call may succeed later without any change
 */
sealed abstract class RedisStateException(
    val kind: String,
    val retryable: Boolean,
    detail: String,
    cause: Throwable)
    extends RuntimeException(s"[REDIS_$kind] $detail", cause)

final class ConfigException(detail: String, cause: Throwable = null)
    extends RedisStateException("CONFIG", false, detail, cause)

final class FencedException(detail: String, cause: Throwable = null)
    extends RedisStateException("FENCED", false, detail, cause)

/** @param isAnswered whether the server was reached, and said that it cannot serve now */
final class UnavailableException(
    detail: String,
    cause: Throwable = null,
    val isAnswered: Boolean = false)
    extends RedisStateException("UNAVAILABLE", true, detail, cause)

final class FullException(detail: String, cause: Throwable = null)
    extends RedisStateException("FULL", true, detail, cause)

/** One batch has more bytes than the share of its partition, which `redisMemory` gives. */
final class NoRoomException(detail: String, cause: Throwable = null)
    extends RedisStateException("NO_ROOM", true, detail, cause)

final class PermissionException(detail: String, cause: Throwable = null)
    extends RedisStateException("PERMISSION", false, detail, cause)

final class OutcomeUnknownException(detail: String, cause: Throwable = null)
    extends RedisStateException("OUTCOME_UNKNOWN", true, detail, cause)

/** The server has a commit, but the conditions of `durability` are not met yet. */
final class NotDurableException(detail: String, cause: Throwable = null)
    extends RedisStateException("NOT_DURABLE", true, detail, cause)

final class FormatException(detail: String, cause: Throwable = null)
    extends RedisStateException("FORMAT", false, detail, cause)

object FormatException {

  /** State that is whole, and has other columns than the query that was started on it. */
  def ofColumns(changes: String, found: String): FormatException = new FormatException(
    s"the columns of the query are not those of the state: $changes. $found Nothing was changed. Go back to the query that wrote the " +
      "state, or start a new checkpoint.")
}

/** @param isPurged whether somebody purged the checkpoint, and can call it back */
final class StateLostException(
    detail: String,
    cause: Throwable = null,
    val isPurged: Boolean = false)
    extends RedisStateException("STATE_LOST", false, detail, cause)

/** A block file that a manifest names is not there, or is cut; its folder answers. */
final class FileLostException(detail: String, cause: Throwable = null)
    extends RedisStateException("FILE_LOST", false, detail, cause)

final class VersionExpiredException(detail: String, cause: Throwable = null)
    extends RedisStateException("VERSION_EXPIRED", false, detail, cause)

final class MarkerMissingException(detail: String, cause: Throwable = null)
    extends RedisStateException("MARKER_MISSING", false, detail, cause)

final class CheckpointMovedException(detail: String, cause: Throwable = null)
    extends RedisStateException("CHECKPOINT_MOVED_OR_COPIED", false, detail, cause)

final class LimitException(detail: String, cause: Throwable = null)
    extends RedisStateException("LIMIT", false, detail, cause)

/** The option `stateBytesMax` or `prefixBytesMax` is reached; the state is whole, and stays. */
final class QuotaException(detail: String, cause: Throwable = null)
    extends RedisStateException("QUOTA", false, detail, cause)

final class InternalException(detail: String, cause: Throwable = null)
    extends RedisStateException("INTERNAL", false, detail, cause)
