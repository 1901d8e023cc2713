"""Stored rows that a batch changed in a partition, and those of a whole state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from redis_state.format.header import Family
from redis_state.format.rows import family_of
from redis_state.format.segment import SegmentContent
from redis_state.ids import PartitionId
from redis_state.protocol.opening import Opened
from redis_state.reader.feed.changed_rows import ChangedRow, changed_rows, fold, named
from redis_state.reader.feed.deltas import Timeline
from redis_state.reader.feed.family_location import FamilyLocation
from redis_state.reader.lookup.points import Points
from redis_state.reader.scan import rows_of

Changed = tuple[ChangedRow, Family | None]
"""A row, and the family after the batch; ``None`` if the family was dropped."""


class PartitionChanges:
    """Reads changes version by version, and remembers the families of the last version."""

    def __init__(self) -> None:
        self._tables: dict[PartitionId, tuple[int, Sequence[Family]]] = {}

    def whole(self, place: FamilyLocation, opened: Opened) -> Iterator[tuple[Family, bytes, bytes]]:
        """Yields the rows of a version of a partition.

        Raises:
            RedisStateError: See `scan.rows_of`.
        """
        table: Sequence[Family] | None = None
        family: Family | None = None
        for key, value, families in rows_of(place.client, opened):
            if families is not table:
                table, family = families, named(families, place.name)
                self._tables[opened.id] = (opened.pin.version, families)
            if family is not None and family_of(key) == family.id:
                yield family, key, value

    def below(
        self, place: FamilyLocation, timelines: Sequence[Timeline], version: int
    ) -> dict[PartitionId, Points]:
        """Opens the versions below in partitions with unknown families, in few round trips.

        Raises:
            StateError: A partition no longer holds the version.
        """
        unknown = [
            one
            for one in timelines
            if version > 1
            and self._tables.get(one.id, (0, ()))[0] != version - 1
            and one.deltas[version].entry.blocks
        ]
        opened = place.open(unknown, version - 1)
        return {one.id: Points(place.client, one) for one in opened}

    def rows(
        self,
        place: FamilyLocation,
        timeline: Timeline,
        version: int,
        content: SegmentContent,
        points: Points | None,
    ) -> Iterator[Changed]:
        """Yields the changes of a version in a partition, each key once.

        Args:
            content: Content of the delta that made the version.
            points: The version below, if `below` has opened it.

        Raises:
            RedisStateError: See `changed_rows`.
        """
        segment, id_ = timeline.deltas[version], timeline.id

        @cache
        def below() -> Points:
            return points or Points(place.client, place.open([timeline], version - 1)[0])

        known, table = self._tables.get(id_, (0, ()))
        if known != version - 1:
            if not segment.entry.blocks and not segment.entry.complete:
                return
            table = below().families() if version > 1 else ()
        folded, table = fold(place.name, table, [(segment, content)])
        self._tables[id_] = (version, table)
        for row in changed_rows(folded, below, with_before=False):
            yield row, folded.after
