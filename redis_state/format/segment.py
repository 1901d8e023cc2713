"""Whole segments: rows to the fields of a hash and back (docs/format.md, section 4)."""

from __future__ import annotations

import re
import zlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from redis_state.errors import FormatError
from redis_state.format import block, header, rows
from redis_state.format.bucketing import BYTES_A_BUCKET, ROWS_A_BUCKET, bucket_of, buckets_for
from redis_state.format.entry import Entry, Segment
from redis_state.format.header import Family, Header, Tombstone
from redis_state.format.rows import KeyedValue, Value

PART_BYTES_MAX = 64 << 10
OWN_PART_BYTES = 1 << 20
_NUMBER = r"(0|[1-9][0-9]{0,9})"
_BUCKET_FIELD = re.compile(rf"{_NUMBER}(?:\.([1-9][0-9]{{0,9}}))?")
_ORDERED_FIELD = re.compile(rf"{_NUMBER}/{_NUMBER}")


def checksum(fields: Mapping[str, bytes]) -> int:
    """Computes the checksum of a segment (section 4.6).

    Raises:
        FormatError: A block is shorter than its header.
    """
    return combined_checksum({name: block.check_bytes(raw) for name, raw in fields.items()})


def combined_checksum(checks: Mapping[str, bytes]) -> int:
    """Computes the checksum of a segment from the check bytes of its blocks."""
    crc = 0
    for name in sorted(checks):
        crc = zlib.crc32(name.encode("ascii") + b"\0" + checks[name], crc)
    return crc


@dataclass(frozen=True, slots=True)
class SegmentContent:
    """Decoded content of a segment.

    Attributes:
        rows: Put, appended or removed values by stored key.
        highest_id: `Header.highest_id`.
    """

    rows: Mapping[bytes, Value]
    families: tuple[Family, ...] | None = None
    tombstones: tuple[Tombstone, ...] = ()
    highest_id: int | None = None


