"""Status of queries as Redis lists it: the result types of `Reader.status`.

Numbers come from manifests and the registry alone; no row is read. Times are milliseconds since
1970 by the server's clock; 0 means that the time is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from redis_state.format.header import Family
from redis_state.protocol.instances import LATELY_MS, Instance


class Hold(str, Enum):
    """Reason why the oldest versions of a partition are still kept.

    Attributes:
        OPTION: The query asks for this number of versions.
        SNAPSHOT: The retained versions need an older one until a newer snapshot is written.
        MAINTENANCE: Nothing needs the oldest versions; the next maintenance drops them.
    """

    OPTION = "option"
    SNAPSHOT = "snapshot"
    MAINTENANCE = "maintenance"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class PinStatus:
    """An owner that pins segments: a fork, or a version that is kept under a name.

    Attributes:
        owner: Checkpoint id of the fork, or name of the kept version.
        kind: `fork` or `keep`.
        version: The pinned version.
        expires_ms: Time when the pin ends; 0 for never.
        bytes: Bytes of the pinned segments that no version of the query needs. Segments with
            several owners count for each of them.
        title: Name of the fork, or its id; empty if unknown.
    """

    owner: str
    kind: str
    version: int
    expires_ms: int
    bytes: int = 0
    title: str = ""


@dataclass(frozen=True, slots=True)
class FileTally:
    """Number of files in each state, and their bytes (docs/format.md, section 17).

    Attributes:
        announced: Files that got no segment yet; most of them are from moves that failed.
        used: Files that segments are in.
        condemned: Files that nothing needs, and that are there until somebody deletes them.
    """

    announced: int = 0
    used: int = 0
    condemned: int = 0
    used_bytes: int = 0
    condemned_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition of a store.

    Attributes:
        confirmed: The newest version that the query has confirmed; 0 without any.
        newest: The version that was published last.
        kept: Number of versions with a delta or a snapshot in the manifest.
        oldest: The oldest retained version; 0 without any.
        wanted: Number of versions that the query asks to keep.
        held_by: Reason why the oldest version is kept; ``None`` without any version.
        rows: Keys of the confirmed version, without those of internal families.
        internal_rows: Keys of families that are internal to Spark or a processor.
        snapshot: Version of the newest snapshot; 0 without any.
        snapshot_bytes: Bytes of that snapshot.
        delta_bytes: Bytes of all kept deltas.
        bytes: Bytes of all segments that the partition has in Redis, older snapshots included, and
            those that only pins hold. Segments that a fork reads from its parent are not counted.
        pinned_bytes: Bytes of segments that no version of the query needs, and only pins hold.
        foreign_bytes: Bytes of segments that a fork reads from its parent.
        file_bytes: Bytes of segments in files, which are not in Redis.
        history_bytes: Bytes in Redis of segments that the newest snapshot makes history; with
            `history=files` they wait for a file.
        share: Most bytes of the partition in Redis, by `redisMemory`; 0 without a bound.
        share_bytes: Bytes that count toward the share, staged and just dropped ones included; at
            least what is there, and exact after each maintenance.
        largest_change: Room in Redis that the largest kept delta takes; 0 without a bound.
        files: Files that Redis knows, by their state; ``None`` where the query never had files.
        pins: Forks and kept versions that hold segments of the partition.
        written_ms: Time of the last write, at most a minute too early: a partition notes writes
            once a minute.
        run: Run that holds the partition; empty if no run does.
        owner: Process that serves the partition and reported within the last minute; ``None``
            without any.
        problem: Reason why numbers are missing; empty if none are.
    """

    operator: int
    store: str
    partition: int
    confirmed: int = 0
    newest: int = 0
    kept: int = 0
    oldest: int = 0
    wanted: int = 0
    held_by: Hold | None = None
    rows: int = 0
    internal_rows: int = 0
    snapshot: int = 0
    snapshot_bytes: int = 0
    delta_bytes: int = 0
    bytes: int = 0
    pinned_bytes: int = 0
    foreign_bytes: int = 0
    file_bytes: int = 0
    history_bytes: int = 0
    share: int = 0
    share_bytes: int = 0
    largest_change: int = 0
    files: FileTally | None = None
    written_ms: int = 0
    run: str = ""
    owner: Instance | None = None
    problem: str = ""
    pins: tuple[PinStatus, ...] = ()


