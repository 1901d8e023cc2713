"""Opens a version and reads what this process needs of it (docs/format.md, section 7)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import cast

from redis_state.errors import ConflictError, FormatError, UnavailableError
from redis_state.format import header
from redis_state.format.entry import Segment
from redis_state.format.header import Family
from redis_state.format.ordered import (
    FAMILY_ID,
    PREFIX,
    Index,
    block_names,
    read_block,
    read_index,
)
from redis_state.format.rows import Appended, Value
from redis_state.format.segment import checksum, read_header
from redis_state.ids import EMPTY, Pin
from redis_state.protocol import Opened, PartitionClient, SegmentGoneError
from redis_state.protocol.refusal import lost
from redis_state.store.local_base import Base
from redis_state.store.local_state import History, Layer, LocalVersion, compacted

_LOADS_MAX = 5
_EAGER_BYTES_MAX = 256 << 10
_SMALL_BYTES = 1 << 20

log = logging.getLogger(__name__)


class Loader:
    """Turns what `open` lists into a local version.

    Args:
        where: What errors call the partition.
    """

    def __init__(self, client: PartitionClient, *, where: str) -> None:
        self._client = client
        self._where = where

    def empty(self) -> LocalVersion:
        """Version 0."""
        return LocalVersion(EMPTY, 0, None, (), None, History(), self.reload)

    def open(
        self, run_id: str, version: int | None, cached: Mapping[Pin, LocalVersion]
    ) -> tuple[Opened, LocalVersion]:
        """Open a version as `PartitionClient.open` and load it over what is cached.

        Raises:
            StateError: The version is not there, or not whole.
            ConflictError: As `PartitionClient.open`.
            FormatError: A segment is damaged, or is none of a Python store.
        """
        gone: Segment | None = None
        for _ in range(_LOADS_MAX):
            opened = self._client.open(run_id, version, list(cached))
            if gone is not None and gone in opened.segments:
                # The manifest still counts on a segment that is not whole: nobody replaced it.
                raise lost(
                    f"reading {gone.ident}",
                    latest=str(gone.version - 1),
                    where=self._where,
                    version=opened.pin.version,
                )
            try:
                return opened, self._load(opened, cached.get(opened.start))
            except SegmentGoneError as error:
                gone = error.segment
                log.info("%s: %s was replaced while it was read", self._where, gone.ident)
        raise UnavailableError(
            f"reading version {version}",
            found="its segments are replaced faster than they can be read",
            where=self._where,
        )

    def reload(self, pin: Pin) -> LocalVersion:
        """The same version from the segments that make it up now.

        Raises:
            StateError: It is not there any more.
            ConflictError: Another attempt took its place.
        """
        opened, found = self.open("", pin.version, {})
        if opened.pin != pin:
            raise ConflictError(
                f"reading version {pin.version} on",
                found="another attempt took its place",
                advice="Open the version again.",
                where=self._where,
                version=pin.version,
            )
        return found

    def _load(self, opened: Opened, start: LocalVersion | None) -> LocalVersion:
        segments = list(reversed(opened.segments))
        at = start or self.empty()
        layers, base = list(at.parts[0]), at.parts[1]
        family, history, live, last = at.family, at.history, at.live, at.pin
        if segments and (start is None or segments[0].alone):
            first = segments.pop(0)
            if not first.alone:
                raise FormatError(f"applying {first.ident}", found="it does not stand alone")
            base, family = self._base(first)
            layers = []
            history = History(base_bytes=first.entry.bytes)
            live, last = first.entry.live, Pin(first.version, first.uid)
        fetched = self._together(segments)
        for segment in segments:
            if segment.alone or (last.version + 1, last.uid) != (
                segment.version,
                segment.entry.ref,
            ):
                raise FormatError(
                    f"applying {segment.ident}", found="its parent is another version"
                )
            below = LocalVersion(last, live, family, layers, base, history, self.reload)
            layer, changed = self._layer(segment, below, fetched.get(segment))
            layers = compacted([layer, *layers], base) if layer.rows else layers
            family = changed or family
            history = history.plus(segment.entry.bytes)
            live, last = segment.entry.live, Pin(segment.version, segment.uid)
        if last != opened.pin:
            raise FormatError("opening the state", found="the segments end at another version")
        return LocalVersion(opened.pin, live, family, layers, base, history, self.reload)

    def _base(self, segment: Segment) -> tuple[Base | None, Family | None]:
        if not segment.entry.blocks:
            return None, None
        names = [header.FIELD]
        if segment.entry.bytes <= _EAGER_BYTES_MAX:
            names += block_names(segment)
        head, *blocks = self._fetch(segment, names)
        index = read_index(segment, read_header(segment, head or None))
        base = Base(self._client, segment, index, head)
        if blocks:
            base.take(range(len(blocks)), blocks)
        return base, index.family

    def _together(self, segments: Sequence[Segment]) -> dict[Segment, list[bytes]]:
        """The fields of all small segments."""
        small = [one for one in segments if one.entry.blocks and one.entry.bytes <= _SMALL_BYTES]
        wanted = [(one, [header.FIELD, *block_names(one)]) for one in small]
        found = self._client.fetch_together(wanted) if wanted else []
        return {one: _there(one, raws) for one, raws in zip(small, found, strict=True)}

    def _layer(
        self, segment: Segment, below: LocalVersion, fetched: list[bytes] | None
    ) -> tuple[Layer, Family | None]:
        entry = segment.entry
        if not entry.blocks:
            return Layer({}, 0, []), None
        names = [header.FIELD, *block_names(segment)]
        raws = self._fetch(segment, names) if fetched is None else fetched
        fields = dict(zip(names, raws, strict=True))
        if checksum({name: raw for name, raw in fields.items() if raw}) != entry.checksum:
            raise FormatError(f"reading {segment.ident}", found="the checksum does not match")
        index = read_index(segment, read_header(segment, raws[0] or None))
        family = index.family or below.family
        lists = family is not None and family.multi_value
        keys: list[bytes] = []
        found: dict[bytes, Value] = {}
        for number, raw in enumerate(raws[1:]):
            some, values = read_block(segment, index, number, raw, lists=lists)
            keys += some
            found.update(zip(some, values, strict=True))
        if len(keys) != entry.rows:
            raise FormatError(f"reading {segment.ident}", found=f"its rows are not {entry.rows}")
        size = sum(map(len, raws))
        if not (lists or index.head.tombstones):
            # Without lists nothing was appended.
            return Layer(cast("dict[bytes, bytes | None]", found), size, keys), index.family
        gone = _cleared(index, below)
        return Layer(gone | _resolved(found, below, gone), size), index.family

    def _fetch(self, segment: Segment, names: Sequence[str]) -> list[bytes]:
        return _there(segment, self._client.fetch(segment, names))


def _there(segment: Segment, found: Sequence[bytes | None]) -> list[bytes]:
    """The header, empty if the segment has none, and blocks which all are there."""
    if any(raw is None for raw in found[segment.entry.header ^ 1 :]):
        raise SegmentGoneError(segment)
    return [raw or b"" for raw in found]


def _cleared(index: Index, below: LocalVersion) -> dict[bytes, bytes | None]:
    """The keys that a segment's tombstones remove from the version below."""
    gone: dict[bytes, bytes | None] = {}
    for tombstone in index.head.tombstones:
        if tombstone.family == FAMILY_ID:
            start = PREFIX + (tombstone.start or b"")
            end = None if tombstone.end is None else PREFIX + tombstone.end
            gone.update((key, None) for key, _ in below.rows_between(start, end))
    return gone


def _resolved(
    rows: dict[bytes, Value], below: LocalVersion, gone: Mapping[bytes, bytes | None]
) -> dict[bytes, bytes | None]:
    """Rows with whole values: what was appended goes behind what the version below says."""
    below.read_for([key for key, value in rows.items() if isinstance(value, Appended)])
    whole: dict[bytes, bytes | None] = {}
    for key, value in rows.items():
        if isinstance(value, Appended):
            before = None if key in gone else below.get(key)
            whole[key] = (before or b"") + value.data
        else:
            whole[key] = value
    return whole
