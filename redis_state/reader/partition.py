"""Opening partitions: which segments make up a version (docs/format.md, section 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import refusal
from redis_state.backend.script import Command, script
from redis_state.errors import FormatError, Kind, StateError
from redis_state.format.entry import Segment, parse_segment
from redis_state.ids import PartitionId, Pin, is_uid, text_number

OPENED = "opened"
_NO_RUN = ""
_ANY: Mapping[int, str] = {}
_HEAD_WORDS = 8


@dataclass(frozen=True, slots=True)
class Opened:
    """A version of a partition.

    Attributes:
        segments: Newest first; the last one stands alone.
    """

    id: PartitionId
    pin: Pin
    segments: tuple[Segment, ...]

    def key(self, segment: Segment) -> str:
        """The Redis key of one of the segments."""
        return keys.segment(self.id, segment.ident)


def open_commands(
    ids: Sequence[PartitionId], version: int | None, *, uids: Mapping[int, str] = _ANY
) -> list[Command]:
    """Open a version, or the newest confirmed one, of each partition; without any effect.

    Args:
        uids: Which attempt at the version, by partition; where none is given, the one on the
            living timeline.
    """
    wanted = OPENED if version is None else str(version)
    calls = [(keys.meta(id_), (_NO_RUN, wanted, uids.get(id_.partition, ""))) for id_ in ids]
    return script("open").many(calls)


def read_opened(id_: PartitionId, reply: object, *, version: int | None) -> Opened | None:
    """What `open` answered; ``None`` if nothing was ever written.

    Raises:
        StateError: The version is not there any more, or not yet.
        FormatError: The partition is of another format, or damaged.
    """
    words = _texts(id_, reply)
    if words == ["EMPTY"]:
        return None
    if words[:1] != ["OK"]:
        raise refusal(words, where=str(id_), version=version)
    number = text_number(words[1]) if len(words) >= _HEAD_WORDS and len(words) % 2 == 0 else None
    if number is None or (number > 0 and not is_uid(words[2])):
        raise _bad(id_, "the answer of its script is malformed")
    pairs = zip(words[_HEAD_WORDS::2], words[_HEAD_WORDS + 1 :: 2], strict=True)
    segments = tuple(parse_segment(field, entry) for field, entry in pairs)
    _check_chain(id_, Pin(number, words[2]), segments)
    return Opened(id_, Pin(number, words[2]), segments)


def reopen(client: Client, gone: Sequence[Opened]) -> list[Opened]:
    """The same versions once more, after a segment of each was found to be gone or not whole.

    Raises:
        StateError: The manifest still names the segment, so it was destroyed.
    """
    calls = [(keys.meta(one.id), (_NO_RUN, str(one.pin.version), one.pin.uid)) for one in gone]
    replies = client.call("opening the state again", script("open").many(calls))
    found: list[Opened] = []
    for one, reply in zip(gone, replies, strict=True):
        again = read_opened(one.id, reply, version=one.pin.version)
        if again is None or again.segments == one.segments:
            raise StateError(
                f"reading version {one.pin.version} of the state",
                found="blocks of a published segment are missing",
                advice="Look for evictions, FLUSHDB or deleted keys; restore the Redis data.",
                kind=Kind.STATE_LOST,
                where=str(one.id),
                version=one.pin.version,
            )
        found.append(again)
    return found


def _check_chain(id_: PartitionId, pin: Pin, segments: Sequence[Segment]) -> None:
    version, uid = pin.version, pin.uid
    for index, segment in enumerate(segments):
        if (segment.version, segment.uid) != (version, uid):
            raise _bad(id_, "a segment is of another version than the one before it says")
        last = index == len(segments) - 1
        first_ever = segment.version == 1 and not segment.snapshot
        if (segment.snapshot or segment.entry.complete or first_ever) != last:
            raise _bad(id_, "the segments do not end where one stands alone")
        version, uid = version - 1, segment.entry.ref
    if pin.version > 0 and not segments:
        raise _bad(id_, "a version has no segments")


def _texts(id_: PartitionId, reply: object) -> list[str]:
    if not isinstance(reply, list) or not all(isinstance(word, bytes) for word in reply):
        raise _bad(id_, "the answer of its script is malformed")
    try:
        return [word.decode("ascii") for word in reply]
    except UnicodeDecodeError as error:
        raise _bad(id_, "the answer of its script is malformed") from error


def _bad(id_: PartitionId, found: str) -> FormatError:
    return FormatError("opening the state", found=found, where=str(id_))
