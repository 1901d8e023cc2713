"""Segments of ordered families, many rows at a time (docs/format.md, sections 4.4 and 10).

Reads and writes the same bytes as `segment`, which works row by row and supports hashed families
too; a test compares the two. Here a block is packed and unpacked in one call, and rows are not
checked one by one. This writes 200,000 rows in 40 ms instead of 100, and reads them in 30 ms
instead of 150. Each commit and each load of a Python store takes this path, so both modules stay.
"""

from __future__ import annotations

import operator
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]  # the package ships no types

from redis_state.errors import FormatError, InternalError
from redis_state.format import block, header
from redis_state.format.bucketing import BYTES_A_BUCKET, ROWS_A_BUCKET
from redis_state.format.entry import Entry, Segment
from redis_state.format.header import FAMILY_ID_MAX, Family, Header, Tombstone
from redis_state.format.packing import EXT_APPENDED
from redis_state.format.rows import Appended, Value, family_of, stored_key
from redis_state.format.segment import checksum

FAMILY_ID = 0
"""Family of a store that has only one."""

PREFIX = stored_key(FAMILY_ID, b"")
"""Prefix of every stored key of that family."""

_ROW_BYTES = 10

OrderedRows = Mapping[bytes, bytes | None]
"""Values by stored key; ``None`` means removed."""


_NONE: Final[dict[bytes, bytes]] = {}


class _IndexPackers(threading.local):
    def __init__(self) -> None:
        self.pack = msgpack.Packer(use_bin_type=True).pack


_packers = _IndexPackers()


@dataclass(frozen=True, slots=True)
class Written:
    """A segment, ready to be stored.

    Attributes:
        fields: Blocks by their names, the header included.
        raw_bytes: Approximate size of the rows before compression.
    """

    fields: dict[str, bytes]
    entry: Entry
    raw_bytes: int


def write(
    ident: str,
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    *,
    ref: str,
    live: int,
    families: Sequence[Family],
    highest_id: int = 0,
    with_families: bool = True,
    appended: Mapping[bytes, bytes | bytearray] = _NONE,
    cleared: Sequence[int] = (),
    complete: bool = False,
    internal: int = 0,
    time: int = 0,
) -> Written:
    """Encodes the segment of these rows.

    Args:
        keys: Stored keys in ascending order.
        values: The value of each key; ``None`` means removed.
        ref: `Entry.ref`.
        live: `Entry.live`.
        families: The family table of the version.
        highest_id: Highest family id that the lineage ever had.
        with_families: Writes the table into the header; false if the version below has the same.
        appended: New elements by key, for values that start in the version below.
        cleared: Families that are removed from the version below.
        complete: `Entry.complete`; a complete segment needs the table.
        internal: `Entry.internal`.
        time: `Entry.time`; then values of families with a time to live have their expiries.

    Raises:
        InternalError: The keys are not in ascending order, or one belongs to no family.
    """
    fields: dict[str, bytes] = {}
    index: dict[int, tuple[bytes, ...]] = {}
    raw_bytes, before = 0, b""
    for id_, start, end in _runs(keys):
        firsts: list[bytes] = []
        for first, payload in _payloads(keys, values, appended, range(start, end), before):
            name = f"{id_}/{len(firsts)}"
            fields[name] = block.encode(ident, name, payload)
            firsts.append(first)
            raw_bytes += len(payload)
        index[id_], before = tuple(firsts), keys[end - 1]
    if not {family.id for family in families}.issuperset(index):
        raise InternalError("writing rows", found="a row belongs to no family")
    gone = with_families and highest_id > max((family.id for family in families), default=0)
    head = Header(
        families=tuple(families) if with_families else None,
        ordered=index,
        tombstones=tuple(map(Tombstone, cleared)),
        highest_id=highest_id if gone else None,
    )
    if not head.empty:
        fields[header.FIELD] = block.encode(ident, header.FIELD, header.encode(head))
    entry = Entry(
        ref,
        rows=len(keys),
        live=live,
        blocks=len(fields),
        bytes=sum(map(len, fields.values())),
        buckets=1,
        checksum=checksum(fields),
        complete=complete,
        header=not head.empty,
        internal=internal,
        time=time,
    )
    return Written(fields, entry, raw_bytes)


def family_range(id_: int) -> tuple[bytes, bytes | None]:
    """Returns the first stored key of a family, and the exclusive end; ``None`` is open."""
    end = stored_key(id_ + 1, b"") if id_ < FAMILY_ID_MAX else None
    return stored_key(id_, b""), end


def _runs(keys: Sequence[bytes]) -> Iterator[tuple[int, int, int]]:
    """Yields each family that has rows, with the start and end of its keys."""
    start = 0
    while start < len(keys):
        id_ = family_of(keys[start])
        high = family_range(id_)[1]
        # Takes at least one key, so that the loop ends even if keys are out of order (checked
        # later).
        end = len(keys) if high is None else max(bisect_left(keys, high, start), start + 1)
        yield id_, start, end
        start = end


def _payloads(
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    appended: Mapping[bytes, bytes | bytearray],
    places: range,
    before: bytes,
) -> Iterator[tuple[bytes, bytes]]:
    """Yields first key and payload of each block: 128 rows or 16 KiB, whichever comes first."""
    for start in places[::ROWS_A_BUCKET]:
        end = min(start + ROWS_A_BUCKET, places.stop)
        part = keys[start:end]
        # A reader would reject unordered rows, but only after the commit was reported as done.
        if not (before < part[0] and all(map(operator.lt, part, part[1:]))):
            raise InternalError("writing rows", found="their keys are not in ascending order")
        before = part[-1]
        some: Sequence[Any] = values[start:end]
        if appended:
            some = _ends(part, some, appended)
        payload = _packed(part, some)
        if len(payload) <= BYTES_A_BUCKET:
            yield part[0], payload
        else:
            for low, high in _cuts(part, some):
                yield part[low], _packed(part[low:high], some[low:high])


