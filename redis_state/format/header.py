"""Field `h` of a segment: families, index, parts, tombstones (docs/format.md, section 4.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from redis_state.errors import FormatError
from redis_state.format.entry import BUCKETS_MAX
from redis_state.format.packing import ByteReader, Writer

FIELD = "h"
FAMILY_ID_MAX = (1 << 16) - 1
_ORDINAL_MAX = (1 << 31) - 1
_PARTS_MAX = 1 << 20
_FAMILY_PARTS = 8
_TTL_FAMILY_PARTS = 9
_MEMBERS = "fiopt"

KINDS = ("none", "prefix", "range", "ts-prefix", "ts-postfix")
ORDERED_KINDS = ("range", "ts-prefix")

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Family:
    """A column family.

    Attributes:
        id: 0 is the family ``default``; never reused in a lineage.
        kind: Spark's encoding of the keys, one of `KINDS`.
        params: ``prefix``: the number of prefix columns; ``range``: ordinals; else empty.
        key_schema: Spark's JSON text.
        value_schema: Spark's JSON text.
        ttl: True if rows have a time to live (docs/format.md, section 15).
    """

    id: int
    name: str
    kind: str
    params: tuple[int, ...]
    key_schema: str
    value_schema: str
    multi_value: bool = False
    internal: bool = False
    ttl: bool = False

    @property
    def ordered(self) -> bool:
        """True if rows are stored in blocks in key order."""
        return self.kind in ORDERED_KINDS

    @property
    def may_expire(self) -> bool:
        """True if the format allows a time to live for such a family."""
        return not (self.kind == "ts-prefix" or self.multi_value or self.internal)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Removes the keys of a family from `start` up to, not including, `end`; ``None`` is open."""

    family: int
    start: bytes | None = None
    end: bytes | None = None

    def covers(self, encoded: bytes) -> bool:
        """Returns whether the tombstone removes this encoded key of its family."""
        above = self.start is None or encoded >= self.start
        return above and (self.end is None or encoded < self.end)


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a segment; an empty one is not stored.

    Attributes:
        families: The family table of the version, or ``None`` if the segment does not change it.
        ordered: First stored keys of the blocks of each ordered family.
        parts: Number of parts of the buckets that have more than one.
        highest_id: Highest family id that the lineage ever had; set only if it is above all ids of
            the table, because that family was removed.
    """

    families: tuple[Family, ...] | None = None
    ordered: Mapping[int, tuple[bytes, ...]] = field(default_factory=dict)
    parts: Mapping[int, int] = field(default_factory=dict)
    tombstones: tuple[Tombstone, ...] = ()
    highest_id: int | None = None

    @property
    def empty(self) -> bool:
        """True if there is nothing to store."""
        return self.families is None and not (self.ordered or self.parts or self.tombstones)


def encode(header: Header) -> bytes:
    """Encodes the payload of field `h`."""
    out = Writer()
    present = (header.families is not None, header.highest_id is not None)
    out.map(sum(map(bool, (*present, header.ordered, header.parts, header.tombstones))))
    if header.families is not None:
        out.piece("f")
        out.array(len(header.families))
        for family in header.families:
            _write_family(out, family)
    if header.highest_id is not None:
        out.piece("i")
        out.piece(header.highest_id)
    if header.ordered:
        out.piece("o")
        out.array(len(header.ordered))
        for id_, keys in sorted(header.ordered.items()):
            out.array(2)
            out.piece(id_)
            out.array(len(keys))
            for key in keys:
                out.piece(key)
    if header.parts:
        out.piece("p")
        out.array(2 * len(header.parts))
        for bucket, count in sorted(header.parts.items()):
            out.piece(bucket)
            out.piece(count)
    if header.tombstones:
        out.piece("t")
        out.array(len(header.tombstones))
        for tombstone in header.tombstones:
            out.array(3)
            out.piece(tombstone.family)
            out.piece(tombstone.start)
            out.piece(tombstone.end)
    return out.result()


def _write_family(out: Writer, family: Family) -> None:
    out.array(_TTL_FAMILY_PARTS if family.ttl else _FAMILY_PARTS)
    out.piece(family.id)
    out.piece(family.name)
    out.piece(family.kind)
    out.array(len(family.params))
    for number in family.params:
        out.piece(number)
    out.piece(family.key_schema)
    out.piece(family.value_schema)
    out.piece(family.multi_value)
    out.piece(family.internal)
    if family.ttl:
        out.piece(True)


def decode(payload: bytes) -> Header:
    """Decodes a header.

    Raises:
        FormatError: The bytes violate the format.
    """
    reader = ByteReader(payload, "a header")
    families: tuple[Family, ...] | None = None
    ordered: dict[int, tuple[bytes, ...]] = {}
    parts: dict[int, int] = {}
    tombstones: tuple[Tombstone, ...] = ()
    highest_id: int | None = None
    last = -1
    for _ in range(reader.map_size()):
        name = reader.text()
        place = _MEMBERS.find(name) if len(name) == 1 else -1
        if place <= last:
            raise reader.bad("a member is unknown or out of order")
        last = place
        if name == "f":
            families = _many(reader, _read_family)
        elif name == "i":
            highest_id = reader.number(maximum=FAMILY_ID_MAX)
        elif name == "o":
            ordered = _unique(reader, _many(reader, _read_index), "an index")
        elif name == "p":
            parts = _read_parts(reader)
        else:
            tombstones = _many(reader, _read_tombstone)
    reader.end()
    if families is not None:
        _unique(reader, [(family.id, family) for family in families], "a family")
        _unique(reader, [(family.name, family) for family in families], "a family")
    _check_highest(reader, families, highest_id)
    return Header(families, ordered, parts, tombstones, highest_id)


def _check_highest(
    reader: ByteReader, families: tuple[Family, ...] | None, highest_id: int | None
) -> None:
    if highest_id is not None and (
        families is None or any(family.id >= highest_id for family in families)
    ):
        raise reader.bad("the highest family id is not above those of a family table")


def _many(reader: ByteReader, read: Callable[[ByteReader], T]) -> tuple[T, ...]:
    return tuple(read(reader) for _ in range(reader.array_size()))


def _unique(
    reader: ByteReader, pairs: tuple[tuple[K, T], ...] | list[tuple[K, T]], what: str
) -> dict[K, T]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise reader.bad(f"{what} occurs twice")
    return found


def _expect(reader: ByteReader, size: int) -> None:
    if reader.array_size() != size:
        raise reader.bad(f"an array of {size} was expected")


def _read_family(reader: ByteReader) -> Family:
    parts = reader.array_size()
    if parts not in (_FAMILY_PARTS, _TTL_FAMILY_PARTS):
        raise reader.bad(f"an array of {_FAMILY_PARTS} or {_TTL_FAMILY_PARTS} was expected")
    id_ = reader.number(maximum=FAMILY_ID_MAX)
    name, kind = reader.text(), reader.text()
    if kind not in KINDS:
        raise reader.bad("an encoder kind is unknown to this release")
    params = _many(reader, lambda r: r.number(maximum=_ORDINAL_MAX))
    if kind == "prefix" and len(params) != 1:
        raise reader.bad("a prefix family does not state the number of its prefix columns")
    schemas, truths = (reader.text(), reader.text()), (reader.truth(), reader.truth())
    has_ttl = parts == _TTL_FAMILY_PARTS
    if has_ttl and not reader.truth():
        raise reader.bad("the time to live of a family is there, but not true")
    family = Family(id_, name, kind, params, *schemas, *truths, has_ttl)
    if has_ttl and not family.may_expire:
        raise reader.bad("a family of this kind cannot have a time to live")
    return family


def _read_index(reader: ByteReader) -> tuple[int, tuple[bytes, ...]]:
    _expect(reader, 2)
    id_ = reader.number(maximum=FAMILY_ID_MAX)
    keys = _many(reader, ByteReader.binary)
    if any(one >= other for one, other in pairwise(keys)):
        raise reader.bad("the first keys of the blocks are not in ascending order")
    return id_, keys


def _read_parts(reader: ByteReader) -> dict[int, int]:
    size = reader.array_size()
    if size % 2:
        raise reader.bad("a bucket has no number of parts")
    parts: dict[int, int] = {}
    last = -1
    for _ in range(size // 2):
        bucket = reader.number(maximum=BUCKETS_MAX - 1)
        count = reader.number(maximum=_PARTS_MAX)
        if bucket <= last or count < 2:
            raise reader.bad("the buckets with parts are not in order, or one has no second part")
        parts[bucket] = count
        last = bucket
    return parts


def _read_tombstone(reader: ByteReader) -> Tombstone:
    _expect(reader, 3)
    id_ = reader.number(maximum=FAMILY_ID_MAX)
    return Tombstone(id_, reader.binary_or_nil(), reader.binary_or_nil())


def highest_after(before: int, families: Sequence[Family] | None, highest_id: int | None) -> int:
    """Returns the highest family id that a lineage ever had, after a segment with this header."""
    if families is None:
        return before
    if highest_id is not None:
        return highest_id
    return max((family.id for family in families), default=0)


def family_table(families: tuple[Family, ...]) -> dict[int, Family]:
    """Returns families by id.

    Raises:
        FormatError: An id occurs twice.
    """
    table = {family.id: family for family in families}
    if len(table) != len(families):
        raise FormatError("reading a family table", found="a family occurs twice")
    return table
