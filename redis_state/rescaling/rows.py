"""Copies the rows of one version from the old partitions to the new ones; no pyspark.

The blocks of unbounded partitions go to Redis as they come. Those of bounded ones wait on the local
disk until the version is complete, and then go into a file for each partition.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.batches.event_time import NOTES_KEY, Notes
from redis_state.errors import FormatError, UnavailableError
from redis_state.files import Folder
from redis_state.format.entry import Segment
from redis_state.format.header import Family
from redis_state.format.rows import FAMILY_BYTES, stored_key
from redis_state.format.segment import OrderedBlocks, SegmentWriter
from redis_state.ids import PartitionId
from redis_state.keys import meta
from redis_state.places.born import Unborn, fits_redis, write_file
from redis_state.places.spool import Spool, SpooledBlocks
from redis_state.protocol import PartitionClient, SegmentGoneError
from redis_state.protocol.runs import STAGED_TTL_MS
from redis_state.protocol.version_rows import VersionRows
from redis_state.rescaling.placing import Hash, Placing, cannot

BLOCKS_AT_ONCE = 64
_IS_MADE = "1"  # no other checkpoint pins it
_SURE = 64

PlainRow = tuple[bytes, bytes]
"""A stored key and its value."""

Placed = tuple[int, PlainRow]
"""Number of the partition that holds a row, and the row."""


@dataclass(slots=True)
class PassCounts:
    """Result of one pass over a version.

    Attributes:
        rows: Number of rows by new partition, without those of internal families.
        proven: True if enough different keys lie where their hashes say.
    """

    rows: list[int]
    proven: bool = False


@dataclass(slots=True)
class RescaleTarget:
    """A version of one new partition, while its rows come.

    Attributes:
        highest_id: Highest id of all families that the lineage ever had.
        time_s: Time of the version; see `RescaleSource`.
        spool: Where blocks wait for `place`; ``None`` sends them to Redis.
    """

    client: Client
    id: PartitionId
    version: int
    uid: str
    ref: str
    families: Sequence[Family]
    highest_id: int
    time_s: int
    spool: Spool | None = None
    writer: SegmentWriter = field(init=False)
    live: int = 0
    internal: int = 0
    _partition: PartitionClient = field(init=False)
    _blocks: OrderedBlocks | None = None
    _spooled: SpooledBlocks | None = None

    def __post_init__(self) -> None:
        self._spooled = self.spool.segment() if self.spool else None
        self._partition = PartitionClient(self.client, self.id, versions_to_retain=1)
        self.writer = SegmentWriter(f"d:{self.version}:{self.uid}", self.families, buckets=1)

    def begin(self, family: Family) -> None:
        """Begins the rows of a family."""
        self._blocks = self.writer.begin_ordered(family.id)

    def put(self, row: PlainRow, *, internal: bool) -> None:
        """Adds a row, and sends blocks when enough are complete."""
        assert self._blocks is not None
        self._blocks.put(row)
        self.live += 1
        self.internal += internal
        if len(self.writer.fields) >= BLOCKS_AT_ONCE:
            self._stage()

    def end(self) -> None:
        """Ends the rows of a family."""
        assert self._blocks is not None
        self._blocks.end()

    def finish(self) -> Segment:
        """Passes the remaining blocks on, and returns the segment."""
        entry = self.writer.finish(
            ref=self.ref,
            live=self.live,
            complete=True,
            with_families=True,
            internal=self.internal,
            highest_id=self.highest_id,
            time=self.time_s,
        )
        self._stage()
        return Segment(False, self.version, self.uid, entry)

    def place(self, segment: Segment, folder: Folder, *, parts: int) -> Segment:
        """Writes waiting blocks into a file, or sends them to Redis if they are few.

        Args:
            folder: Folder of the new checkpoint's files.
            parts: Number of versions of the partition.

        Returns:
            The segment, with its place.
        """
        if self._spooled is None:
            return segment
        if fits_redis(segment.entry, parts=parts):
            for fields in self._spooled.blocks():
                self._partition.stage(segment.ident, segment.ident, fields)
            return segment
        unborn = Unborn(segment.ident, self._spooled.blocks(), lambda: segment)
        born = write_file(self.client, self.id, folder, [unborn], version=self.version, is_new=True)
        return replace(segment, place=born[0].place) if born else segment

    def _stage(self) -> None:
        ident, fields = self.writer.ident, self.writer.drain()
        if self._spooled is None:
            self._partition.stage(ident, ident, fields)
        else:
            self._spooled.add(fields)


class RescaleSource:
    """One version of all partitions of a store, with its deltas in memory.

    Attributes:
        families: Families of all partitions, with new ids where the partitions disagree.
        highest_id: Highest id of all families that a partition ever had.
        time_s: Time of the version in all new partitions: the earliest of the old ones, where each
            leaves out the rows that are expired at its own time. So the version has the same rows.

    Raises:
        StateError: A partition does not hold the version.
        FormatError: A partition is damaged, or the partitions disagree about a family.
    """

    def __init__(self, client: Client, ids: Sequence[PartitionId], version: int) -> None:
        self.version = version
        self._parts: list[VersionRows] = []
        self._wheres = [str(id_) for id_ in ids]
        for id_ in ids:
            partition = PartitionClient(client, id_, versions_to_retain=1)
            opened = partition.open("", version)
            self._parts.append(VersionRows(partition.fetch, opened.segments, where=str(id_)))
        self._counts = [0] * len(ids)
        self.time_s = min((part.time_s for part in self._parts), default=0)
        self.families = _united([part.families for part in self._parts])
        highest = [part.highest_id for part in self._parts]
        self.highest_id = max([*highest, *(family.id for family in self.families)], default=0)

    def spread(
        self, placing: Placing, partitions: int, targets: Sequence[RescaleTarget]
    ) -> PassCounts:
        """Reads all rows once and adds each to its new partition.

        Args:
            targets: Targets by new partition; empty only counts the rows.

        Raises:
            UsageError: A row does not lie where the hash of its key columns says.
            FormatError: A segment is damaged.
            UnavailableError: Maintenance replaced a segment during the pass.
        """
        for part in self._parts:
            # Python stores write ordered families only.
            if any(rows for rows in part.hashed()):
                raise cannot("it has rows that no Python store writes")
        found = PassCounts([0] * partitions)
        hashes: set[int] = set()
        try:
            for family in self.families:
                for target in targets:
                    target.begin(family)
                self._spread_family(family, placing.hash_of(family), found, targets, hashes)
                for target in targets:
                    target.end()
        except SegmentGoneError as error:
            raise UnavailableError(
                "reading the rows of a store",
                found=f"maintenance replaced {error.segment.ident} meanwhile",
                advice="Nothing was changed. Try again.",
            ) from error
        for part, count in zip(self._parts, self._counts, strict=True):
            part.check(count)
        found.proven = len(hashes) >= _SURE and len(self._parts) > 1
        return found

    def _spread_family(
        self,
        family: Family,
        hash_of: Hash | None,
        found: PassCounts,
        targets: Sequence[RescaleTarget],
        hashes: set[int],
    ) -> None:
        before, after = len(self._parts), len(found.rows)
        streams = [self._rows(at, family) for at in range(before)]
        if hash_of is None:
            notes = _merged_notes(row for stream in streams for _, row in stream)
            if notes is not None:
                for target in targets:
                    target.put((NOTES_KEY, notes.encode()), internal=True)
            return
        for at, row in heapq.merge(*streams, key=_by_key):
            hashed = hash_of(row[0])
            if hashed % before != at:
                raise cannot(
                    f"a row of family '{family.name}' lies in {self._wheres[at]}, but its key "
                    f"columns belong to partition {hashed % before}"
                )
            if len(hashes) < _SURE:
                hashes.add(hashed)
            to = hashed % after
            found.rows[to] += not family.internal
            if targets:
                targets[to].put(row, internal=family.internal)

    def _rows(self, at: int, family: Family) -> Iterator[Placed]:
        """Yields the rows of a family in one partition, with the family's new id in their keys."""
        part = self._parts[at]
        own = next((one for one in part.families if one.name == family.name), None)
        if own is None:
            return
        prefix = stored_key(family.id, b"")
        for key, value in part.ordered(own.id):
            self._counts[at] += 1
            yield at, (prefix + key[FAMILY_BYTES:], value)