def fullest(partitions: Iterable[PartitionStatus]) -> float | None:
    """Returns the used fraction of the fullest share; ``None`` if no partition has a bound."""
    return max((one.share_bytes / one.share for one in partitions if one.share), default=None)


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """One store of a stateful operator; only stream-stream joins have several.

    Attributes:
        operator: Spark's id of the operator.
        store: Spark's name of the store.
        name: Spark's name of the operator, such as ``stateStoreSave``; may be empty.
        families: Column families as the query has listed them. Of `transformWithState` the list
            has the first one only; `OperatorState.families` has all.
        first_batch: The first batch of the store; ``None`` if its versions are not batches.
        first_version: The version that this batch made: 2 above an initial state, else 1.
        watermark_ms: Watermark of the newest batch of a Python processor; 0 means that it has none.
            ``None`` where Redis does not know it, as with all of Spark's own operators.
        began_ms: Start of that batch.
    """

    operator: int
    store: str
    name: str
    families: tuple[Family, ...]
    partitions: tuple[PartitionStatus, ...]
    first_batch: int | None = 0
    first_version: int = 1
    watermark_ms: int | None = None
    began_ms: int = 0

    @property
    def rows(self) -> int:
        """Keys of the confirmed versions, without those of internal families."""
        return sum(one.rows for one in self.partitions)

    @property
    def internal_rows(self) -> int:
        """Keys of internal families."""
        return sum(one.internal_rows for one in self.partitions)

    @property
    def bytes(self) -> int:
        """Bytes of all segments that the manifests have in Redis, those that pins hold included."""
        return sum(one.bytes for one in self.partitions)

    def batch_of(self, version: int) -> int | None:
        """Returns the batch that made a version; ``None`` if no batch did."""
        if self.first_batch is None or version < self.first_version:
            return None
        return self.first_batch + version - self.first_version


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """The query of one checkpoint.

    The numbers of one partition are of one moment. Partitions are read one after the other, so one
    may be a batch ahead of another.

    Attributes:
        gen: Id of the checkpoint.
        id: Spark's id of the query.
        name: Empty if the query has none.
        created_ms: First use of the checkpoint.
        seen_ms: First write of the newest run, according to the list of checkpoints.
        started_ms: Registration of the newest run.
        run: The newest run; empty if none is registered.
        driver_ms: Last report of a run's driver, which reports every minute; 0 where no driver
            reports, as with stores of Python.
        now_ms: Time of the read.
        bytes_max: Limit of the option `stateBytesMax`; 0 for no limit.
        prefix_bytes_max: Limit of `prefixBytesMax` for all queries of the key prefix together.
        prefix_bytes: Bytes of these queries, as last measured for the limit; 0 if never measured.
        copy_every: Number of batches between copies of the state (`copyEveryBatches`); 0 for
            no copies.
        copied_version: Version of the newest copy that the drivers reported; 0 without any.
        copied_ms: Time of that copy.
        fork_of: Id of the checkpoint that this one was forked from, its parent; empty if it is no
            fork.
        fork_version: Version of the parent with which the fork began.
        fork_title: Name of the parent, or its id; empty if it is not listed any more.
        pins: Forks and kept versions that hold segments, over all partitions.
        moves_history: True if the newest writer has `history=files`.
        deletes_files: True if it has `placesDelete=true`.
        replaced_by: Id of the checkpoint that replaced this one, after its folder was deleted and
            created again; empty if this one is current.
        problem: Reason why values are missing; empty if none are. Partitions have their own.
    """

    gen: str
    id: str
    name: str
    created_ms: int
    seen_ms: int
    started_ms: int
    run: str
    driver_ms: int
    now_ms: int
    stores: tuple[StoreStatus, ...]
    replaced_by: str = ""
    problem: str = ""
    bytes_max: int = 0
    prefix_bytes_max: int = 0
    prefix_bytes: int = 0
    copy_every: int = 0
    copied_version: int = 0
    copied_ms: int = 0
    fork_of: str = ""
    fork_version: int = 0
    fork_title: str = ""
    pins: tuple[PinStatus, ...] = ()
    moves_history: bool = False
    deletes_files: bool = False

    @property
    def title(self) -> str:
        """Name of the query for messages: its name, or else its id."""
        return self.name or self.id or self.gen

    @property
    def partitions(self) -> Iterator[PartitionStatus]:
        """Partitions of all stores."""
        return (one for store in self.stores for one in store.partitions)

    @property
    def confirmed_batch(self) -> int | None:
        """The newest batch that every partition has confirmed; ``None`` without any."""
        batches = [of.batch_of(one.confirmed) for of in self.stores for one in of.partitions]
        known = [batch for batch in batches if batch is not None]
        return min(known) if known and len(known) == len(batches) else None

    @property
    def newest_batch(self) -> int | None:
        """The newest batch that any partition has published; ``None`` without any."""
        batches = [of.batch_of(one.newest) for of in self.stores for one in of.partitions]
        return max((batch for batch in batches if batch is not None), default=None)

    @property
    def copied_batch(self) -> int | None:
        """The newest batch whose state was copied; ``None`` without any."""
        batches = [of.batch_of(self.copied_version) for of in self.stores if self.copied_version]
        return max((batch for batch in batches if batch is not None), default=None)

    @property
    def written_ms(self) -> int:
        """Latest write to any partition, to the minute."""
        return max((one.written_ms for one in self.partitions), default=0)

    @property
    def rows(self) -> int:
        """Keys of the confirmed versions, without those of internal families."""
        return sum(of.rows for of in self.stores)

    @property
    def bytes(self) -> int:
        """Bytes of all segments that the manifests have in Redis, those that pins hold included."""
        return sum(of.bytes for of in self.stores)

    @property
    def pinned_bytes(self) -> int:
        """Bytes of segments that only pins hold."""
        return sum(one.pinned_bytes for one in self.partitions)

    @property
    def file_bytes(self) -> int:
        """Bytes of segments in files, which are not in Redis."""
        return sum(one.file_bytes for one in self.partitions)

    @property
    def history_bytes(self) -> int:
        """Bytes in Redis of segments that the newest snapshots make history."""
        return sum(one.history_bytes for one in self.partitions)

    @property
    def condemned_bytes(self) -> int:
        """Bytes of files that nothing needs, and that are still there."""
        return sum(one.files.condemned_bytes for one in self.partitions if one.files is not None)

    @property
    def share_ratio(self) -> float | None:
        """Used fraction of the fullest share; ``None`` if no partition has a bound."""
        return fullest(self.partitions)

    @property
    def foreign_bytes(self) -> int:
        """Bytes of segments that a fork reads from its parent."""
        return sum(one.foreign_bytes for one in self.partitions)

    @property
    def limit_share(self) -> float | None:
        """Used fraction of the nearer limit; ``None`` without limits."""
        shares = [
            size / limit
            for size, limit in (
                (self.bytes, self.bytes_max),
                (self.prefix_bytes, self.prefix_bytes_max),
            )
            if limit
        ]
        return max(shares, default=None)

    @property
    def served(self) -> int:
        """Number of partitions with an owner."""
        return sum(one.owner is not None for one in self.partitions)

    @property
    def driver_alive(self) -> bool | None:
        """True if the driver reported lately; ``None`` if no driver ever did."""
        return self._lately(self.driver_ms) if self.driver_ms else None

    @property
    def alive(self) -> bool:
        """True if the query seems to run: by its driver, an owner, or a recent write."""
        times = (self.driver_ms, self.written_ms, self.started_ms)
        return self.served > 0 or any(self._lately(at_ms) for at_ms in times if at_ms)

    @property
    def problems(self) -> list[str]:
        """Problems of the query and its partitions; empty if there are none."""
        of_partitions = (
            f"operator {one.operator} partition {one.partition} store {one.store}: {one.problem}"
            for one in self.partitions
            if one.problem
        )
        return [*([self.problem] if self.problem else []), *of_partitions]

    def _lately(self, at_ms: int) -> bool:
        return self.now_ms - at_ms < LATELY_MS
