"""Reads the part of a segment that can hold given keys (docs/format.md, section 7)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from redis_state.backend.client import Client
from redis_state.errors import FormatError
from redis_state.format.bucketing import bucketing_hashes
from redis_state.format.entry import Segment
from redis_state.format.hash_filter import denies
from redis_state.format.header import FIELD, ORDERED_KINDS, Header
from redis_state.format.rows import FAMILY_BYTES, Appended, Value, family_of
from redis_state.format.segment import block_field, read_header, read_payload, some_of, table_of
from redis_state.ids import PartitionId
from redis_state.places.reading import files_of
from redis_state.protocol.hot_runs import leave_out
from redis_state.protocol.opening import Opened
from redis_state.protocol.segments import SegmentGoneError, fetch_many
from redis_state.reader.block_cache import BlockCache, Field, parts_of, where_of

_FEW = 8
_NO_ROWS: Mapping[bytes, Value] = {}

FieldsOfKeys = tuple[Sequence[Field | None], Mapping[Field, Sequence[bytes]]]
"""For each key the field that can hold it, ``None`` if no field can; by field its keys."""

_NO_FIELDS: FieldsOfKeys = ((), {})


class KeyFields:
    """Stored keys of one family, and the fields that can hold them, in any segment.

    Attributes:
        ordered: Whether only the header of a segment names the fields.
    """

    def __init__(self, keys: Sequence[bytes], kind: str) -> None:
        self.ordered = kind in ORDERED_KINDS
        self._keys = keys
        self._hashes = [] if self.ordered else bucketing_hashes(keys, kind=kind)
        # Many segments have the same number of buckets.
        self._by_last: dict[int, FieldsOfKeys] = {}

    def of(self, segment: Segment, head: Header | None) -> FieldsOfKeys:
        """Returns the first field of each key; see `parts_of` for the further ones.

        Args:
            head: ``None`` until it is read; then keys of an ordered family have no field.
        """
        if not segment.entry.blocks or (self.ordered and head is None):
            return _NO_FIELDS
        if head is not None and self.ordered:
            return self._grouped([block_field(head, key) for key in self._keys])
        last = segment.entry.buckets - 1
        if last not in self._by_last:
            self._by_last[last] = self._grouped([hash_ & last for hash_ in self._hashes])
        return self._by_last[last]

    def hashes(self, segment: Segment, buckets: Collection[int]) -> Mapping[int, Sequence[int]]:
        """Returns the hashes of the keys in some buckets of a segment, by bucket."""
        last = segment.entry.buckets - 1
        found: dict[int, list[int]] = {bucket: [] for bucket in buckets}
        for hash_ in self._hashes:
            if hash_ & last in found:
                found[hash_ & last].append(hash_)
        return found

    def _grouped(self, fields: Sequence[Field | None]) -> FieldsOfKeys:
        keys: dict[Field, list[bytes]] = {}
        for field, key in zip(fields, self._keys, strict=True):
            if field is not None:
                keys.setdefault(field, []).append(key)
        return fields, keys


class SegmentPart:
    """Content of one segment that concerns a look-up: its header, and rows of the keys.

    Cached fields are there from the beginning.

    Args:
        keep: Whether to cache the blocks that are read, and in time tables of their rows. Else only
            the rows of the keys are decoded.
        head: ``None`` means that the header is read, unless it is cached.

    Attributes:
        head: ``None`` until it is read.
        wanted: Fields to read next.
    """

    def __init__(
        self,
        id_: PartitionId,
        segment: Segment,
        keys: KeyFields,
        cache: BlockCache,
        *,
        keep: bool = False,
        head: Header | None = None,
    ) -> None:
        self.id = id_
        self.segment = segment
        self._keys = keys
        self._cache = cache
        self._keep = keep
        self._where = where_of(id_, segment)
        self._rows: dict[Field | None, Mapping[bytes, Value]] = {}
        self._without: set[Field] = set()
        self.head = cache.segment(self._where).head_of(segment) if head is None else head
        self.wanted: list[Field] = [FIELD] if self.head is None else []
        self._fields, self._of_field = keys.of(segment, self.head)
        self._want(self._of_field)
        if self.head is not None:
            self._want_parts(self.head)

    @property
    def known_head(self) -> Header:
        """The header, once it is read."""
        assert self.head is not None
        return self.head

    def filter(self, client: Client) -> None:
        """Removes buckets of a segment in a file from the plan if its filters deny their keys.

        Raises:
            UnavailableError: The file system does not answer.
            FormatError: The file is damaged.
        """
        buckets = [field for field in self.wanted if isinstance(field, int)]
        if not buckets or self.segment.place is None:
            return
        filters = files_of(client).filters(client, self.id, self.segment, buckets)
        if not filters:
            return
        hashes = self._keys.hashes(self.segment, filters)
        self._without = {
            bucket
            for bucket, raw in filters.items()
            if all(denies(raw, hash_) for hash_ in hashes[bucket])
        }
        self.wanted = [one for one in self.wanted if _first_of(one) not in self._without]

    def take(self, field: Field, raw: bytes | None) -> None:
        """Adds a field that was read; the header comes first, and may name further fields.

        Raises:
            FormatError: The field is damaged, or must not be absent.
        """
        if field == FIELD:
            self.head = head = read_header(self.segment, raw)
            self._cache.add_head(self._where, head)
            if self._keys.ordered:
                self._fields, self._of_field = self._keys.of(self.segment, head)
                self._want(self._of_field)
            self._want_parts(head)
        elif raw is not None:
            payload = read_payload(self.segment, str(field), raw)
            self._add_some(field, payload)
            if self._keep:
                self._cache.add_payload(self._where, field, payload)
        else:
            check_absent(self.segment, self.known_head, field)
            if self._keep:
                self._cache.add_rows(self._where, field, {}, 0)

    def changes(self, keys: Sequence[bytes], left: Mapping[bytes, object]) -> dict[bytes, Value]:
        """Returns the changes of the segment to keys.

        Args:
            keys: The keys of the look-up.
            left: Those of them that matter.
        """
        different = set(self._fields)
        if len(different) <= _FEW:
            # Needs no step of Python for each key; a key is in no other bucket than its own.
            found = [rows for field in different if (rows := self.rows(field))]
            return {key: rows[key] for rows in found for key in rows.keys() & left.keys()}
        tables = {field: self.rows(field) for field in different}
        return {
            key: rows[key]
            for key, field in zip(keys, self._fields, strict=True)
            if key in (rows := tables[field]) and key in left
        }

    def rows(self, field: Field | None) -> Mapping[bytes, Value]:
        """Returns the rows of a block or bucket; later parts override earlier ones."""
        rows = self._rows.get(field, _NO_ROWS)
        if not isinstance(field, int) or field not in self.known_head.parts:
            return rows
        whole = dict(rows)
        for part in parts_of(self.known_head, field)[1:]:
            whole |= self._rows.get(part, _NO_ROWS)
        return whole

    def _want(self, fields: Iterable[Field]) -> None:
        """Adds the cached fields; plans to read the others."""
        cached = self._cache.segment(self._where)
        for field in fields:
            rows = cached.rows.get(field)
            if rows is None:
                known = cached.payload(field)
                if known is None:
                    self.wanted.append(field)
                elif known[1] and self._keep:
                    rows = table_of(self.segment, str(field), known[0])
                    self._rows[field] = rows
                    self._cache.add_rows(self._where, field, rows, len(known[0]))
                else:
                    self._add_some(field, known[0])
            elif rows:
                self._rows[field] = rows

    def _want_parts(self, head: Header) -> None:
        if head.parts:
            buckets = [
                field
                for field in self._of_field
                if isinstance(field, int) and field not in self._without
            ]
            self._want(part for bucket in buckets for part in parts_of(head, bucket)[1:])

    def _add_some(self, field: Field, payload: bytes) -> None:
        wanted = self._of_field[_first_of(field)]
        self._rows[field] = some_of(self.segment, str(field), payload, wanted)


def planned_parts(
    opened: Opened, keys: Sequence[bytes], kind: str, cache: BlockCache, *, keep: bool
) -> list[SegmentPart]:
    """Returns the parts of a version's segments to read for keys of one family."""
    fields = KeyFields(keys, kind)
    return [SegmentPart(opened.id, one, fields, cache, keep=keep) for one in opened.segments]


