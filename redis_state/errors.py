"""The error tree: one class for each different reaction of a caller.

Every error has a stable ``kind``; the JVM adapter uses the same strings. The message names the
attempt and its target, the finding, and the next step. It never contains a state value, a key's
bytes or a password.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11


class Kind(str, Enum):
    """Stable name of a cause; `docs/errors.md` has a section for each."""

    CONFIG = "CONFIG"
    NOT_FOUND = "NOT_FOUND"
    FENCED = "FENCED"
    PINNED = "PINNED"
    UNAVAILABLE = "UNAVAILABLE"
    FULL = "FULL"
    NO_ROOM = "NO_ROOM"
    PERMISSION = "PERMISSION"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    NOT_DURABLE = "NOT_DURABLE"
    FORMAT = "FORMAT"
    UNREADABLE = "UNREADABLE"
    STATE_LOST = "STATE_LOST"
    FILE_LOST = "FILE_LOST"
    VERSION_EXPIRED = "VERSION_EXPIRED"
    STALE = "STALE"
    MARKER_MISSING = "MARKER_MISSING"
    CHECKPOINT_MOVED_OR_COPIED = "CHECKPOINT_MOVED_OR_COPIED"
    LIMIT = "LIMIT"
    QUOTA = "QUOTA"
    USAGE = "USAGE"
    INTERNAL = "INTERNAL"

    def __str__(self) -> str:
        return self.value


class RedisStateError(Exception):
    """Base of all errors of this package.

    Args:
        attempted: The attempt, as a clause without a full stop.
        found: The finding.
        advice: The next step, as one or more sentences. ``None`` means the advice of the class.
        where: Target of the attempt, for example ``operator 0 partition 3``.
        kind: One of the class's `kinds`; ``None`` means the first of them.
        store: Text that names the store, or ``None`` if no store is concerned.
        version: State version concerned, or ``None``.
        operation: Name of the public operation that failed, or ``None``.

    Attributes:
        retryable: True if the same call may succeed later without any change by the caller.
    """

    kinds: ClassVar[tuple[Kind, ...]] = tuple(Kind)
    retryable: ClassVar[bool] = False
    default_advice: ClassVar[str] = ""

    def __init__(
        self,
        attempted: str,
        *,
        found: str = "",
        advice: str | None = None,
        where: str = "",
        kind: Kind | None = None,
        store: str | None = None,
        version: int | None = None,
        operation: str | None = None,
    ) -> None:
        self.kind = self.kinds[0] if kind is None else Kind(kind)
        if self.kind not in self.kinds:
            raise ValueError(f"{type(self).__name__} has no kind {self.kind}")
        self.attempted = attempted
        self.found = found
        self.advice = self.default_advice if advice is None else advice
        self.where = where
        self.store = store
        self.version = version
        self.operation = operation
        super().__init__(_message(self))

    def __reduce__(self) -> tuple[object, ...]:
        # The inherited pickling would call the class with only the message.
        state = dict(self.__dict__)
        return (_rebuild, (type(self), state))


def _message(error: RedisStateError) -> str:
    place = error.where or error.store
    clause = "; ".join(part for part in (error.attempted, error.found) if part)
    text = f"[REDIS_{error.kind}] {place + ': ' if place else ''}{clause}."
    return f"{text} {error.advice}" if error.advice else text


def _rebuild(cls: type[RedisStateError], state: dict[str, object]) -> RedisStateError:
    error = cls.__new__(cls)
    error.__dict__.update(state)
    Exception.__init__(error, _message(error))
    return error


class ConfigError(RedisStateError):
    """An option, a URL, a right or an installation is wrong; nothing was sent or changed."""

    kinds = (Kind.CONFIG, Kind.PERMISSION)


class NotFoundError(RedisStateError):
    """The named query, store, column or version does not exist."""

    kinds = (Kind.NOT_FOUND,)


class ConflictError(RedisStateError):
    """Another run holds the partition, or others need the state that was to be removed."""

    kinds = (Kind.FENCED, Kind.PINNED)
    default_advice = "Stop this run: a newer one holds the partition. Nothing was changed."


class UnavailableError(RedisStateError):
    """Redis gave no useful answer before the deadline; the state itself is not in doubt."""

    kinds = (Kind.UNAVAILABLE,)
    retryable = True
    default_advice = "Check that the server runs and can be reached, then try again."


class FullError(RedisStateError):
    """There is no room for a write; nothing partial was published.

    `FULL`: memory or disk of the server is full. `NO_ROOM`: one batch has more bytes than the
    share of its partition, which the option `redisMemory` gives.
    """

    kinds = (Kind.FULL, Kind.NO_ROOM)
    retryable = True
    default_advice = "Free memory or disk space on the server, or raise its limit, then try again."


class CommitOutcomeUnknownError(RedisStateError):
    """A commit was sent, but by the deadline it was not certain that it will last.

    `OUTCOME_UNKNOWN`: its reply was lost. `NOT_DURABLE`: the server applied it, but without the
    durability that the option `durability` demands. A crash might undo it.
    """

    kinds = (Kind.OUTCOME_UNKNOWN, Kind.NOT_DURABLE)
    retryable = True
    default_advice = "Run the same batch again: a commit is idempotent and takes effect once."


class FormatError(RedisStateError):
    """Bytes are damaged, foreign or of an unknown format; they were not read as absent."""

    kinds = (Kind.FORMAT,)
    default_advice = (
        "Nothing was changed. Restore the server's data from before the damage; if a newer "
        "release of redis-state wrote it, use that release."
    )


class UnreadableError(RedisStateError):
    """The state is intact, but a value cannot be returned in the requested form.

    Attributes:
        column: The column, and the fields inside of it, joined by dots.
        type: Spark's name of the type.
    """

    kinds = (Kind.UNREADABLE,)
    default_advice = "Nothing is damaged. Leave the column out (columns=…) to read the others."

    column: str = ""
    type: str = ""

    @classmethod
    def of(cls, type_: str, found: str, *, advice: str | None = None, column: str = "") -> Self:
        """Returns the error for a value of a type."""
        place = f"column '{column}'" if column else "a value"
        error = cls(f"reading {place} of type {type_}", found=found, advice=advice)
        error.column, error.type = column, type_
        return error

    def within(self, name: str) -> UnreadableError:
        """Returns the same error with a field's name prepended to the column."""
        column = f"{name}.{self.column}" if self.column else name
        return type(self).of(self.type, self.found, advice=self.advice, column=column)