@dataclass(slots=True)
class SegmentWriter:
    """Encodes rows as the fields of a segment's hash.

    Args:
        ident: Part of the segment's key after ``P:``.
        families: The family table of the version, which decides the bucket or block of each row.
        buckets: A power of two; ``None`` chooses it by the rows.
        compress: `compress` of `block.encode`.
    """

    ident: str
    families: Sequence[Family]
    buckets: int | None = None
    compress: bool = True
    fields: dict[str, bytes] = field(default_factory=dict)
    _heads: dict[str, bytes] = field(default_factory=dict)
    _bytes: int = 0
    _parts: dict[int, int] = field(default_factory=dict)
    _ordered: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    _rows: int = 0

    def add(self, content: Mapping[bytes, Value]) -> None:
        """Adds rows; a bucket that already has rows gets further parts.

        Raises:
            FormatError: A row belongs to no family of the table, or a family of ordered rows is
                added twice.
            LimitError: A key or value is too large.
        """
        table = header.family_table(tuple(self.families))
        hashed: list[KeyedValue] = []
        ordered: dict[int, list[KeyedValue]] = {}
        for row in rows.sorted_rows(content):
            family = table.get(rows.family_of(row[0]))
            if family is None:
                raise FormatError(f"writing {self.ident}", found="a row belongs to no family")
            (ordered.setdefault(family.id, []) if family.ordered else hashed).append(row)
        if self.buckets is None:
            self.buckets = buckets_for(len(hashed), sum(map(rows.raw_bytes, hashed)))
        grouped: dict[int, list[KeyedValue]] = {}
        for row in hashed:
            kind = table[rows.family_of(row[0])].kind
            grouped.setdefault(bucket_of(row[0], kind=kind, buckets=self.buckets), []).append(row)
        for bucket, of_bucket in sorted(grouped.items()):
            for part in _cut(of_bucket, rows_max=None, bytes_max=PART_BYTES_MAX):
                index = self._parts.get(bucket, 0)
                self._parts[bucket] = index + 1
                self._emit(f"{bucket}.{index}" if index else str(bucket), rows.encode(part))
        for id_, of_family in ordered.items():
            for _ in self.add_ordered(id_, of_family):
                pass
        self._rows += len(hashed)

    def add_ordered(self, family: int, of_family: Iterable[KeyedValue]) -> Iterator[None]:
        """Adds all rows of an ordered family, given in key order, block by block.

        Yields:
            After each block, when `drain` may be called.

        Raises:
            FormatError: The family is added twice, or its rows are not in key order.
            LimitError: A key or value is too large.
        """
        blocks = self.begin_ordered(family)
        for part in _cut(of_family, rows_max=ROWS_A_BUCKET, bytes_max=BYTES_A_BUCKET):
            blocks.emit(part)
            yield
        blocks.end()

    def begin_ordered(self, family: int) -> OrderedBlocks:
        """Starts the blocks of an ordered family; other families may be written meanwhile.

        Raises:
            FormatError: The family is added twice.
        """
        if family in self._ordered:
            raise FormatError(f"writing {self.ident}", found="a family is written twice")
        return OrderedBlocks(self, family)

    def drain(self) -> dict[str, bytes]:
        """Returns and releases the fields written so far."""
        drained, self.fields = self.fields, {}
        return drained

    def finish(
        self,
        *,
        ref: str,
        live: int,
        complete: bool = False,
        with_families: bool = False,
        tombstones: Sequence[Tombstone] = (),
        internal: int = 0,
        highest_id: int = 0,
        time: int = 0,
    ) -> Entry:
        """Ends the segment: adds its header if needed, and returns its entry.

        Args:
            internal: Number of live keys in internal families.
            highest_id: Highest family id that the lineage ever had.
            time: Time of the version in seconds since 1970; 0 if no family has a time to live.
        """
        gone = with_families and all(family.id < highest_id for family in self.families)
        head = Header(
            families=tuple(self.families) if with_families else None,
            ordered=self._ordered,
            parts={bucket: count for bucket, count in self._parts.items() if count > 1},
            tombstones=tuple(tombstones),
            highest_id=highest_id if gone else None,
        )
        if not head.empty:
            self._emit(header.FIELD, header.encode(head))
        return Entry(
            ref,
            rows=self._rows,
            live=live,
            blocks=len(self._heads),
            bytes=self._bytes,
            buckets=self.buckets or 1,
            checksum=checksum(self._heads),
            complete=complete,
            header=not head.empty,
            internal=internal,
            time=time,
        )

    def _emit(self, name: str, payload: bytes) -> None:
        encoded = block.encode(self.ident, name, payload, compress=self.compress)
        self.fields[name] = encoded
        self._heads[name] = encoded[: block.HEADER_BYTES]
        self._bytes += len(encoded)


@dataclass(slots=True)
class OrderedBlocks:
    """Collects the rows of one ordered family into blocks."""

    _writer: SegmentWriter
    _family: int
    _firsts: list[bytes] = field(default_factory=list)
    _before: bytes = b""
    _part: list[KeyedValue] = field(default_factory=list)
    _size: int = 0

    def put(self, row: KeyedValue) -> None:
        """Adds the next row; cuts blocks as `SegmentWriter.add_ordered` does.

        Raises:
            FormatError: Rows are not in key order.
            LimitError: A key or value is too large.
        """
        own = rows.raw_bytes(row)
        full = self._size + own > BYTES_A_BUCKET or len(self._part) == ROWS_A_BUCKET
        if self._part and (full or own > OWN_PART_BYTES):
            self.emit(self._part)
            self._part, self._size = [], 0
        self._part.append(row)
        self._size += own

    def emit(self, part: Sequence[KeyedValue]) -> None:
        """Adds a block of these rows.

        Raises:
            FormatError: Rows are not in key order.
            LimitError: A key or value is too large.
        """
        writer = self._writer
        if part[0][0] <= self._before:
            raise FormatError(f"writing {writer.ident}", found="rows are not in key order")
        self._before = part[-1][0]
        writer._emit(f"{self._family}/{len(self._firsts)}", rows.encode(part))
        self._firsts.append(part[0][0])
        writer._rows += len(part)

    def end(self) -> None:
        """Adds the remaining rows. Nothing may follow."""
        if self._part:
            self.emit(self._part)
            self._part = []
        if self._firsts:
            self._writer._ordered[self._family] = tuple(self._firsts)