def _by_key(found: Placed) -> bytes:
    return found[1][0]


def _merged_notes(rows: Iterator[PlainRow]) -> Notes | None:
    """Merges the event times of all partitions, so that the watermark does not change."""
    found = [Notes.decode(value) for _, value in rows]
    if not found:
        return None
    return Notes(max(one.newest_ms for one in found), max(one.watermark_ms for one in found))


def _united(tables: Sequence[Sequence[Family]]) -> tuple[Family, ...]:
    """Unites the families of all partitions by name; assigns new ids if any ids differ.

    Raises:
        FormatError: Two families of the same name differ.
    """
    by_name: dict[str, list[Family]] = {}
    for family in sorted((one for table in tables for one in table), key=lambda one: one.id):
        by_name.setdefault(family.name, []).append(family)
    found = [same[0] for same in by_name.values()]
    for family in found:
        if any(replace(one, id=family.id) != family for one in by_name[family.name]):
            raise FormatError(
                "reading the families of a store",
                found=f"family '{family.name}' is not the same in all partitions",
                advice="Run one batch of the query to its end, then try again.",
            )
    if all(len({one.id for one in same}) == 1 for same in by_name.values()):
        return tuple(found)
    return tuple(replace(one, id=found[0].id + at) for at, one in enumerate(found))


def restore(
    client: Client, id_: PartitionId, segments: Sequence[Segment], *, floor: int, retained: int
) -> None:
    """Creates a partition from segments, newest version first; it expires unless kept.

    Raises:
        UnavailableError: The server lost what was sent.
    """
    newest = segments[0]
    words = [str(newest.version), newest.uid, str(floor), str(retained), "1"]
    for one in segments:
        words += [one.field, one.entry.text, one.place.text if one.place else ""]
    what = f"making {id_}"
    # In one transaction, so that a call that dies leaves nothing that never expires.
    made = [
        script("restore").call([meta(id_)], *words),
        script("renew").call([meta(id_)], str(STAGED_TTL_MS), _IS_MADE),
    ]
    reply, _ = client.transaction(what, made)
    if reply[0] not in (b"OK", b"PRESENT"):
        raise UnavailableError(
            what,
            found="the server lost what was sent",
            advice=(
                "Nothing was changed. A volatile-* eviction policy does that when memory is "
                "short: give the server more memory, then try again."
            ),
        )


def renew(client: Client, id_: PartitionId, keep_ms: int) -> list[str]:
    """Sets the expiry of a new partition, 0 for none, and returns the script's reply."""
    args = [str(keep_ms), _IS_MADE]
    return client.script(f"making {id_}", script("renew"), [meta(id_)], args)