class LimitError(RedisStateError):
    """A key or value is larger than the format allows; nothing was sent."""

    kinds = (Kind.LIMIT,)
    default_advice = "Make the row smaller: a key may have 1 MiB, a value 64 MiB."


class QuotaError(RedisStateError):
    """The state has reached `stateBytesMax` or `prefixBytesMax`; it stays intact."""

    kinds = (Kind.QUOTA,)
    default_advice = (
        "Raise the limit, keep fewer versions (versionsToRetain), or remove state, then start the "
        "query again. `redis-state size QUERY` shows where the bytes are."
    )


class UsageError(RedisStateError):
    """A wrong call: a store that was committed or aborted, a key or value without an encoding."""

    kinds = (Kind.USAGE,)


class StateError(RedisStateError):
    """The requested state cannot be served exactly, so it is not served at all."""

    kinds = (
        Kind.STATE_LOST,
        Kind.FILE_LOST,
        Kind.VERSION_EXPIRED,
        Kind.STALE,
        Kind.MARKER_MISSING,
        Kind.CHECKPOINT_MOVED_OR_COPIED,
    )


class InternalError(RedisStateError):
    """A rule of redis-state itself was broken: a defect to report."""

    kinds = (Kind.INTERNAL,)
    default_advice = "Report this as a defect of redis-state, with the stack trace."


def of_jvm(message: str) -> RedisStateError:
    """Converts an error of the JVM adapter to one of this package with the same text.

    Args:
        message: Begins with ``[REDIS_<kind>]``.
    """
    head, _, detail = message.partition("] ")
    kind = Kind(head.removeprefix("[REDIS_"))
    family = next(one for one in RedisStateError.__subclasses__() if kind in one.kinds)
    error = family(detail, kind=kind)
    error.args = (message,)
    return error
