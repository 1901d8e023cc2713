"""The rows of a version piece by piece: its base as it is read, merged with its deltas.

Only the deltas are held in memory. Their weight is what makes a snapshot due, so they are a part
of the version; the base may be as large as it likes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from redis_state.errors import FormatError
from redis_state.format.block import HEADER_BYTES
from redis_state.format.bucketing import ROWS_A_BUCKET, bucket_of, buckets_for
from redis_state.format.entry import Segment
from redis_state.format.header import FIELD, Family, family_table, highest_after
from redis_state.format.merge import Changes
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of, raw_bytes, stored_key
from redis_state.format.segment import (
    Content,
    checksum,
    field_names,
    part_fields,
    read_header,
    read_rows,
    read_segment,
)
from redis_state.protocol import PartitionClient

FIELDS_AT_ONCE = 64
SAMPLE_ROWS = 10_000


class Fold:
    """Rows of a version for a writer of segments; each method is called once.

    Args:
        segments: As `open` lists them, newest first; the last one stands alone.

    Attributes:
        families: The family table of the version.
        highest_id: Of all families that the lineage ever had.
        buckets: A count that fits its hashed rows.

    Raises:
        SegmentGoneError: A segment is not whole any more; so do the methods.
        FormatError: A segment is damaged; so do the methods.
    """

    def __init__(self, partition: PartitionClient, segments: Sequence[Segment]) -> None:
        self._partition = partition
        self._base = segments[-1]
        self._live = segments[0].entry.live
        raw = _raw_header(partition, self._base)
        self._head = read_header(self._base, raw)
        # The first bytes of each field that was read: the checksum is over them.
        self._heads = {} if raw is None else {FIELD: raw[:HEADER_BYTES]}
        self._changes = Changes()
        families = self._head.families
        highest = highest_after(0, families, self._head.highest_id)
        for segment in reversed(segments[:-1]):
            content = read_whole(partition, segment)
            self._changes.add(content)
            families = content.families if content.families is not None else families
            highest = highest_after(highest, content.families, content.highest_id)
        if families is None:
            raise FormatError("folding a version", found="no segment has a family table")
        self.families: tuple[Family, ...] = families
        self.highest_id = highest
        self._prefixes = {stored_key(id_, b"") for id_ in family_table(families)}
        self.buckets = self._fitting_buckets()

    def hashed(self) -> Iterator[dict[bytes, bytes]]:
        """Rows of the hashed families; a bucket's rows come in one piece."""
        # Counts are powers of two, so buckets with one remainder go to buckets with the same one.
        modulus = min(self._base.entry.buckets, self.buckets)
        own = self._hashed_changes(modulus)
        each = max(1, FIELDS_AT_ONCE * modulus // self._base.entry.buckets)
        for start in range(0, modulus, each):
            remainders = range(start, min(start + each, modulus))
            names = {
                remainder: [
                    name
                    for bucket in range(remainder, self._base.entry.buckets, modulus)
                    for name in part_fields(bucket, self._head.parts.get(bucket, 1))
                ]
                for remainder in remainders
            }
            fields = self._fetch([name for some in names.values() for name in some])
            for remainder in remainders:
                below: dict[bytes, Value] = {}
                for name in names[remainder]:
                    # A later part of a bucket overrides an earlier one.
                    below.update(self._rows(name, fields))
                yield dict(self._folded(below, own.get(remainder, ())))

    def ordered_families(self) -> list[int]:
        """The families that have ordered rows in the base or in the table."""
        of_table = {family.id for family in self.families if family.ordered}
        return sorted(of_table | set(self._head.ordered))

    def ordered(self, family: int) -> Iterator[tuple[bytes, bytes]]:
        """Rows of an ordered family in the order of their keys."""
        keys = sorted(key for key in self._changes.rows if family_of(key) == family)
        firsts = self._head.ordered.get(family, ())
        at = 0
        for start in range(0, len(firsts), FIELDS_AT_ONCE):
            names = [
                f"{family}/{n}" for n in range(start, min(start + FIELDS_AT_ONCE, len(firsts)))
            ]
            fields = self._fetch(names)
            for number, name in enumerate(names, start + 1):
                # The first block takes the keys before it, the last one those behind it.
                last = number == len(firsts)
                end = len(keys) if last else bisect_left(keys, firsts[number], at)
                yield from sorted(self._folded(self._rows(name, fields), keys[at:end]))
                at = end
        yield from self._folded({}, keys[at:])

    def check(self, count: int) -> None:
        """Compare what was read with the manifest.

        Args:
            count: Rows that came out.

        Raises:
            FormatError: The base or the number of rows is another one.
        """
        entry = self._base.entry
        if len(self._heads) != entry.blocks or checksum(self._heads) != entry.checksum:
            raise FormatError(
                f"reading {self._base.ident}",
                found="its fields differ from its entry's checksum",
            )
        if count != self._live:
            raise FormatError("folding a version", found=f"{count} keys are live, not {self._live}")

    def _folded(
        self, below: Mapping[bytes, Value], keys: Sequence[bytes]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows of the base with their changes, then those that only the changes have."""
        known = {key[:FAMILY_BYTES] for key in below} <= self._prefixes
        plain = known and not self._changes.tombstones
        changed = self._changes.rows
        for key, value in below.items():
            if plain and type(value) is bytes and key not in changed:
                yield key, value
                continue
            # A removed row of the oldest delta removes nothing, and an append begins a list.
            first = value.data if isinstance(value, Appended) else value
            left = self._changes.over(key, first) if first is not None else None
            if left is not None:
                yield self._checked(key), left
        for key in keys:
            change = changed.pop(key, None)
            if change is not None:
                yield self._checked(key), change.data if isinstance(change, Appended) else change

    def _checked(self, key: bytes) -> bytes:
        if key[:FAMILY_BYTES] not in self._prefixes:
            raise FormatError("folding a version", found="a row belongs to no family")
        return key

    def _rows(self, name: str, fields: Mapping[str, bytes]) -> dict[bytes, Value]:
        raw = fields.get(name)
        return {} if raw is None else dict(read_rows(self._base, name, raw))

    def _fetch(self, names: Sequence[str]) -> dict[str, bytes]:
        if not self._base.entry.blocks:
            return {}
        found = zip(names, self._partition.fetch(self._base, names), strict=True)
        fields = {name: raw for name, raw in found if raw is not None}
        self._heads.update({name: raw[:HEADER_BYTES] for name, raw in fields.items()})
        return fields

    def _hashed_changes(self, modulus: int) -> dict[int, list[bytes]]:
        kinds = {family.id: family.kind for family in self.families if not family.ordered}
        found: dict[int, list[bytes]] = {}
        for key in self._changes.rows:
            kind = kinds.get(family_of(key))
            if kind is not None:
                found.setdefault(bucket_of(key, kind=kind, buckets=modulus), []).append(key)
        return found

    def _fitting_buckets(self) -> int:
        if all(family.ordered for family in self.families):
            return 1
        names = [str(bucket) for bucket in range(min(FIELDS_AT_ONCE, self._base.entry.buckets))]
        fields = self._fetch(names)
        sample = [row for name in names for row in self._rows(name, fields).items()]
        sample += list(self._changes.rows.items())[:SAMPLE_ROWS]
        if not sample:
            return 1
        ordered = ROWS_A_BUCKET * sum(map(len, self._head.ordered.values()))
        rows = max(1, self._live - ordered)
        return buckets_for(rows, rows * sum(map(raw_bytes, sample)) // len(sample))


def _raw_header(partition: PartitionClient, segment: Segment) -> bytes | None:
    return partition.fetch(segment, [FIELD])[0] if segment.entry.header else None


def read_whole(partition: PartitionClient, segment: Segment) -> Content:
    """All that a segment says.

    Raises:
        SegmentGoneError: It is not whole any more.
        FormatError: It is damaged.
    """
    if not segment.entry.blocks:
        return read_segment(segment, {})
    raw = _raw_header(partition, segment)
    fields = {} if raw is None else {FIELD: raw}
    names = list(field_names(segment, read_header(segment, raw)))
    blocks = zip(names, partition.fetch(segment, names), strict=True)
    fields.update({name: block for name, block in blocks if block is not None})
    return read_segment(segment, fields)