def _cut(
    all_rows: Iterable[KeyedValue], *, rows_max: int | None, bytes_max: int
) -> Iterator[list[KeyedValue]]:
    part: list[KeyedValue] = []
    size = 0
    for row in all_rows:
        own = rows.raw_bytes(row)
        full = size + own > bytes_max or len(part) == rows_max
        if part and (full or own > OWN_PART_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += own
    if part:
        yield part


def part_fields(bucket: int, parts: int) -> list[str]:
    """Returns the fields of a bucket, in the order in which they apply."""
    return [str(bucket), *(f"{bucket}.{part}" for part in range(1, parts))]


def block_number(head: Header, key: bytes) -> int:
    """Returns the number of the ordered block that can hold a stored key; -1 if no block can."""
    return bisect_right(head.ordered.get(rows.family_of(key), ()), key) - 1


def block_field(head: Header, key: bytes) -> str | None:
    """Returns the field of the ordered block that can hold a stored key; ``None`` if none can."""
    number = block_number(head, key)
    return None if number < 0 else f"{rows.family_of(key)}/{number}"


def read_header(segment: Segment, raw: bytes | None) -> Header:
    """Decodes the header of a segment from its field `h`, which exists if the entry says so.

    Raises:
        FormatError: The header is missing or damaged.
    """
    if not segment.entry.header:
        return Header()
    if raw is None:
        raise FormatError(f"reading {segment.ident}", found="its header is missing")
    head = header.decode(block.decode(segment.ident, header.FIELD, raw))
    if head.empty:
        raise FormatError(f"reading {segment.ident}", found="its header is empty")
    if segment.snapshot and (head.families is None or head.tombstones):
        raise FormatError(
            f"reading {segment.ident}", found="a snapshot has no family table, or has tombstones"
        )
    if head.families is not None:
        check_time(segment, head.families)
    return head


def check_time(segment: Segment, families: Iterable[Family]) -> None:
    """Checks that a segment's version has a time if and only if one of its families needs it.

    Args:
        families: The family table of the segment's version.

    Raises:
        FormatError: The table and the entry differ.
    """
    if any(family.ttl for family in families) != bool(segment.entry.time):
        raise FormatError(
            f"reading {segment.ident}",
            found="its entry and its families differ in whether rows have a time to live",
        )


def check_ttl_kept(segment: Segment, below: Iterable[Family], above: Iterable[Family]) -> None:
    """Checks that no family gets or loses a time to live in a delta that is not complete.

    Args:
        below: The family table of the version below.
        above: The family table of the segment's version.

    Raises:
        FormatError: The rows of the version below have no expiry, or have one too many.
    """
    before = {family.id: family.ttl for family in below}
    if any(before.get(family.id, family.ttl) != family.ttl for family in above):
        raise FormatError(
            f"applying {segment.ident}",
            found="a family gets or loses a time to live, but the delta is not complete",
        )


def read_table(segment: Segment, name: str, raw: bytes) -> dict[bytes, Value]:
    """Decodes the changes in one field, by key.

    Raises:
        FormatError: The field is damaged, or a snapshot removes or appends.
    """
    return table_of(segment, name, read_payload(segment, name, raw))


def read_payload(segment: Segment, name: str, raw: bytes) -> bytes:
    """Decodes the payload of one field, for `table_of` and `some_of`.

    Raises:
        FormatError: The block is damaged.
    """
    return block.decode(segment.ident, name, raw)


def table_of(segment: Segment, name: str, payload: bytes) -> dict[bytes, Value]:
    """Decodes the changes in a field's payload, by key.

    Raises:
        FormatError: The rows are malformed, or a snapshot removes or appends.
    """
    keys, values = rows.columns(payload)
    if segment.snapshot and not set(map(type, values)) <= {bytes}:
        raise FormatError(
            f"reading field {name} of {segment.ident}", found="a snapshot removes or appends"
        )
    return dict(zip(keys, values, strict=True))


def some_of(
    segment: Segment, name: str, payload: bytes, wanted: Collection[bytes]
) -> Mapping[bytes, Value]:
    """Decodes the changes of some keys in a field's payload, often without decoding other rows.

    Raises:
        FormatError: The rows are malformed, or a snapshot removes or appends.
    """
    found = rows.find(payload, wanted)
    if found is not None:
        return found
    table = table_of(segment, name, payload)
    return {key: table[key] for key in wanted if key in table}


def field_names(segment: Segment, head: Header) -> Iterator[str]:
    """Yields all possible fields of a segment except `h`, in the order in which they apply."""
    for bucket in range(segment.entry.buckets):
        yield from part_fields(bucket, head.parts.get(bucket, 1))
    for id_, keys in head.ordered.items():
        yield from (f"{id_}/{index}" for index in range(len(keys)))


def read_segment(segment: Segment, fields: Mapping[str, bytes]) -> SegmentContent:
    """Decodes all fields of a segment, and compares them with its entry.

    Raises:
        FormatError: The fields violate the format, or differ from the entry.
    """
    entry = segment.entry
    what = f"reading {segment.ident}"
    if len(fields) != entry.blocks:
        raise FormatError(what, found=f"{len(fields)} of {entry.blocks} fields are there")
    size = sum(map(len, fields.values()))
    if size != entry.bytes:
        raise FormatError(what, found=f"its blocks have {size} bytes, not {entry.bytes}")
    _check_names(what, fields)
    if checksum(fields) != entry.checksum:
        raise FormatError(what, found="the checksum does not match")
    if not entry.header and header.FIELD in fields:
        raise FormatError(what, found="it has a header that its entry does not name")
    head = read_header(segment, fields.get(header.FIELD))
    found: dict[bytes, Value] = {}
    count = 0
    for name in sorted(fields, key=_order):
        if name == header.FIELD:
            continue
        part = read_table(segment, name, fields[name])
        _check_place(segment, head, name, part)
        count += len(part)
        found.update(part)
    if count != entry.rows:
        raise FormatError(what, found=f"it has {count} rows, not {entry.rows}")
    return SegmentContent(found, head.families, head.tombstones, head.highest_id)


def _check_names(what: str, fields: Mapping[str, bytes]) -> None:
    for name in fields:
        known = name == header.FIELD or _BUCKET_FIELD.fullmatch(name)
        if not known and not _ORDERED_FIELD.fullmatch(name):
            raise FormatError(what, found="a field has a name that the format does not know")


def _order(name: str) -> tuple[int, int, int]:
    """Sort key that puts the parts of a bucket in ascending order."""
    if name == header.FIELD:
        return (2, 0, 0)
    first, separator, second = name.partition("/" if "/" in name else ".")
    return (1 if separator == "/" else 0, int(first), int(second or 0))


def _check_place(segment: Segment, head: Header, name: str, part: Iterable[bytes]) -> None:
    """Checks that rows are where point reads search for them; elsewhere they would seem absent."""
    kind, number, index = _order(name)
    what = f"reading field {name} of {segment.ident}"
    if kind == 0:
        if number >= segment.entry.buckets or index >= head.parts.get(number, 1):
            raise FormatError(what, found="neither the entry nor the header lists such a field")
        return
    keys = head.ordered.get(number, ())
    if index >= len(keys):
        raise FormatError(what, found="the header lists no such field")
    end = keys[index + 1] if index + 1 < len(keys) else None
    for key in part:
        if rows.family_of(key) != number or key < keys[index] or (end is not None and key >= end):
            raise FormatError(what, found="a key lies outside the block's range")
