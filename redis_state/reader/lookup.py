"""Live reads of keys, from many partitions at once (docs/format.md, section 7)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
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

Asked = tuple[Opened, Sequence[bytes]]
"""A partition and the stored keys that are looked up in it, of one family."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one partition says of keys.

    Attributes:
        values: Of the keys that are there.
        families: The family table of the version.
    """

    opened: Opened
    values: Mapping[bytes, bytes]
    families: tuple[Family, ...]


@dataclass(slots=True)
class _Piece:
    """What was fetched of one segment: its header, and the fields that can hold the keys.

    Attributes:
        keys: Those that can be in a field.
        missing: Fields that only the header knew of.
    """

    head: Header
    fields: dict[str, bytes]
    keys: dict[str, list[bytes]]
    missing: list[str]


def look_up(client: Client, asked: Sequence[Asked], *, kind: str) -> Iterator[Found]:
    """The values of stored keys, partition by partition, decoded as they are asked for.

    One round trip, one more where a bucket has parts or the family is ordered, so that the header
    says where a key is; more where maintenance interferes.

    Raises:
        StateError: A published segment was destroyed.
        FormatError: Blocks are damaged.
    """
    wanted = list(asked)
    for _ in range(_REOPENS_MAX):
        pieces = _fetch(client, wanted, kind)
        _fetch_parts(client, pieces, wanted)
        gone: list[Asked] = []
        for (opened, keys), of_partition in zip(wanted, pieces, strict=True):
            if of_partition is None:
                gone.append((opened, keys))
            else:
                yield _evaluate(opened, of_partition, keys)
        if not gone:
            return
        again = reopen(client, [opened for opened, _ in gone])
        wanted = [(opened, keys) for opened, (_, keys) in zip(again, gone, strict=True)]
    raise UnavailableError(_WHAT, found="its segments were replaced again and again")


def _fetch(client: Client, wanted: Sequence[Asked], kind: str) -> list[list[_Piece] | None]:
    commands: list[Command] = []
    plans: list[list[tuple[Segment, dict[str, list[bytes]]]]] = []
    for opened, keys in wanted:
        plan = []
        for segment in opened.segments:
            buckets = _buckets(segment, keys, kind) if segment.entry.blocks else {}
            plan.append((segment, buckets))
            if segment.entry.blocks:
                redis_key = opened.key(segment)
                commands.append(("HMGET", redis_key, *_names(segment, buckets)))
                commands.append(("HLEN", redis_key))
        plans.append(plan)
    replies = iter(client.call(_WHAT, commands) if commands else ())
    result: list[list[_Piece] | None] = []
    for (opened, keys), plan in zip(wanted, plans, strict=True):
        # Every reply is taken, so that those of the next partition stay in step.
        taken = [
            (segment, buckets, next(replies), next(replies)) if segment.entry.blocks else None
            for segment, buckets in plan
        ]
        if any(one is not None and one[3] != one[0].entry.blocks for one in taken):
            result.append(None)
            continue
        pieces = []
        for one in taken:
            if one is None:
                pieces.append(_Piece(Header(), {}, {}, []))
                continue
            segment, buckets, values, _ = one
            names = _names(segment, buckets)
            blocks = client.opened(opened.key(segment), names, values)
            found = dict(zip(names, blocks, strict=True))
            pieces.append(_piece(segment, found, buckets, keys, kind))
        result.append(pieces)
    return result


def _buckets(segment: Segment, keys: Iterable[bytes], kind: str) -> dict[str, list[bytes]]:
    """The keys by the field of their bucket; of an ordered family none, the header knows them."""
    found: dict[str, list[bytes]] = {}
    if kind not in ORDERED_KINDS:
        for key in keys:
            name = str(bucket_of(key, kind=kind, buckets=segment.entry.buckets))
            found.setdefault(name, []).append(key)
    return found


def _names(segment: Segment, buckets: Mapping[str, object]) -> list[str]:
    """The fields that are asked for first: the header if there is one, and the keys' buckets."""
    names = [FIELD] if segment.entry.header else []
    # There is no HMGET of nothing.
    return [*names, *buckets] or [FIELD]


def _piece(
    segment: Segment,
    found: Mapping[str, bytes | None],
    buckets: Mapping[str, list[bytes]],
    keys: Sequence[bytes],
    kind: str,
) -> _Piece:
    head = read_header(segment, found.get(FIELD))
    piece = _Piece(head, {}, {}, [])
    if kind in ORDERED_KINDS:
        for key in keys:
            for name in _block_with(head, key):
                piece.keys.setdefault(name, []).append(key)
        piece.missing = list(piece.keys)
        return piece
    for name, of_bucket in buckets.items():
        names = part_fields(int(name), head.parts.get(int(name), 1))
        raw = found[name]
        if raw is None and len(names) > 1:
            raise FormatError(f"reading {segment.ident}", found="a bucket has no part 0")
        if raw is not None:
            piece.fields[name] = raw
            piece.keys.update(dict.fromkeys(names, of_bucket))
            piece.missing += names[1:]
    return piece


def _block_with(head: Header, key: bytes) -> list[str]:
    """The field of the ordered block in which a key can be, if there is one."""
    family = family_of(key)
    number = bisect_right(head.ordered.get(family, ()), key) - 1
    return [] if number < 0 else [f"{family}/{number}"]


def _fetch_parts(
    client: Client, pieces: list[list[_Piece] | None], wanted: Sequence[Asked]
) -> None:
    places = [
        (index, opened, segment, piece)
        for index, ((opened, _), of_partition) in enumerate(zip(wanted, pieces, strict=True))
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


def _evaluate(opened: Opened, pieces: Sequence[_Piece], keys: Sequence[bytes]) -> Found:
    families: tuple[Family, ...] | None = None
    values: dict[bytes, bytes] = {}
    tails: dict[bytes, bytes] = {}
    left = dict.fromkeys(keys)
    for segment, piece in zip(opened.segments, pieces, strict=True):
        if families is None:
            families = piece.head.families
        if not left:
            if families is not None:
                break
            continue
        for key, value in _said(segment, piece, left).items():
            if isinstance(value, Appended):
                tails[key] = value.data + tails.get(key, b"")
                continue
            del left[key]
            if value is not None:
                values[key] = value
        for tombstone in piece.head.tombstones:
            for key in [key for key in left if tombstone.family == family_of(key)]:
                if tombstone.covers(key[FAMILY_BYTES:]):
                    del left[key]
    if families is None and opened.segments:
        raise FormatError(_WHAT, found="no segment has a family table", where=str(opened.id))
    for key, tail in tails.items():
        values[key] = values.get(key, b"") + tail
    return Found(opened, values, families or ())


def _said(segment: Segment, piece: _Piece, keys: Container[bytes]) -> dict[bytes, Value]:
    """What a segment says of these keys; a later part of a bucket overrides an earlier one."""
    said: dict[bytes, Value] = {}
    for name, raw in piece.fields.items():
        near = [key for key in piece.keys[name] if key in keys]
        if near:
            rows = read_rows_near(segment, name, raw, keys=near)
            said.update((key, value) for key, value in rows if key in keys)
    return said
