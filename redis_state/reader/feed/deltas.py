"""Finds the deltas from one confirmed version to another (docs/format.md, section 7).

A partition's manifest names its versions and their parents. The timeline is the line of parents of
the version that was opened last: Spark logged each batch on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import unserved
from redis_state.backend.script import Command
from redis_state.errors import FormatError, UnavailableError
from redis_state.format.chunks import CHUNK_BYTES_MAX
from redis_state.format.entry import FORMATS, Segment, parse_segment
from redis_state.format.segment import SegmentContent, read_segment
from redis_state.ids import EMPTY, EMPTY_UID, NUMBER_MAX, PartitionId, Pin, is_uid, text_number
from redis_state.protocol.opening import beyond
from redis_state.protocol.segments import fetch, fetch_each
from redis_state.protocol.version_rows import read_whole

_WHAT = "reading which versions there are"
_META = ("f", "e", "o", "ou", "w")
_HEADS_AT_ONCE = 512
_MANIFESTS_AT_ONCE = 16
_TRIES_MAX = 5


@dataclass(frozen=True, slots=True)
class PartitionHead:
    """Progress of a partition.

    Attributes:
        epoch: While it is the same, opened versions are never taken back.
        opened: The newest version that the query itself has confirmed.
        floor: Retention keeps this version and newer ones; ignored by comparison.
        written: Whether Redis has any data of the partition.
    """

    id: PartitionId
    epoch: str
    opened: Pin
    floor: int = field(compare=False)
    written: bool = True


@dataclass(frozen=True, slots=True)
class Timeline:
    """The versions of a partition from which the query continued.

    Attributes:
        oldest: Deltas lead from this version up to the opened one; not below the requested version.
        uids: By version, of the requested versions.
        deltas: By version, the delta that made it from the one before; of the requested versions.
    """

    head: PartitionHead
    oldest: int
    uids: Mapping[int, str]
    deltas: Mapping[int, Segment]

    @property
    def id(self) -> PartitionId:
        """The partition."""
        return self.head.id

    def pin(self, version: int) -> Pin:
        """Returns the pin of a requested version; raises the errors of `uid`."""
        return Pin(version, self.uid(version))

    def uid(self, version: int) -> str:
        """Returns the uid of the attempt that wrote a requested version.

        Raises:
            FormatError: The parents of the opened version do not lead there.
        """
        found = self.uids.get(version)
        if found is None:
            raise FormatError(
                _WHAT,
                found=f"the manifest does not lead from the opened version to version {version}",
                where=str(self.id),
            )
        return found


def read_heads(client: Client, ids: Sequence[PartitionId]) -> list[PartitionHead]:
    """Reads the progress of each partition, with one small command for each.

    Raises:
        StateError: The checkpoint was purged.
        FormatError: A partition is damaged, or of another format.
    """
    found: list[PartitionHead] = []
    for start in range(0, len(ids), _HEADS_AT_ONCE):
        group = ids[start : start + _HEADS_AT_ONCE]
        replies = client.call(_WHAT, [("HMGET", keys.meta(id_), *_META) for id_ in group])
        found += [
            _head(id_, _named(_META, reply)) for id_, reply in zip(group, replies, strict=True)
        ]
    return found


def read_timelines(
    client: Client,
    ids: Sequence[PartitionId],
    *,
    low: int | None = None,
    high: int | None = None,
    heads: Sequence[PartitionHead] | None = None,
) -> list[Timeline]:
    """Reads the timelines of all partitions of a store, consistent at one moment.

    Takes one more command for each partition that is at most one version above `low`. The whole
    manifest is read of the others; its size depends on the retained versions, not on the state.

    Args:
        low: The version from which deltas are read; ``None`` means the newest one that all
            partitions have confirmed.
        high: The last version to read; ``None`` means all.
        heads: Heads of these partitions in their order, if they were just read.

    Raises:
        StateError: The checkpoint was purged.
        FormatError: A partition is damaged, or of another format.
        UnavailableError: The query is started again and again meanwhile.
    """
    for _ in range(_TRIES_MAX):
        heads = heads or read_heads(client, ids)
        there = {head.id for head in with_state(heads)}
        bottom = confirmed(heads) if low is None else low
        found = _timelines(client, heads, bottom, NUMBER_MAX if high is None else high)
        # If no epoch has changed, everything that the first read saw was true at one moment between
        # the two reads. Else one partition might be from before a rewind and another from after it.
        # A partition still unwritten after another was seen confirmed will never be written.
        if all(
            (one.head.epoch, one.head.written) == (head.epoch, head.written)
            for one, head in zip(found, heads, strict=True)
        ):
            return [one for one in found if one.id in there]
        heads = None
    raise UnavailableError(_WHAT, found="the query was started repeatedly meanwhile")


def confirmed(heads: Sequence[PartitionHead]) -> int:
    """Returns the newest version that every partition of the store has confirmed."""
    return min((head.opened.version for head in with_state(heads)), default=0)


def with_state(heads: Sequence[PartitionHead]) -> list[PartitionHead]:
    """Returns the partitions without the surplus ones that `beyond` finds."""
    if not any(head.opened.version for head in heads):
        return list(heads)
    unwritten = {head.id for head in heads if not head.written}
    surplus = beyond((head.id for head in heads), unwritten)
    return [head for head in heads if head.id not in surplus]


def read_contents(
    client: Client, wanted: Sequence[tuple[PartitionId, Segment]]
) -> Iterator[SegmentContent]:
    """Yields the contents of deltas in order: small ones many at a time, large ones in pieces.

    Raises:
        SegmentGoneError: A delta is not complete any more.
        FormatError: A delta is damaged.
    """
    small: list[tuple[PartitionId, Segment]] = []
    for id_, segment in wanted:
        if segment.entry.bytes <= CHUNK_BYTES_MAX:
            small.append((id_, segment))
            continue
        yield from _read_small(client, small)
        small = []
        yield read_whole(partial(fetch, client, id_), segment)
    yield from _read_small(client, small)


def _read_small(
    client: Client, wanted: Sequence[tuple[PartitionId, Segment]]
) -> Iterator[SegmentContent]:
    there = [one for one in wanted if one[1].entry.blocks]
    fields = fetch_each(client, there)
    for _, segment in wanted:
        yield read_segment(segment, next(fields) if segment.entry.blocks else {})


def _timelines(
    client: Client, heads: Sequence[PartitionHead], low: int, high: int
) -> list[Timeline]:
    near = [head for head in heads if head.opened.version <= low + 1]
    far = [head for head in heads if head.opened.version > low + 1]
    found: dict[PartitionId, Timeline] = {}
    for start in range(0, len(near), _HEADS_AT_ONCE):
        group = near[start : start + _HEADS_AT_ONCE]
        deltas = [_delta_field(head.opened) for head in group]
        names = [(*_META, delta, _place_field(delta)) for delta in deltas]
        commands: list[Command] = [
            ("HMGET", keys.meta(head.id), *of) for head, of in zip(group, names, strict=True)
        ]
        replies = client.call(_WHAT, commands)
        for head, of, reply in zip(group, names, replies, strict=True):
            fields = _named(of, reply)
            now = _head(head.id, fields)
            # The query may have advanced: versions opened before are confirmed all the same.
            seen = replace(now, opened=head.opened)
            found[head.id] = _walk(seen, fields, low, high)
    for start in range(0, len(far), _MANIFESTS_AT_ONCE):
        group = far[start : start + _MANIFESTS_AT_ONCE]
        replies = client.call(_WHAT, [("HGETALL", keys.meta(head.id)) for head in group])
        for head, reply in zip(group, replies, strict=True):
            fields = {_text(name): value for name, value in reply.items()}
            found[head.id] = _walk(_head(head.id, fields), fields, low, high)
    return [found[head.id] for head in heads]


def _walk(head: PartitionHead, fields: Mapping[str, bytes], low: int, high: int) -> Timeline:
    uids: dict[int, str] = {}
    deltas: dict[int, Segment] = {}
    at = head.opened
    while True:
        if at.version <= high:
            uids[at.version] = at.uid
        raw = fields.get(_delta_field(at)) if at.version > max(low, head.floor) else None
        if raw is None:
            return Timeline(head, at.version, uids, deltas)
        delta = _delta_field(at)
        segment = parse_segment(delta, _text(raw), _text(fields.get(_place_field(delta), b"")))
        if segment.entry.ref == EMPTY_UID and at.version > 1:
            # The store was loaded empty at a version that this partition never had.
            return Timeline(head, at.version, uids, deltas)
        if at.version <= high:
            deltas[at.version] = segment
        at = Pin(at.version - 1, segment.entry.ref)


def _delta_field(pin: Pin) -> str:
    return f"d:{pin.version}:{pin.uid}"


def _place_field(delta: str) -> str:
    """Returns the field with the place of a delta, whose ident is its field."""
    return f"a:{delta}"


def _named(names: Sequence[str], values: Sequence[bytes | None]) -> dict[str, bytes]:
    pairs = zip(names, values, strict=True)
    return {name: value for name, value in pairs if value is not None}


def _head(id_: PartitionId, fields: Mapping[str, bytes]) -> PartitionHead:
    format_number = fields.get("f")
    if format_number is None:
        return PartitionHead(id_, "", EMPTY, 0, written=False)
    if format_number not in FORMATS:
        answer = ["FORMAT", _text(format_number)]
        raise unserved(_WHAT, answer, where=str(id_), version=None)
    opened, floor = (text_number(_text(fields.get(name, b"0"))) for name in ("o", "w"))
    uid = _text(fields.get("ou", b"-"))
    if opened is None or floor is None or not (uid == EMPTY_UID or is_uid(uid)):
        raise FormatError(_WHAT, found="a field of the manifest is malformed", where=str(id_))
    return PartitionHead(id_, _text(fields.get("e", b"")), Pin(opened, uid), floor)


def _text(raw: bytes) -> str:
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError as error:
        raise FormatError(_WHAT, found="a field of the manifest is malformed") from error