def read_parts(
    client: Client, parts: Sequence[SegmentPart], *, attempted: str
) -> dict[PartitionId, Segment]:
    """Reads the planned fields, in two round trips at most if they are few.

    Returns:
        The partitions of which a segment is no longer complete, or a hot run is damaged. Others of
        their segments may lack fields.

    Raises:
        FormatError: A field is damaged, or must not be absent.
    """
    gone: dict[PartitionId, Segment] = {}
    for part in parts:
        part.filter(client)
    while reading := [part for part in parts if part.wanted and part.id not in gone]:
        plans = [(part.id, part.segment, list(map(str, part.wanted))) for part in reading]
        for part, values in zip(reading, fetch_many(client, attempted, plans), strict=True):
            if values is None:
                gone[part.id] = part.segment
                continue
            fields, part.wanted = part.wanted, []
            try:
                for field, raw in zip(fields, values, strict=True):
                    part.take(field, raw)
            except FormatError as error:
                if leave_out([part.segment], error, where=part.id) is None:
                    raise
                gone[part.id] = part.segment
    return gone


def read_segments(
    client: Client,
    id_: PartitionId,
    segments: Sequence[Segment],
    keys: KeyFields,
    *,
    heads: Sequence[Header] | None = None,
    attempted: str,
) -> list[SegmentPart]:
    """Reads the parts of segments that can hold keys, without a cache.

    Args:
        heads: The header of each segment; ``None`` reads the headers.

    Raises:
        SegmentGoneError: A segment is no longer complete.
        FormatError: A segment is damaged.
    """
    cache = BlockCache()
    parts = [
        SegmentPart(id_, segment, keys, cache, head=None if heads is None else heads[at])
        for at, segment in enumerate(segments)
    ]
    for gone in read_parts(client, parts, attempted=attempted).values():
        raise SegmentGoneError(gone)
    return parts


