"""Rows of a version, merged piece by piece from its base and its deltas.

Readers scan with this module, and maintenance makes snapshots with it. Only the deltas are held in
memory. Their weight triggers a snapshot, so they stay a fraction of the version; the base may
have any size. A store loads its own version with `redis_state.store.local.loading` instead, which
keeps all rows, and supports only ordered families.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, cast

from redis_state.errors import FormatError
from redis_state.format.block import HEADER_BYTES
from redis_state.format.bucketing import ROWS_A_BUCKET, bucket_of, buckets_for
from redis_state.format.changes import Changes
from redis_state.format.entry import Segment
from redis_state.format.header import FIELD, Family, Header, family_table, highest_after
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of, raw_bytes, stored_key
from redis_state.format.segment import (
    SegmentContent,
    check_time,
    check_ttl_kept,
    checksum,
    field_names,
    part_fields,
    read_header,
    read_payload,
    read_segment,
    read_table,
    table_of,
)
from redis_state.format.visible import time_of, unexpired

if TYPE_CHECKING:
    from redis_state.rows.row_matrix import RowMatrix

Fetch = Callable[[Segment, Sequence[str]], Sequence[bytes | None]]
"""Reads fields of a segment by name, like `PartitionClient.fetch`."""

FIELDS_AT_ONCE = 64
SAMPLE_ROWS = 10_000

_TOGETHER_BYTES = 4 << 20
"""Bytes of blocks that are turned into one array: enough for arrays to pay off."""

_WHOLE = {bytes, type(None)}
"""Types of changes that do not need the value below."""


class VersionRows:
    """Rows of a version. Each method is called once, first `hashed` and then `ordered`.

    Expired rows are left out (docs/format.md, section 15).

    Args:
        segments: From `open`, newest first; the last one stands alone.
        where: Name of the partition in errors.
        bare: True to return values as readers see them, without the expiry of rows with a time to
            live; false to return them as segments store them.

    Attributes:
        families: The family table of the version.
        highest_id: Highest family id that the lineage ever had.
        time_s: Time of the version in seconds since 1970; 0 if no family has a time to live.

    Raises:
        SegmentGoneError: A segment is no longer complete; methods raise this too.
        FormatError: A segment is damaged; methods raise this too.
    """

    def __init__(
        self, fetch: Fetch, segments: Sequence[Segment], *, where: str = "", bare: bool = False
    ) -> None:
        self._fetch = fetch
        self._where = where
        self._base = segments[-1]
        self._live, self.time_s = segments[0].entry.live, time_of(segments)
        # A delta may count rows that have expired since they were written.
        self._is_exact = segments[0].snapshot or not self.time_s
        # A preview is set while its rows change, so its count is not of the same moment.
        self._is_counted = not segments[0].slice
        self._bare = bare
        raw = raw_header(fetch, self._base)
        self._head = read_header(self._base, raw)
        # Headers of the blocks that were read, for the checksum over all blocks.
        self._heads = {} if raw is None else {FIELD: raw[:HEADER_BYTES]}
        self._read: dict[str, bytes | None] = {}
        self._changes = Changes()
        families = self._head.families
        highest = highest_after(0, families, self._head.highest_id)
        for segment in reversed(segments[:-1]):
            content = read_whole(fetch, segment)
            if content.families is not None:
                check_ttl_kept(segment, families or (), content.families)
            self._changes.add(content)
            families = content.families if content.families is not None else families
            highest = highest_after(highest, content.families, content.highest_id)
        if families is None:
            raise self._bad("no segment has a family table")
        self.families: tuple[Family, ...] = families
        self.highest_id = highest
        check_time(segments[0], families)
        self._prefixes = {stored_key(id_, b"") for id_ in family_table(families)}
        self._expiring = frozenset(family.id for family in families if family.ttl)
        self._ahead = self._ordered_names()

    def fitting_buckets(self) -> int:
        """Returns a bucket count that fits the hashed rows, estimated from a sample."""
        if all(family.ordered for family in self.families):
            return 1
        names = [str(bucket) for bucket in range(min(FIELDS_AT_ONCE, self._base.entry.buckets))]
        sample = list(self._rows(self._blocks(names)).items())
        sample += list(self._changes.rows.items())[:SAMPLE_ROWS]
        if not sample:
            return 1
        ordered = ROWS_A_BUCKET * sum(map(len, self._head.ordered.values()))
        rows = max(1, self._live - ordered)
        return buckets_for(rows, rows * sum(map(raw_bytes, sample)) // len(sample))

    def hashed(self, buckets: int | None = None) -> Iterator[dict[bytes, bytes]]:
        """Yields the rows of the hashed families.

        Args:
            buckets: Target number of buckets; the rows of one target bucket are in one dict.
                ``None`` keeps the base's buckets.
        """
        # Counts are powers of two, so buckets with equal remainders stay together.
        modulus = min(self._base.entry.buckets, buckets or self._base.entry.buckets)
        own = self._hashed_changes(modulus)
        names = (name for at in range(modulus) for name in self._bucket_names(at, modulus))
        self._ahead = chain(names, self._ahead)
        for at in range(modulus):
            # A later part of a bucket overrides an earlier one.
            below = self._rows(self._take(self._bucket_names(at, modulus)))
            yield self._unexpired(self._folded(below, own.get(at, ())))

    def matrices(self) -> Iterator[RowMatrix | dict[bytes, bytes]]:
        """Yields the rows of the hashed families like `hashed`, as arrays where they can be.

        Rows of one width that no delta changed are in arrays. Needs numpy and pyarrow.
        """
        from redis_state.rows.row_matrix import KeySet, matrices

        hashed = {family.id for family in self.families if not family.ordered}
        changed = {
            key: change for key, change in self._changes.rows.items() if family_of(key) in hashed
        }
        if self._changes.tombstones or not set(map(type, changed.values())) <= _WHOLE:
            yield from self.hashed()
            return
        for key in changed:
            del self._changes.rows[key]
        keys = KeySet(changed)
        for blocks in self._blocks_together():
            for rows, alike in matrices(blocks):
                if rows is not None and rows.prefixes() <= self._prefixes:
                    yield from self._unexpired_arrays(rows.without(keys))
                else:
                    for name, payload in alike:
                        below = table_of(self._base, name, payload)
                        yield self._unexpired(self._unchanged(below, changed))
        for bucket, parts in self._head.parts.items():
            below = self._rows(self._blocks(part_fields(bucket, parts)))
            yield self._unexpired(self._unchanged(below, changed))
        rest = {self._checked(key): value for key, value in changed.items() if type(value) is bytes}
        yield self._unexpired(rest)

    def ordered_families(self) -> list[int]:
        """Returns the families that have ordered rows in the base or in the table."""
        of_table = {family.id for family in self.families if family.ordered}
        return sorted(of_table | set(self._head.ordered))

    def ordered(self, family: int) -> Iterator[tuple[bytes, bytes]]:
        """Yields the rows of an ordered family in key order. Families come in ascending order."""
        keys = sorted(key for key in self._changes.rows if family_of(key) == family)
        firsts = self._head.ordered.get(family, ())
        at = 0
        for number in range(len(firsts)):
            # The first block also takes smaller keys, the last one larger keys.
            last = number + 1 == len(firsts)
            end = len(keys) if last else bisect_left(keys, firsts[number + 1], at)
            below = self._rows(self._take([f"{family}/{number}"]))
            yield from sorted(self._unexpired(self._folded(below, keys[at:end])).items())
            at = end
        yield from self._unexpired(self._folded({}, keys[at:])).items()

    def check(self, count: int) -> None:
        """Compares the rows that were read with the manifest.

        Args:
            count: Number of rows that were yielded.

        Raises:
            FormatError: The checksum of the base, or the number of rows, differs.
        """
        entry = self._base.entry
        if len(self._heads) != entry.blocks or checksum(self._heads) != entry.checksum:
            raise FormatError(
                f"reading {self._base.ident}",
                found="its fields differ from its entry's checksum",
            )
        differs = count > self._live or (self._is_exact and count != self._live)
        if self._is_counted and differs:
            raise self._bad(f"{count} keys are live, not {self._live}")

    def _folded(self, below: dict[bytes, Value], keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Merges rows of the base with their changes, and adds rows that only the changes have."""
        known = {key[:FAMILY_BYTES] for key in below} <= self._prefixes
        plain = known and not self._changes.tombstones
        changed = self._changes.rows
        found: dict[bytes, bytes] = {}
        untouched = plain and self._base.snapshot and changed.keys().isdisjoint(below.keys())
        if untouched:
            # Fast path for most of a large base: a snapshot has only puts, so no row needs a
            # check.
            found, below = cast(dict[bytes, bytes], below), {}
        for key, value in below.items():
            if plain and type(value) is bytes and key not in changed:
                found[key] = value
                continue
            # In an oldest delta, a removal has nothing to remove, and an append starts a list.
            first = value.data if isinstance(value, Appended) else value
            left = self._changes.over(key, first) if first is not None else None
            if left is not None:
                found[self._checked(key)] = left
        for key in keys:
            change = changed.pop(key, None)
            if change is not None:
                found[self._checked(key)] = change.data if isinstance(change, Appended) else change
        return found

    def _unexpired(self, rows: dict[bytes, bytes]) -> dict[bytes, bytes]:
        if not self._expiring:
            return rows
        mixed = len(self._expiring) < len(self._prefixes)
        expiring = self._expiring if mixed else None
        return unexpired(rows, self.time_s, bare=self._bare, families=expiring)

    def _unexpired_arrays(self, rows: RowMatrix) -> Iterator[RowMatrix]:
        """Yields the rows that are not expired, those of each family for themselves."""
        if not self._expiring:
            yield rows
            return
        for id_ in rows.ids():
            own = rows.of_family(id_)
            yield own.unexpired(self.time_s, bare=self._bare) if id_ in self._expiring else own

    def _blocks_together(self) -> Iterator[list[tuple[str, bytes]]]:
        """Yields names and payloads of the base's buckets of one part, many at a time."""
        parts, count = self._head.parts, self._base.entry.buckets
        names = iter([str(bucket) for bucket in range(count) if parts.get(bucket, 1) == 1])
        group: list[tuple[str, bytes]] = []
        size = 0
        while chunk := list(islice(names, FIELDS_AT_ONCE)):
            for name, raw in self._blocks(chunk):
                payload = read_payload(self._base, name, raw)
                group.append((name, payload))
                size += len(payload)
            if size >= _TOGETHER_BYTES:
                yield group
                group, size = [], 0
        yield group

    def _unchanged(
        self, below: Mapping[bytes, Value], changed: Mapping[bytes, Value]
    ) -> dict[bytes, bytes]:
        """Returns the rows of the base that the changes leave as they are."""
        return {
            self._checked(key): value.data if isinstance(value, Appended) else value
            for key, value in below.items()
            if value is not None and key not in changed
        }

    def _checked(self, key: bytes) -> bytes:
        if key[:FAMILY_BYTES] not in self._prefixes:
            raise self._bad("a row belongs to no family")
        return key

    def _bad(self, found: str) -> FormatError:
        return FormatError("reading the rows of a version", found=found, where=self._where)

    def _rows(self, blocks: Sequence[tuple[str, bytes]]) -> dict[bytes, Value]:
        found: dict[bytes, Value] = {}
        for name, raw in blocks:
            table = read_table(self._base, name, raw)
            if found:
                found.update(table)
            else:
                found = table
        return found

    def _take(self, names: Sequence[str]) -> list[tuple[str, bytes]]:
        """Returns the existing fields of the base, and reads ahead in the order of use."""
        while any(name not in self._read for name in names):
            chunk = list(islice(self._ahead, FIELDS_AT_ONCE))
            self._read.update(dict.fromkeys(chunk) | dict(self._blocks(chunk)))
        return [(name, raw) for name in names if (raw := self._read.pop(name)) is not None]

    def _blocks(self, names: Sequence[str]) -> list[tuple[str, bytes]]:
        if not self._base.entry.blocks:
            return []
        found = zip(names, self._fetch(self._base, names), strict=True)
        blocks = [(name, raw) for name, raw in found if raw is not None]
        self._heads.update((name, raw[:HEADER_BYTES]) for name, raw in blocks)
        return blocks

    def _bucket_names(self, at: int, modulus: int) -> list[str]:
        """Returns the fields of the base's buckets that go into bucket `at` of `modulus`."""
        return [
            name
            for bucket in range(at, self._base.entry.buckets, modulus)
            for name in part_fields(bucket, self._head.parts.get(bucket, 1))
        ]

    def _ordered_names(self) -> Iterator[str]:
        for family in self.ordered_families():
            for number in range(len(self._head.ordered.get(family, ()))):
                yield f"{family}/{number}"

    def _hashed_changes(self, modulus: int) -> dict[int, list[bytes]]:
        kinds = {family.id: family.kind for family in self.families if not family.ordered}
        found: dict[int, list[bytes]] = {}
        for key in self._changes.rows:
            kind = kinds.get(family_of(key))
            if kind is not None:
                found.setdefault(bucket_of(key, kind=kind, buckets=modulus), []).append(key)
        return found


def raw_header(fetch: Fetch, segment: Segment) -> bytes | None:
    """Reads the header of a segment; ``None`` if it has none."""
    return fetch(segment, [FIELD])[0] if segment.entry.header else None


def header_of(fetch: Fetch, segment: Segment) -> Header:
    """Reads only the header of a segment.

    Raises:
        SegmentGoneError: The segment is no longer complete.
        FormatError: The segment is damaged.
    """
    return read_header(segment, raw_header(fetch, segment))


def read_whole(fetch: Fetch, segment: Segment) -> SegmentContent:
    """Reads a whole segment.

    Raises:
        SegmentGoneError: The segment is no longer complete.
        FormatError: The segment is damaged.
    """
    if not segment.entry.blocks:
        return read_segment(segment, {})
    raw = raw_header(fetch, segment)
    fields = {} if raw is None else {FIELD: raw}
    names = list(field_names(segment, read_header(segment, raw)))
    blocks = zip(names, fetch(segment, names), strict=True)
    fields.update({name: block for name, block in blocks if block is not None})
    return read_segment(segment, fields)
