"""Checkpoint that a store gets with its new number of partitions; no pyspark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.batches.driver import PLACE, named, not_opened
from redis_state.errors import StateError
from redis_state.ids import PartitionId, Pin, StoreId
from redis_state.protocol import PartitionClient, RegisteredRun
from redis_state.protocol.opening import open_commands, read_replies
from redis_state.protocol.runs import STAGED_TTL_MS
from redis_state.rescaling.rows import renew


@dataclass(frozen=True, slots=True)
class RescaledCheckpoint:
    """A checkpoint with one store.

    Attributes:
        what: The attempted operation, for error messages.
        partitions: Number of partitions.
    """

    client: Client
    what: str
    store: StoreId
    partitions: int

    @property
    def gen(self) -> str:
        """Returns the checkpoint id."""
        return self.store.gen

    @property
    def ids(self) -> list[PartitionId]:
        """Returns the ids of all partitions."""
        return [PartitionId(self.store, number) for number in range(self.partitions)]

    def take(self, run: RegisteredRun, pins: Sequence[Pin], *, retained: int) -> None:
        """Acquires the partitions, so that no run registered earlier can write them.

        A task of an older run that wakes up late finds these partitions by the store's name.

        Args:
            pins: Version and uid at which each partition was made.
        """
        for id_, pin in zip(self.ids, pins, strict=True):
            partition = PartitionClient(
                self.client, id_, versions_to_retain=retained, keep_ms=STAGED_TTL_MS
            )
            partition.acquire(run, pin)

    def describe(self, fields: Mapping[str, str]) -> None:
        """Writes the registry of the checkpoint, which expires unless `keep` is called."""
        flat = [word for pair in fields.items() for word in pair]
        expires = ("PEXPIRE", self._query, str(STAGED_TTL_MS))
        self.client.call(self.what, [("HSET", self._query, "f", "1", *flat), expires])

    def keep(self, keep_ms: int) -> bool:
        """Sets the expiry of the whole checkpoint; 0 keeps the checkpoint for ever.

        Returns:
            True if every partition exists.
        """
        there = [renew(self.client, id_, keep_ms)[0] == "OK" for id_ in self.ids]
        self.client.script(self.what, script("stay"), [self._query], [str(keep_ms)])
        return all(there)

    def is_whole(self, pins: Sequence[Pin]) -> bool:
        """Returns whether the registry exists and each partition is still as it was made."""
        described, *found = self.client.call(
            self.what,
            [
                ("HEXISTS", self._query, f"batch:{PLACE}"),
                *(("HMGET", keys.meta(id_), "l", "lu") for id_ in self.ids),
            ],
        )
        made = [[str(pin.version).encode(), pin.uid.encode()] for pin in pins]
        return bool(described) and found == made

    def rows(self, version: int) -> tuple[int, ...]:
        """Returns the number of rows of each partition, without those of internal families.

        Raises:
            StateError: A partition does not hold the version.
        """
        replies = self.client.call(self.what, open_commands(self.ids, version))
        missing = not_opened(self.ids, replies, what=self.what)
        if missing:
            raise StateError(
                self.what,
                found=(
                    f"its state was moved to checkpoint {self.gen}, where {named(missing)} lacks "
                    f"version {version}"
                ),
                advice="Restore the data of that Redis.",
                version=version,
            )
        opened = read_replies(self.ids, replies, version=version)
        entries = [one.segments[0].entry for one in opened]
        return tuple(entry.live - entry.internal for entry in entries)

    @property
    def _query(self) -> str:
        return keys.query(self.gen, tenant=self.store.tenant)