def values_of(parts: Sequence[SegmentPart], keys: Sequence[bytes]) -> dict[bytes, bytes]:
    """Returns the values of the keys that exist.

    Args:
        parts: The segments of a version, the newest first.
    """
    values: dict[bytes, bytes] = {}
    tails: dict[bytes, bytes] = {}
    left = dict.fromkeys(keys)
    for part in parts:
        if not left:
            break
        for key, value in part.changes(keys, left).items():
            if isinstance(value, Appended):
                tails[key] = value.data + tails.get(key, b"")
                continue
            del left[key]
            if value is not None:
                values[key] = value
        for tombstone in part.known_head.tombstones:
            for key in [key for key in left if tombstone.family == family_of(key)]:
                if tombstone.covers(key[FAMILY_BYTES:]):
                    del left[key]
    for key, tail in tails.items():
        values[key] = values.get(key, b"") + tail
    return values


def _first_of(field: Field) -> Field:
    """Returns the first field of a bucket for a further part; any other field unchanged."""
    if isinstance(field, str) and "." in field:
        return int(field.partition(".")[0])
    return field


def check_absent(segment: Segment, head: Header, field: Field) -> None:
    """Checks that a field may be absent: a bucket without rows has no field.

    Raises:
        FormatError: The field is an ordered block, or a part of a bucket.
    """
    if isinstance(field, str) or field in head.parts:
        raise FormatError(
            f"reading {segment.ident}", found="a part of a bucket, or a block, is missing"
        )
