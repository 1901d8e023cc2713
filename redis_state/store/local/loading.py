"""Opens a version and reads the parts that this process needs (docs/format.md, section 7).

Readers and maintenance pass through a version once and hold little of it; they use
`protocol.version_rows`. A store keeps its version from batch to batch. Small deltas are read in one
round trip, blocks of the base at the first access to a key, and layers are laid over cached ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import cast

from redis_state.errors import ConflictError, FormatError, UnavailableError
from redis_state.format import header
from redis_state.format.block import raw_length
from redis_state.format.entry import Segment
from redis_state.format.ordered import Index, family_range, likely_names, read_block, read_index
from redis_state.format.rows import Appended, Value, stored_key
from redis_state.format.segment import check_time, check_ttl_kept, checksum, read_header
from redis_state.ids import Pin
from redis_state.protocol import Opened, PartitionClient, SegmentGoneError
from redis_state.protocol.hot_runs import leave_out
from redis_state.protocol.refusal import lost
from redis_state.store.local.base import Base
from redis_state.store.local.families import NO_FAMILIES, Families
from redis_state.store.local.memory_budget import MemoryBudget
from redis_state.store.local.version import (
    KeyCounts,
    Layer,
    LocalVersion,
    SnapshotHistory,
    compacted,
    empty_version,
)

_LOADS_MAX = 5
_EAGER_BYTES_MAX = 256 << 10
_SMALL_BYTES = 1 << 20

log = logging.getLogger(__name__)


class Loader:
    """Builds a local version from the segments that `open` lists.

    Args:
        where: Name of the partition in error messages.
        room: Memory budget of the rows that are read; ``None`` is unbounded.
    """

    def __init__(
        self, client: PartitionClient, *, where: str, room: MemoryBudget | None = None
    ) -> None:
        self._client = client
        self._where = where
        self._room = room

    def open(
        self,
        run_id: str,
        version: int | None,
        cached: Mapping[Pin, LocalVersion],
        *,
        with_time: bool = False,
    ) -> tuple[Opened, LocalVersion]:
        """Opens a version by `PartitionClient.open` and loads it over a cached version.

        Args:
            with_time: See `PartitionClient.open`.

        Raises:
            StateError: The version does not exist, or is not whole.
            ConflictError: See `PartitionClient.open`.
            FormatError: A segment is damaged, or does not belong to a Python store.
        """
        gone: Segment | None = None
        for _ in range(_LOADS_MAX):
            # A hot run that is damaged or not whole is no loss: its deltas are read then.
            opened = self._client.open(
                run_id, version, list(cached), with_time=with_time, hot_runs=gone is None
            )
            if gone is not None and gone in opened.segments:
                # The manifest still names the segment, so maintenance did not replace it: its bytes
                # are lost.
                what = f"reading {gone.ident}"
                of_parent = self._client.lost_with_parent(gone, what, version=opened.pin.version)
                if of_parent is not None:
                    raise of_parent
                raise lost(
                    what,
                    latest=str(gone.version - 1),
                    where=self._where,
                    version=opened.pin.version,
                )
            try:
                return opened, self._load(opened, cached.get(opened.start))
            except SegmentGoneError as error:
                gone = error.segment
                log.info("%s: %s was replaced while it was read", self._where, gone.ident)
            except FormatError as error:
                gone = leave_out(opened.segments, error, where=self._where)
                if gone is None:
                    raise
        raise UnavailableError(
            f"reading version {version}",
            found="its segments are replaced faster than they can be read",
            where=self._where,
        )

    def reload(self, pin: Pin) -> LocalVersion:
        """Reads the same version from the segments that hold it now.

        Raises:
            StateError: The version no longer exists.
            ConflictError: Another attempt replaced the version.
        """
        opened, found = self.open("", pin.version, {})
        if opened.pin != pin:
            raise ConflictError(
                f"continuing to read version {pin.version}",
                found="another attempt replaced it",
                advice="Open the version again.",
                where=self._where,
                version=pin.version,
            )
        return found

    def _load(self, opened: Opened, start: LocalVersion | None) -> LocalVersion:
        segments = list(reversed(opened.segments))
        at = start or empty_version(self.reload)
        layers, base = list(at.parts[0]), at.parts[1]
        families, history, last = at.families, at.history, at.pin
        counts, time_s = KeyCounts(at.live, at.internal), at.time_s
        if segments and (start is None or segments[0].alone):
            first = segments.pop(0)
            if not first.alone:
                raise FormatError(
                    f"applying {first.ident}", found="it is neither a snapshot nor a complete delta"
                )
            base, families = self._base(first)
            layers = []
            history = SnapshotHistory(base_bytes=first.entry.bytes)
            counts, last = _counts(first), Pin(first.version, first.uid)
            time_s = first.entry.time
        fetched = self._together(segments)
        for segment in segments:
            if segment.alone or last != segment.parent:
                raise FormatError(
                    f"applying {segment.ident}", found="its parent is another version"
                )
            parts = tuple(layers), base
            below = LocalVersion(last, counts, families, parts, history, self.reload)
            layer, families = self._layer(segment, below, fetched.get(segment))
            time_s = segment.entry.time
            if layer.rows:
                layers = compacted([layer, *layers], base, time_s=families.time_of(segment.entry))
            history = history.plus(segment.entry.bytes)
            counts, last = _counts(segment), Pin(segment.version, segment.uid)
        if last != opened.pin:
            raise FormatError("opening the state", found="the segments end at another version")
        parts = tuple(layers), base
        return LocalVersion(last, counts, families, parts, history, self.reload, time_s=time_s)

    def _base(self, segment: Segment) -> tuple[Base | None, Families]:
        if not segment.entry.blocks:
            check_time(segment, ())
            return None, NO_FAMILIES
        eager = segment.entry.bytes <= _EAGER_BYTES_MAX
        if eager:
            fields = self._client.fetch_whole([segment])[0]
        else:
            fields = self._fetch(segment, [header.FIELD])
        index = _index(segment, fields)
        families = _families(segment, index, NO_FAMILIES)
        head = fields.get(header.FIELD, b"")
        base = Base(self._client, segment, index, head, lists=families.lists, room=self._room)
        if eager and base.has_room(sum(map(raw_length, fields.values()))):
            base.take(range(len(index.firsts)), list(map(fields.get, index.names())))
        return base, families

    def _together(self, segments: Sequence[Segment]) -> dict[Segment, dict[str, bytes]]:
        """Returns the fields of all small segments, read in one round trip."""
        small = [one for one in segments if one.entry.blocks and one.entry.bytes <= _SMALL_BYTES]
        found = self._client.fetch_whole(small) if small else []
        return dict(zip(small, found, strict=True))

    def _layer(
        self, segment: Segment, below: LocalVersion, fetched: dict[str, bytes] | None
    ) -> tuple[Layer, Families]:
        entry = segment.entry
        if not entry.blocks:
            check_time(segment, below.families.table)
            return Layer({}, 0, []), below.families
        fields = self._all(segment, below.families) if fetched is None else fetched
        if len(fields) != entry.blocks:
            raise SegmentGoneError(segment)
        if checksum(fields) != entry.checksum:
            raise FormatError(f"reading {segment.ident}", found="the checksum does not match")
        index = _index(segment, fields)
        families = _families(segment, index, below.families)
        lists = families.lists
        keys: list[bytes] = []
        found: dict[bytes, Value] = {}
        grown: list[bytes] = []
        for number, name in enumerate(index.names()):
            if name not in fields:
                raise SegmentGoneError(segment)
            grows = bool(lists) and index.family_id(number) in lists
            some, values = read_block(segment, index, number, fields[name], lists=grows)
            keys += some
            found.update(zip(some, values, strict=True))
            if grows:
                pairs = zip(some, values, strict=True)
                grown += [key for key, value in pairs if isinstance(value, Appended)]
        if len(keys) != entry.rows:
            raise FormatError(
                f"reading {segment.ident}", found=f"it does not have {entry.rows} rows"
            )
        size = sum(map(raw_length, fields.values()))
        gone = _cleared(index, below)
        rows = _resolved(found, grown, below, gone)
        return Layer(gone | rows, size) if gone else Layer(rows, size, keys), families

    def _all(self, segment: Segment, families: Families) -> dict[str, bytes]:
        """Returns the fields of a large segment; `families` are those of the version below."""
        fields = self._fetch(segment, [header.FIELD, *likely_names(segment, families.table)])
        missing = [name for name in _index(segment, fields).names() if name not in fields]
        return fields | self._fetch(segment, missing) if missing else fields

    def _fetch(self, segment: Segment, names: Sequence[str]) -> dict[str, bytes]:
        """Returns the existing fields among these names."""
        found = zip(names, self._client.fetch(segment, names), strict=True)
        return {name: raw for name, raw in found if raw is not None}


def _counts(segment: Segment) -> KeyCounts:
    return KeyCounts(segment.entry.live, segment.entry.internal)


def _index(segment: Segment, fields: Mapping[str, bytes]) -> Index:
    head = fields.get(header.FIELD)
    if head is None and segment.entry.header:
        raise SegmentGoneError(segment)
    return read_index(segment, read_header(segment, head))


def _families(segment: Segment, index: Index, below: Families) -> Families:
    families = below.after(index.head)
    if not families.ids.issuperset(index.ids):
        raise FormatError(f"applying {segment.ident}", found="a row belongs to no family")
    check_time(segment, families.table)
    if families is not below and not segment.alone:
        check_ttl_kept(segment, below.table, families.table)
    return families


def _cleared(index: Index, below: LocalVersion) -> dict[bytes, bytes | None]:
    """Returns the keys that a segment's tombstones remove from the version below."""
    gone: dict[bytes, bytes | None] = {}
    for tombstone in index.head.tombstones:
        low, high = family_range(tombstone.family)
        if tombstone.end is not None:
            high = stored_key(tombstone.family, tombstone.end)
        gone.update(
            (key, None) for key, _ in below.rows_between(low + (tombstone.start or b""), high)
        )
    return gone


def _resolved(
    rows: dict[bytes, Value],
    grown: Sequence[bytes],
    below: LocalVersion,
    gone: Mapping[bytes, bytes | None],
) -> dict[bytes, bytes | None]:
    """Returns rows with whole values: appended elements follow the list of the version below."""
    ends = [key for key in grown if isinstance(rows[key], Appended)]
    for key, value in zip(ends, below.get_many(ends) if ends else (), strict=True):
        before = None if key in gone else value
        rows[key] = (before or b"") + cast("Appended", rows[key]).data
    return cast("dict[bytes, bytes | None]", rows)