def _packed(keys: Sequence[bytes], values: Sequence[Any]) -> bytes:
    flat: list[Any] = [None] * (2 * len(keys))
    flat[::2] = keys
    flat[1::2] = values
    payload: bytes = _packers.pack(flat)
    return payload


def _ends(
    keys: Sequence[bytes], values: Sequence[Any], appended: Mapping[bytes, bytes | bytearray]
) -> list[Any]:
    return [
        msgpack.ExtType(EXT_APPENDED, bytes(appended[key])) if key in appended else value
        for key, value in zip(keys, values, strict=True)
    ]


def _cuts(keys: Sequence[bytes], values: Sequence[Any]) -> Iterator[tuple[int, int]]:
    first, size = 0, 0
    for at, (key, value) in enumerate(zip(keys, values, strict=True)):
        data = value.data if type(value) is msgpack.ExtType else value or b""
        own = len(key) + len(data) + _ROW_BYTES
        if at > first and size + own > BYTES_A_BUCKET:
            yield first, at
            first, size = at, 0
        size += own
    yield first, len(keys)


@dataclass(frozen=True, slots=True)
class Index:
    """Header and block index of a segment. Blocks are numbered over all families.

    Attributes:
        firsts: The first stored key of each block, in ascending order.
        ids: The families that have blocks, in ascending order.
        starts: Number of the first block of each family.
    """

    firsts: tuple[bytes, ...]
    ids: tuple[int, ...]
    starts: tuple[int, ...]
    head: Header

    def family_id(self, number: int) -> int:
        """Returns the family of a block."""
        return self.ids[bisect_right(self.starts, number) - 1]

    def name(self, number: int) -> str:
        """Returns the field of a block."""
        at = bisect_right(self.starts, number) - 1
        return f"{self.ids[at]}/{number - self.starts[at]}"

    def names(self) -> list[str]:
        """Returns the fields of all blocks, in order."""
        bounds = pairwise((*self.starts, len(self.firsts)))
        return [
            f"{id_}/{at}"
            for id_, (start, end) in zip(self.ids, bounds, strict=True)
            for at in range(end - start)
        ]


def likely_names(segment: Segment, families: Sequence[Family]) -> list[str]:
    """Guesses the block names of a segment without its header; empty if there is no guess.

    Wrong only for the segment that added a second family.
    """
    if [family.id for family in families] != [FAMILY_ID]:
        return []
    return [f"{FAMILY_ID}/{at}" for at in range(segment.entry.blocks - segment.entry.header)]


def read_index(segment: Segment, head: Header) -> Index:
    """Builds the index of a segment from its header.

    Raises:
        FormatError: A family or a block of the segment is not ordered.
    """
    if head.families is not None and not all(family.ordered for family in head.families):
        raise FormatError(
            f"reading {segment.ident}",
            found="its families are not those of a Python store",
            advice="Read the state of Spark's operators with redis_state.connect.",
        )
    ids = tuple(sorted(head.ordered))
    starts: list[int] = []
    firsts: list[bytes] = []
    for id_ in ids:
        starts.append(len(firsts))
        firsts += head.ordered[id_]
    if not all(head.ordered.values()) or segment.entry.blocks != len(firsts) + bool(
        segment.entry.header
    ):
        raise FormatError(f"reading {segment.ident}", found="its blocks are not in order")
    # Look-ups bisect the first keys of all families as one list, so each must have its family's
    # prefix.
    if not all(
        family_of(keys[0]) == id_ == family_of(keys[-1]) for id_, keys in head.ordered.items()
    ):
        raise FormatError(f"reading {segment.ident}", found="a block is of another family")
    return Index(tuple(firsts), ids, tuple(starts), head)


def read_block(
    segment: Segment, index: Index, number: int, raw: bytes, *, lists: bool
) -> tuple[list[bytes], list[Value]]:
    """Decodes stored keys and values of one block; `lists` allows appended values.

    Raises:
        FormatError: The block is damaged.
    """
    name = index.name(number)
    prefix = stored_key(index.family_id(number), b"")
    payload = block.decode(segment.ident, name, raw)
    try:
        items = msgpack.unpackb(payload, raw=False)
        keys, values = items[::2], items[1::2]
        # Keys that are not bytes raise TypeError in these comparisons.
        right = (
            len(keys) == len(values) > 0
            and all(map(operator.lt, keys, keys[1:]))
            and keys[0] >= index.firsts[number] >= prefix
            and (number + 1 == len(index.firsts) or keys[-1] < index.firsts[number + 1])
            and keys[-1].startswith(prefix)
        )
    except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
        raise _bad(segment, name, "its rows are malformed") from error
    if not right:
        raise _bad(segment, name, "its rows are not where they belong")
    kinds = set(map(type, values))
    if kinds == {bytes}:
        return keys, values
    known = {bytes, type(None), msgpack.ExtType} if lists else {bytes, type(None)}
    if segment.snapshot or not kinds <= known:
        raise _bad(segment, name, "a value is of a kind that a Python store does not write")
    if msgpack.ExtType in kinds:
        values = [_appended(segment, name, value) for value in values]
    return keys, values


def _appended(segment: Segment, name: str, value: Any) -> Value:
    if type(value) is not msgpack.ExtType:
        plain: Value = value
        return plain
    if value.code != EXT_APPENDED:
        raise _bad(segment, name, "a value is of a kind that a Python store does not write")
    return Appended(value.data)


def _bad(segment: Segment, name: str, found: str) -> FormatError:
    return FormatError(f"reading field {name} of {segment.ident}", found=found)
