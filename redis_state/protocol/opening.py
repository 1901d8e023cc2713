"""Opens versions: the script `open` lists their segments (docs/format.md, sections 6 and 7)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_error, purged_gen, words
from redis_state.backend.script import Command, script
from redis_state.errors import FormatError, Kind, StateError, UnavailableError
from redis_state.format.entry import Segment, parse_segment
from redis_state.ids import EMPTY, PartitionId, Pin, is_uid, text_number
from redis_state.protocol.foreign import lost_with_parent
from redis_state.protocol.refusal import behind, not_there, refusal

NO_RUN = ""
"""Run id of a reader, which opens a version without changing anything."""

_NEWEST = "opened"
_TIME, _HOT_RUNS = "t", "r"
_CACHED_MAX = 4
_HEAD_WORDS = 8
_MALFORMED = "the answer of its script is malformed"
_ANY: Mapping[int, str] = {}


@dataclass(frozen=True, slots=True)
class Opened:
    """Result of `open`: the segments to apply over `start`, oldest first.

    Attributes:
        held: True if the caller's run holds the partition.
        opened: The newest version that a task of the holding run opened.
        start: A pin that the caller has cached, or `EMPTY` if the oldest segment stands alone.
        segments: Newest first.
        time_s: Time of the next version as the server has it, not yet raised to that of this
            version, in seconds since 1970; 0 if it was not requested.
        below: The version below, if this one has rows of a batch that may still run: those of a
            preview, whose number its pin names, or of a task that has committed.
    """

    id: PartitionId
    pin: Pin
    held: bool
    opened: int
    floor: int
    start: Pin
    segments: tuple[Segment, ...]
    time_s: int = 0
    below: Opened | None = None

    def key(self, segment: Segment) -> str:
        """Returns the Redis key of a segment."""
        return keys.segment(self.id, segment.ident, segment.gen)


def opening(version: int | None) -> str:
    """Returns the name of the attempt in errors; ``None`` is the newest confirmed version."""
    return "opening the state" if version is None else f"opening version {version} of the state"


def open_args(
    run_id: str,
    version: int | None,
    *,
    uid: str = "",
    cached: Sequence[Pin] = (),
    with_time: bool = False,
    hot_runs: bool = False,
) -> list[str]:
    """Returns the arguments of the script.

    Args:
        run_id: `NO_RUN`, or the run that opens the version to write on top of it.
        version: ``None`` for the newest confirmed one.
        uid: The wanted attempt at the version; empty for that on the living timeline.
        cached: Pins that the caller has cached, best first. Only the first few are sent.
        with_time: True to request the time of the next version (docs/format.md, section 15).
        hot_runs: True to accept a hot run in the place of the deltas that it merges (section 18).
    """
    pairs = [word for pin in cached[:_CACHED_MAX] for word in (str(pin.version), pin.uid)]
    letters = _TIME * with_time + _HOT_RUNS * hot_runs
    asked = [letters] if letters else []
    return [run_id, _NEWEST if version is None else str(version), uid, *pairs, *asked]


def open_commands(
    ids: Sequence[PartitionId], version: int | None, *, uids: Mapping[int, str] = _ANY
) -> list[Command]:
    """Returns the commands that open a version of each partition for reading, in one pipeline.

    Args:
        version: See `open_args`.
        uids: The wanted attempt at the version, by partition.
    """
    asked = [open_args(NO_RUN, version, uid=uids.get(id_.partition, "")) for id_ in ids]
    return script("open").many(list(zip(map(keys.meta, ids), asked, strict=True)))


def _is_purged(reply: list[bytes]) -> bool:
    """Returns whether a reply refuses an expiring partition, because its checkpoint was purged."""
    return reply[0] == b"FORMAT" and bool(purged_gen(reply[1].decode("ascii", "replace")))


def not_opened(
    ids: Sequence[PartitionId], replies: Sequence[list[bytes]], *, what: str
) -> list[int]:
    """Returns the partitions whose reply to `open_commands` names no version.

    Raises:
        StateError: The checkpoint was purged.
    """
    missing = []
    for id_, reply in zip(ids, replies, strict=True):
        if _is_purged(reply):
            raise purged_error(what, id_.store.gen, where=str(id_))
        if reply[0] != b"OK":
            missing.append(id_.partition)
    return missing


def read_replies(
    ids: Sequence[PartitionId], replies: Sequence[object], *, version: int | None
) -> list[Opened]:
    """Decodes the replies to `open_commands`.

    Raises:
        StateError: The version no longer exists, or does not exist yet.
        FormatError: A partition is of another format, or damaged.
    """
    found: list[Opened] = []
    for id_, reply in zip(ids, replies, strict=True):
        where = str(id_)
        answer = words(opening(version), reply, where=where)
        if answer[:1] == ["STATE_LOST"]:
            latest = answer[1]
            raise not_there(opening(version), latest=latest, where=where, version=version)
        found.append(read_opened(id_, answer, version=version))
    return found


def read_opened(
    id_: PartitionId,
    answer: list[str],
    *,
    version: int | None,
    cached: Sequence[Pin] = (),
    where: str = "",
    with_time: bool = False,
) -> Opened:
    """Decodes the reply of `open`; version 0 without segments if nothing was ever written.

    Args:
        version: The requested version.
        cached: The pins that were sent.
        where: Name of the partition in errors; empty means its numbers.
        with_time: Whether the time of the next version was requested.

    Raises:
        StateError: The version does not exist.
        ConflictError: The run of the caller continued, or reads another attempt at the version.
        FormatError: The partition is of another format, or damaged.
    """
    what, where = opening(version), where or str(id_)
    time_s: int | None = 0
    if with_time and answer[:1] in (["EMPTY"], ["OK"]):
        at_word = 1 if answer[0] == "EMPTY" else _HEAD_WORDS
        time_s = text_number(answer[at_word]) if len(answer) > at_word else None
        answer = [*answer[:at_word], *answer[at_word + 1 :]]
    match answer:
        case ["EMPTY"] if time_s is not None:
            return Opened(id_, EMPTY, False, 0, 0, EMPTY, (), time_s)
        case ["OK", at, uid, held, opened, floor, start, start_uid, *listed]:
            numbers = [text_number(word) for word in (at, opened, floor, start)]
            numbers.append(time_s)
        case ["EMPTY" | "OK", *_]:
            raise FormatError(what, found=_MALFORMED, where=where)
        case _:
            raise refusal(what, answer, where=where, version=version)
    if None in numbers or len(listed) % 3 or (at != "0" and not is_uid(uid)):
        raise FormatError(what, found=_MALFORMED, where=where)
    version_at, opened_at, floor_at, start_at, time_at = (number or 0 for number in numbers)
    found = Opened(
        id_,
        Pin(version_at, uid),
        held == "1",
        opened_at,
        floor_at,
        Pin(start_at, start_uid),
        tuple(map(parse_segment, listed[::3], listed[1::3], listed[2::3])),
        time_at,
    )
    wrong = _wrong_chain(found, cached)
    if wrong:
        raise FormatError(what, found=wrong, where=where)
    return found


def open_named(
    client: Client, ids: Sequence[PartitionId], version: int | None, *, uids: Mapping[int, str]
) -> list[Opened]:
    """Opens a version for reading, at the attempts that the caller names.

    Args:
        uids: See `open_commands`.

    Raises:
        StateError: The version no longer exists, or does not exist yet.
        UnavailableError: The replica that answers does not have the version.
    """
    commands = open_commands(ids, version, uids=uids)
    replies = client.call(opening(version), commands) if commands else []
    with _behind_if_it_lags(client):
        return read_replies(ids, replies, version=version)


def reopen(client: Client, gone: Sequence[Opened]) -> list[Opened]:
    """Opens the same versions again, after a segment of each was found missing or incomplete.

    Raises:
        StateError: The manifest still names the segment, so the segment was destroyed.
        UnavailableError: The replica that answers does not have the version, or a preview is gone.
    """
    for one in gone:
        if one.below is not None:
            raise UnavailableError(
                "reading rows of the running batch",
                found="they are gone: the batch ended or was taken back since they were opened",
                advice="Read again.",
                where=str(one.id),
                version=one.pin.version,
            )
    found = made_up_now(client, gone)
    with _behind_if_it_lags(client):
        for one, again in zip(gone, found, strict=True):
            if again.pin != one.pin or again.segments == one.segments:
                what = f"reading version {one.pin.version} of the state"
                gens = {segment.gen for segment in one.segments if segment.gen}
                for gen in sorted(gens):
                    error = lost_with_parent(
                        client,
                        one.id,
                        gen,
                        attempted=what,
                        where=str(one.id),
                        version=one.pin.version,
                    )
                    if error is not None:
                        raise error
                raise StateError(
                    what,
                    found="blocks of a published segment are missing",
                    advice="Look for evictions, FLUSHDB or deleted keys; restore the Redis data.",
                    kind=Kind.STATE_LOST,
                    where=str(one.id),
                    version=one.pin.version,
                )
    return found


def made_up_now(client: Client, opened: Sequence[Opened]) -> list[Opened]:
    """Reads the present segments of the same versions.

    The empty version 0 and previews, whose slices never change, are returned unchanged.

    Raises:
        StateError: Retention has dropped a version meanwhile, or it was lost.
        UnavailableError: The replica that answers does not have a version.
    """
    there = [one for one in opened if one.pin != EMPTY and one.below is None]
    calls = [
        (keys.meta(one.id), open_args(NO_RUN, one.pin.version, uid=one.pin.uid)) for one in there
    ]
    commands = script("open").many(calls) if calls else []
    replies = client.call("opening the state again", commands) if commands else []
    with _behind_if_it_lags(client):
        found = {
            one.id: again
            for one, reply in zip(there, replies, strict=True)
            for again in read_replies([one.id], [reply], version=one.pin.version)
        }
    return [found.get(one.id, one) for one in opened]


@contextmanager
def _behind_if_it_lags(client: Client) -> Iterator[None]:
    """Raises `UnavailableError` for a version that a lagging replica may get yet."""
    try:
        yield
    except StateError as error:
        if client.may_lag and error.kind is Kind.STATE_LOST:
            raise behind(error) from error
        raise


def _wrong_chain(opened: Opened, cached: Sequence[Pin]) -> str:
    """Explains why the segments do not lead from the version to its start; empty if they do."""
    at = opened.pin
    for segment in opened.segments:
        if at == EMPTY:
            return "segments precede one that is complete by itself"
        if Pin(segment.version, segment.uid) != at:
            return "the version of a segment is not the one that its successor builds on"
        at = EMPTY if segment.snapshot or segment.entry.complete else segment.parent
    if at != opened.start or (at != EMPTY and at not in cached):
        return "the oldest segment is not complete by itself"
    return ""


def beyond(ids: Iterable[PartitionId], unwritten: Set[PartitionId]) -> set[PartitionId]:
    """Returns the trailing partitions of each store that were never written.

    After a union, a stage has more tasks than its stateful operator has partitions, and Redis lists
    the number of tasks.

    Args:
        unwritten: All partitions without a version, while a version of the others is confirmed.
    """
    found: set[PartitionId] = set()
    ended = set()
    for id_ in sorted(ids, key=lambda one: one.partition, reverse=True):
        if id_.store in ended:
            continue
        if id_ in unwritten:
            found.add(id_)
        else:
            ended.add(id_.store)
    return found
