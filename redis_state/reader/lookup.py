"""Live reads of keys, from many partitions at once (docs/format.md, section 7)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.errors import FormatError, UnavailableError
from redis_state.format.bucketing import bucketing_hash
from redis_state.format.entry import Segment
from redis_state.format.header import FIELD, ORDERED_KINDS, Family, Header
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of, raw_bytes
from redis_state.format.segment import part_fields, read_header, read_rows
from redis_state.ids import PartitionId
from redis_state.protocol.opening import Opened, reopen
from redis_state.reader.block_cache import BlockCache, Place

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
    """What is known of one segment: its header, and the rows of fields that can hold the keys.

    Attributes:
        head: ``None`` as long as it was not read.
        keys: Those that can be in a field.
        rows: Of the fields that were read, and are there.
        wanted: Fields that are to be read next.
    """

    opened: Opened
    segment: Segment
    head: Header | None
    keys: dict[str, list[bytes]]
    rows: dict[str, Mapping[bytes, Value]]
    wanted: list[str]

    def place(self, name: str) -> Place:
        id_ = self.opened.id
        return id_.store.operator, id_.store.store, id_.partition, self.segment.ident, name


def look_up(
    client: Client, asked: Sequence[Asked], *, kind: str, cache: BlockCache | None = None
) -> Iterator[Found]:
    """The values of stored keys, partition by partition.

    One round trip, one more where a bucket has parts or the family is ordered, so that the header
    says where a key is; more where maintenance interferes; fewer for what the cache has.

    Raises:
        StateError: A published segment was destroyed.
        FormatError: Blocks are damaged.
    """
    wanted, blocks = list(asked), cache or BlockCache()
    for _ in range(_REOPENS_MAX):
        pieces = [_begun(opened, keys, kind, blocks) for opened, keys in wanted]
        every = [piece for of_partition in pieces for piece in of_partition]
        gone = _read(client, every, blocks)
        for piece in every:
            if piece.opened.id not in gone:
                _plan_rest(piece, wanted, kind, blocks)
        gone |= _read(client, [piece for piece in every if piece.opened.id not in gone], blocks)
        for (opened, keys), of_partition in zip(wanted, pieces, strict=True):
            if opened.id not in gone:
                yield _evaluate(opened, of_partition, keys)
        left = [one for one in wanted if one[0].id in gone]
        if not left:
            return
        again = reopen(client, [opened for opened, _ in left])
        wanted = [(opened, keys) for opened, (_, keys) in zip(again, left, strict=True)]
    raise UnavailableError(_WHAT, found="its segments were replaced again and again")


def _begun(opened: Opened, keys: Sequence[bytes], kind: str, cache: BlockCache) -> list[_Piece]:
    """The segments with the fields that are asked for first: headers, and the keys' buckets."""
    hashed = kind not in ORDERED_KINDS
    hashes = [(key, bucketing_hash(key, kind=kind)) for key in keys] if hashed else []
    found = []
    for segment in opened.segments:
        piece = _Piece(opened, segment, Header(), {}, {}, [])
        found.append(piece)
        if not segment.entry.blocks:
            continue
        if segment.entry.header:
            piece.head = cache.head(piece.place(FIELD))
            if piece.head is None:
                piece.wanted.append(FIELD)
        last = segment.entry.buckets - 1
        for key, hash_ in hashes:
            piece.keys.setdefault(str(hash_ & last), []).append(key)
        if hashed:
            _want(piece, list(piece.keys), cache)
    return found


def _want(piece: _Piece, names: Sequence[str], cache: BlockCache) -> None:
    """Take the fields that are known, and have the others read."""
    for name in names:
        rows = cache.rows(piece.place(name))
        if rows is None:
            piece.wanted.append(name)
        else:
            piece.rows[name] = rows


