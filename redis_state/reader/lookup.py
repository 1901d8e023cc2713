"""Live reads of one key, from many partitions at once (docs/format.md, section 7)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.errors import FormatError, UnavailableError
from redis_state.format.bucketing import bucket_of
from redis_state.format.entry import Segment
from redis_state.format.header import FIELD, ORDERED_KINDS, Family, Header
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of
from redis_state.format.segment import part_fields, read_header, read_rows_near
from redis_state.protocol.opening import Opened, reopen

_REOPENS_MAX = 5
_WHAT = "reading a key"


@dataclass(frozen=True, slots=True)
class Found:
    """What one partition says of a key.

    Attributes:
        value: ``None`` if the key is absent.
        families: The family table of the version.
    """

    opened: Opened
    value: bytes | None
    families: tuple[Family, ...]


@dataclass(slots=True)
class _Piece:
    """What was fetched of one segment: its header, and the fields that can hold the key."""

    head: Header
    fields: dict[str, bytes]
    missing: list[str]


def look_up(
    client: Client, partitions: Sequence[Opened], key: bytes, *, kind: str
) -> Iterator[Found]:
    """The value of a stored key in each of the partitions, decoded as it is asked for.

    One round trip, one more where a bucket has parts or the family is ordered, so that the header
    says where a key is; more where maintenance interferes.

    Raises:
        StateError: A published segment was destroyed.
        FormatError: Blocks are damaged.
    """
    wanted = list(partitions)
    for _ in range(_REOPENS_MAX):
        pieces = _fetch(client, wanted, key, kind)
        _fetch_parts(client, pieces, wanted)
        gone: list[Opened] = []
        for opened, of_partition in zip(wanted, pieces, strict=True):
            if of_partition is None:
                gone.append(opened)
            else:
                yield _evaluate(opened, of_partition, key)
        if not gone:
            return
        wanted = reopen(client, gone)
    raise UnavailableError(_WHAT, found="its segments were replaced again and again")


def _fetch(
    client: Client, wanted: Sequence[Opened], key: bytes, kind: str
) -> list[list[_Piece] | None]:
    commands: list[Command] = []
    for opened in wanted:
        for segment in opened.segments:
            if segment.entry.blocks:
                redis_key = opened.key(segment)
                commands.append(("HMGET", redis_key, *_names(segment, key, kind)))
                commands.append(("HLEN", redis_key))
    replies = iter(client.call(_WHAT, commands) if commands else ())
    result: list[list[_Piece] | None] = []
    for opened in wanted:
        # Every reply is taken, so that those of the next partition stay in step.
        taken = [
            (segment, next(replies), next(replies))
            for segment in opened.segments
            if segment.entry.blocks
        ]
        if any(count != segment.entry.blocks for segment, _, count in taken):
            result.append(None)
            continue
        by_segment = {
            segment.ident: client.opened(opened.key(segment), _names(segment, key, kind), values)
            for segment, values, _ in taken
        }
        result.append(
            [
                _piece(segment, by_segment.get(segment.ident), key, kind)
                for segment in opened.segments
            ]
        )
    return result


def _names(segment: Segment, key: bytes, kind: str) -> list[str]:
    """The fields that are asked for first: the header if there is one, and the key's bucket."""
    names = [FIELD] if segment.entry.header else []
    if kind not in ORDERED_KINDS:
        names.append(str(bucket_of(key, kind=kind, buckets=segment.entry.buckets)))
    # There is no HMGET of nothing.
    return names or [FIELD]


def _piece(segment: Segment, values: list[bytes | None] | None, key: bytes, kind: str) -> _Piece:
    if values is None:
        return _Piece(Header(), {}, [])
    head = read_header(segment, values[0] if segment.entry.header else None)
    if kind in ORDERED_KINDS:
        return _Piece(head, {}, _block_with(head, key))
    bucket = bucket_of(key, kind=kind, buckets=segment.entry.buckets)
    names = part_fields(bucket, head.parts.get(bucket, 1))
    if values[-1] is None:
        if len(names) > 1:
            raise FormatError(f"reading {segment.ident}", found="a bucket has no part 0")
        return _Piece(head, {}, [])
    return _Piece(head, {names[0]: values[-1]}, names[1:])


def _block_with(head: Header, key: bytes) -> list[str]:
    """The field of the ordered block in which a key can be, if there is one."""
    family = family_of(key)
    number = bisect_right(head.ordered.get(family, ()), key) - 1
    return [] if number < 0 else [f"{family}/{number}"]


def _fetch_parts(
    client: Client, pieces: list[list[_Piece] | None], wanted: Sequence[Opened]
) -> None:
    places = [
        (index, opened, segment, piece)
        for index, (opened, of_partition) in enumerate(zip(wanted, pieces, strict=True))
        if of_partition is not None
        for segment, piece in zip(opened.segments, of_partition, strict=True)
        if piece.missing
    ]
    if not places:
        return
    commands: list[Command] = []
    for _, opened, segment, piece in places:
        commands.append(("HMGET", opened.key(segment), *piece.missing))
        commands.append(("HLEN", opened.key(segment)))
    replies = client.call(_WHAT, commands)
    for place, values, count in zip(places, replies[::2], replies[1::2], strict=True):
        index, opened, segment, piece = place
        if count != segment.entry.blocks:
            pieces[index] = None
        elif any(value is None for value in values):
            raise FormatError(
                f"reading {segment.ident}", found="a part of a bucket, or a block, is missing"
            )
        else:
            blocks = client.opened(opened.key(segment), piece.missing, values)
            named = zip(piece.missing, blocks, strict=True)
            piece.fields.update({name: block for name, block in named if block is not None})


def _evaluate(opened: Opened, pieces: Sequence[_Piece], key: bytes) -> Found:
    families: tuple[Family, ...] | None = None
    value: Value = None
    tail = b""
    decided = False
    for segment, piece in zip(opened.segments, pieces, strict=True):
        if families is None:
            families = piece.head.families
        if decided:
            continue
        rows = _rows(segment, piece.fields, key)
        said = key in rows
        value = rows.get(key)
        if isinstance(value, Appended):
            tail, said = value.data + tail, False
        decided = said or any(
            tombstone.family == family_of(key) and tombstone.covers(key[FAMILY_BYTES:])
            for tombstone in piece.head.tombstones
        )
    if families is None and opened.segments:
        raise FormatError(_WHAT, found="no segment has a family table", where=str(opened.id))
    whole = value if isinstance(value, bytes) else None
    if tail:
        whole = (whole or b"") + tail
    return Found(opened, whole, families or ())


def _rows(segment: Segment, fields: Mapping[str, bytes], key: bytes) -> dict[bytes, Value]:
    rows: dict[bytes, Value] = {}
    for name, raw in fields.items():
        rows.update(read_rows_near(segment, name, raw, key=key))
    return rows
