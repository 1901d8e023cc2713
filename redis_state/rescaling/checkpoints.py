"""Checkpoints of a store that is rescaled: the present one and its copy; no pyspark."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_error
from redis_state.backend.script import script
from redis_state.backend.server import check_server
from redis_state.batches.driver import OPERATOR, PARTITIONS_MAX, PLACE, named
from redis_state.errors import NotFoundError, StateError, UsageError
from redis_state.ids import DEFAULT_STORE, PartitionId, Pin, StoreId, text_number
from redis_state.places import Places
from redis_state.places.settings import FIELD as PLACES
from redis_state.protocol import PartitionClient, RegisteredRun, checkpoint_gen, register_run
from redis_state.protocol.newest_batch import NewestBatch
from redis_state.protocol.opening import not_opened, open_commands, read_replies
from redis_state.protocol.runs import PURGED_FIELD, STAGED_TTL_MS
from redis_state.rescaling.placing import cannot
from redis_state.rescaling.rows import renew

_KEPT = ("id", "created", f"plan:{PLACE}", f"joined:{PLACE}", f"query:{PLACE}")
"""Registry fields that are copied unchanged."""


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


class RescaledStore:
    """A store to rescale.

    Attributes:
        gen: Id of the checkpoint that the name has before the change.
        what: The attempted operation, for error messages.
        newest: Newest batch.
    """

    def __init__(
        self, client: Client, name: str, tenant: str, gen: str, registry: dict[str, str]
    ) -> None:
        self.client, self.name, self.tenant, self.gen = client, name, tenant, gen
        self.what = _attempt(name)
        self.registry = registry
        self.newest = NewestBatch.parse(registry[f"batch:{PLACE}"].encode())

    @classmethod
    def find(cls, client: Client, name: str, tenant: str) -> RescaledStore:
        """Finds the store that has the name now."""
        what = _attempt(name)
        gen = checkpoint_gen(client, name, tenant=tenant)
        found: dict[bytes, bytes] = {}
        if gen is not None:
            (found,) = client.call(what, [("HGETALL", keys.query(gen, tenant=tenant))])
        if gen is None or not found:
            raise NotFoundError(
                what,
                found="Redis knows no store of this name",
                advice=(
                    "`redis-state queries` lists the stores of this server, database and key "
                    "prefix."
                ),
            )
        registry = {key.decode(): value.decode() for key, value in found.items()}
        if PURGED_FIELD in registry:
            raise purged_error(what, gen)
        if f"batch:{PLACE}" not in registry:
            raise cannot(
                "no batch has begun there, or it is a single store, whose program itself assigns "
                "keys to partitions",
                "Give the new number to the first batch, or have the program read the old "
                "partitions and write new ones. Nothing was changed.",
            )
        return cls(client, name, tenant, gen, registry)

    def moved_to(self) -> str | None:
        """Returns the checkpoint that already has the state; ``None`` without one."""
        return self.registry.get(f"moved:{PLACE}")

    def check(self, partitions: int) -> None:
        """Raises if the number of partitions is invalid or unchanged, or the store is ephemeral."""
        check_server(self.client)
        if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
            raise UsageError(
                self.what,
                found=f"{partitions!r} partitions were requested",
                advice=f"Give 1 to {PARTITIONS_MAX}.",
            )
        if partitions == self.newest.partitions:
            raise UsageError(
                self.what,
                found=f"it already has {partitions} partitions",
                advice="Nothing was changed.",
            )
        (left_ms,) = self.client.call(self.what, [("PTTL", self.query)])
        if left_ms >= 0:
            raise UsageError(
                self.what,
                found="the store is ephemeral, so it expires by itself",
                advice="Begin a new store with the other number. Nothing was changed.",
            )

    def take(self) -> RegisteredRun:
        """Acquires the old partitions, which fences older runs and wakes feeds."""
        run = register_run(
            self.client, self.gen, uuid.uuid4().hex, by_driver=True, tenant=self.tenant
        )
        for id_ in self.ids:
            partition = PartitionClient(self.client, id_, versions_to_retain=self.retained)
            run = partition.acquire(run, partition.open("", self.newest.version).pin)
        return run

    @cached_property
    def retained(self) -> int:
        """Number of versions that the partitions retain."""
        (id_, *_) = self.ids
        (found,) = self.client.call(self.what, [("HGET", keys.meta(id_), "n")])
        return text_number((found or b"").decode()) or 1

    def checkpoint(self, gen: str, partitions: int) -> RescaledCheckpoint:
        """Returns a checkpoint of the store, the present one or a new one."""
        store = StoreId(gen, OPERATOR, DEFAULT_STORE, self.tenant)
        return RescaledCheckpoint(self.client, self.what, store, partitions)

    def describe(
        self, copy: RescaledCheckpoint, run: RegisteredRun, places: Places | None = None
    ) -> None:
        """Writes the registry of the new checkpoint, which expires.

        Args:
            places: Where its files are; ``None`` if its state is in Redis.
        """
        fields = {name: self.registry[name] for name in _KEPT if name in self.registry}
        fields["epoch"] = str(run.epoch)
        fields[f"batch:{PLACE}"] = str(replace(self.newest, partitions=copy.partitions))
        begun = self.registry.get(f"begun:{PLACE}")
        if begun is not None:
            # No run has written the new partitions, so no run is too old for them.
            fields[f"begun:{PLACE}"] = " ".join([*begun.split(" ")[:4], "0", "0"])
        if places is not None:
            fields[PLACES] = places.text
        copy.describe(fields)

    @property
    def query(self) -> str:
        """Key of the registry."""
        return keys.query(self.gen, tenant=self.tenant)

    @property
    def ids(self) -> list[PartitionId]:
        """Ids of the partitions before the change."""
        return self.checkpoint(self.gen, self.newest.partitions).ids


def _attempt(name: str) -> str:
    return f"changing the number of partitions of store '{name}'"
