"""How queries stand, as Redis lists it: the values that `Reader.status` gives.

Numbers come from manifests and the registry alone; no row was read for them. Times are milliseconds
since 1970 by the server's clock; 0 means that the time is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from redis_state.format.header import Family
from redis_state.protocol.instances import LATELY_MS, Instance


class Hold(str, Enum):
    """Why the oldest versions of a partition are still there.

    Attributes:
        OPTION: As many are kept as the query asks for.
        SNAPSHOT: The kept versions stand on an older one, until a snapshot closer to them is made.
        MAINTENANCE: Nothing needs them any more; the next maintenance drops them.
    """

    OPTION = "option"
    SNAPSHOT = "snapshot"
    MAINTENANCE = "maintenance"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One partition of a store.

    Attributes:
        confirmed: The newest version that the query has confirmed; 0 for none.
        newest: The version that was published last.
        kept: How many versions the manifest has a delta or a snapshot of.
        oldest: The oldest of them; 0 for none.
        wanted: How many versions the query asks to keep.
        held_by: Why the oldest is still there; ``None`` if there is none.
        rows: Keys of the confirmed version, without those of internal families.
        internal_rows: Its keys of families that Spark or a processor keeps for itself.
        snapshot: Version of the newest snapshot; 0 for none.
        snapshot_bytes: Of that snapshot.
        delta_bytes: Of all kept deltas.
        bytes: Of everything that the manifest names; older snapshots are in it, too.
        written_ms: When it was written last. A partition notes that once a minute, so it may have
            been written up to a minute later.
        run: Which run holds it; empty if none does.
        owner: The process that serves it and reported within the last minute; ``None`` if none did.
        problem: Why numbers are missing; empty if none are.
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
    written_ms: int = 0
    run: str = ""
    owner: Instance | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """One store of a stateful operator; only stream-stream joins have several.

    Attributes:
        operator: Spark's id of the operator.
        store: Spark's name of the store.
        name: Spark's name of the operator, such as ``stateStoreSave``; may be empty.
        families: Column families as the query has listed them. Of `transformWithState` the list
            names the first alone; `OperatorState.families` names all.
        first_batch: The batch with which the store began; ``None`` if its versions are not batches.
        first_version: The version that this batch made: 2 above an initial state, else 1.
        watermark_ms: Of the newest batch of a processor in Python; ``None`` where Redis does not
            know it, as with all of Spark's own operators. 0 means that there is none.
        began_ms: When that batch began.
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
        """Of everything that the manifests name."""
        return sum(one.bytes for one in self.partitions)

    def batch_of(self, version: int) -> int | None:
        """The batch that made a version; ``None`` if no batch did."""
        if self.first_batch is None or version < self.first_version:
            return None
        return self.first_batch + version - self.first_version


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """A query by one checkpoint.

    What it tells of a partition is of one moment; partitions are looked at one after the other, so
    one may be a batch ahead of another.

    Attributes:
        gen: Id of the checkpoint.
        id: Spark's id of the query.
        name: Empty if the query has none.
        created_ms: When the checkpoint was first used.
        seen_ms: When the newest run began to write, as the list of checkpoints says.
        started_ms: When the newest run was registered.
        run: The newest run; empty if none is registered.
        driver_ms: When the driver of a run reported last that it is alive; 0 where no driver
            reports, as with stores of Python. It reports every minute.
        now_ms: When it was looked.
        bytes_max: What the option `stateBytesMax` allows; 0 for no limit.
        prefix_bytes_max: What `prefixBytesMax` allows all queries of the key prefix together.
        prefix_bytes: What these have, as far as it was measured for that; 0 if nobody did.
        copy_every: After how many batches the driver copies the state (`copyEveryBatches`); 0 for
            never.
        copied_version: Of the newest copy that its drivers told of; 0 for none.
        copied_ms: When that was made.
        replaced_by: Id of the checkpoint that the same folder has now, after it was deleted and
            created again; empty if this is the one.
        problem: Why something is missing; empty if nothing is. Partitions have their own.
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

    @property
    def title(self) -> str:
        """What to call the query: its name, or else the id that it has."""
        return self.name or self.id or self.gen

    @property
    def partitions(self) -> Iterator[PartitionStatus]:
        """Those of all stores."""
        return (one for store in self.stores for one in store.partitions)

    @property
    def confirmed_batch(self) -> int | None:
        """The newest batch that every partition has confirmed; ``None`` if there is none."""
        batches = [of.batch_of(one.confirmed) for of in self.stores for one in of.partitions]
        known = [batch for batch in batches if batch is not None]
        return min(known) if known and len(known) == len(batches) else None

    @property
    def newest_batch(self) -> int | None:
        """The newest batch that any partition has published; ``None`` if there is none."""
        batches = [of.batch_of(one.newest) for of in self.stores for one in of.partitions]
        return max((batch for batch in batches if batch is not None), default=None)

    @property
    def copied_batch(self) -> int | None:
        """The newest batch whose state was copied; ``None`` if none was."""
        batches = [of.batch_of(self.copied_version) for of in self.stores if self.copied_version]
        return max((batch for batch in batches if batch is not None), default=None)

    @property
    def written_ms(self) -> int:
        """When the partition that was written last was written, to the minute."""
        return max((one.written_ms for one in self.partitions), default=0)

    @property
    def rows(self) -> int:
        """Keys of the confirmed versions, without those of internal families."""
        return sum(of.rows for of in self.stores)

    @property
    def bytes(self) -> int:
        """Of everything that the manifests name."""
        return sum(of.bytes for of in self.stores)

    @property
    def limit_share(self) -> float | None:
        """How near the nearer limit is, 1 being reached; ``None`` if there is none."""
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
        """How many partitions have an owner."""
        return sum(one.owner is not None for one in self.partitions)

    @property
    def driver_alive(self) -> bool | None:
        """Whether the driver reported lately; ``None`` if none ever did."""
        return self._lately(self.driver_ms) if self.driver_ms else None

    @property
    def alive(self) -> bool:
        """Whether anything shows that the query runs: its driver, an owner, or a late write."""
        times = (self.driver_ms, self.written_ms, self.started_ms)
        return self.served > 0 or any(self._lately(at_ms) for at_ms in times if at_ms)

    @property
    def problems(self) -> list[str]:
        """What is wrong with the query or its partitions; empty if nothing is."""
        of_partitions = (
            f"operator {one.operator} partition {one.partition} store {one.store}: {one.problem}"
            for one in self.partitions
            if one.problem
        )
        return [*([self.problem] if self.problem else []), *of_partitions]

    def _lately(self, at_ms: int) -> bool:
        return self.now_ms - at_ms < LATELY_MS