def _plan_rest(piece: _Piece, asked: Sequence[Asked], kind: str, cache: BlockCache) -> None:
    """The fields that only the header knows of: parts of buckets, blocks of ordered families."""
    head = piece.head
    assert head is not None
    if kind in ORDERED_KINDS:
        keys = next(keys for opened, keys in asked if opened.id == piece.opened.id)
        for key in keys:
            for name in _block_with(head, key):
                piece.keys.setdefault(name, []).append(key)
        _want(piece, list(piece.keys), cache)
        return
    if not head.parts:
        return
    for name, of_bucket in list(piece.keys.items()):
        names = part_fields(int(name), head.parts.get(int(name), 1))[1:]
        piece.keys.update(dict.fromkeys(names, of_bucket))
        _want(piece, names, cache)


def _block_with(head: Header, key: bytes) -> list[str]:
    """The field of the ordered block in which a key can be, if there is one."""
    family = family_of(key)
    number = bisect_right(head.ordered.get(family, ()), key) - 1
    return [] if number < 0 else [f"{family}/{number}"]


def _read(client: Client, pieces: Sequence[_Piece], cache: BlockCache) -> set[PartitionId]:
    """Read what is wanted; the partitions of which a segment is not whole any more."""
    reading = [piece for piece in pieces if piece.wanted]
    commands: list[Command] = []
    for piece in reading:
        key = piece.opened.key(piece.segment)
        commands += [("HMGET", key, *piece.wanted), ("HLEN", key)]
    replies = client.call(_WHAT, commands) if commands else []
    gone: set[PartitionId] = set()
    for piece, values, count in zip(reading, replies[::2], replies[1::2], strict=True):
        if count != piece.segment.entry.blocks:
            gone.add(piece.opened.id)
            continue
        names, piece.wanted = piece.wanted, []
        blocks = client.opened(piece.opened.key(piece.segment), names, values)
        for name, raw in zip(names, blocks, strict=True):
            _take(piece, name, raw, cache)
    return gone


def _take(piece: _Piece, name: str, raw: bytes | None, cache: BlockCache) -> None:
    if name == FIELD:
        piece.head = read_header(piece.segment, raw)
        cache.add_head(piece.place(name), piece.head)
    elif raw is not None:
        rows = dict(read_rows(piece.segment, name, raw))
        piece.rows[name] = rows
        cache.add_rows(piece.place(name), rows, sum(map(raw_bytes, rows.items())))
    elif not name.isdecimal():
        raise FormatError(
            f"reading {piece.segment.ident}", found="a part of a bucket, or a block, is missing"
        )
    else:
        # A bucket without rows has no field.
        cache.add_rows(piece.place(name), {}, 0)


def _evaluate(opened: Opened, pieces: Sequence[_Piece], keys: Sequence[bytes]) -> Found:
    families: tuple[Family, ...] | None = None
    values: dict[bytes, bytes] = {}
    tails: dict[bytes, bytes] = {}
    left = dict.fromkeys(keys)
    for piece in pieces:
        head = piece.head
        assert head is not None
        if families is None:
            families = head.families
        if not left:
            if families is not None:
                break
            continue
        for key, value in _said(piece, left).items():
            if isinstance(value, Appended):
                tails[key] = value.data + tails.get(key, b"")
                continue
            del left[key]
            if value is not None:
                values[key] = value
        for tombstone in head.tombstones:
            for key in [key for key in left if tombstone.family == family_of(key)]:
                if tombstone.covers(key[FAMILY_BYTES:]):
                    del left[key]
    if families is None and opened.segments:
        raise FormatError(_WHAT, found="no segment has a family table", where=str(opened.id))
    for key, tail in tails.items():
        values[key] = values.get(key, b"") + tail
    return Found(opened, values, families or ())


def _said(piece: _Piece, left: Container[bytes]) -> dict[bytes, Value]:
    """What a segment says of these keys; a later part of a bucket overrides an earlier one."""
    said: dict[bytes, Value] = {}
    for name, keys in piece.keys.items():
        rows = piece.rows.get(name)
        if rows:
            said.update((key, rows[key]) for key in keys if key in rows and key in left)
        elif name.isdecimal() and piece.head and piece.head.parts.get(int(name), 1) > 1:
            raise FormatError(f"reading {piece.segment.ident}", found="a bucket has no part 0")
    return said
