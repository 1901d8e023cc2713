"""A partition's link to Redis, which exists once the name of its checkpoint has an id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from redis_state.backend.client import Client
from redis_state.config import Config
from redis_state.errors import InternalError
from redis_state.format.header import Family
from redis_state.ids import StateStoreProviderId
from redis_state.keys import tenant_of
from redis_state.places import declare, needs_files
from redis_state.process import Home
from redis_state.protocol import (
    NamedStore,
    PartitionClient,
    RegisteredRun,
    checkpoint_gen,
    confirm_checkpoint,
    renew_checkpoint,
)
from redis_state.protocol.bounding import mark_files, partitions_of, share_by
from redis_state.protocol.quota import Limits, Quota, quota_of
from redis_state.store.absent import check_gen
from redis_state.store.local.families import Families
from redis_state.store.local.loading import Loader
from redis_state.store.local.memory_budget import MemoryBudget


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Events:
    """Callbacks for the owner of a provider.

    Attributes:
        linked: Called once when Redis knows the checkpoint, before a version is opened.
        overtaken: Called when another run or attempt took over, so the cache is of no more use.
    """

    linked: Callable[[], None] = _nothing
    overtaken: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """Identity and options of a partition's stores, which their provider fixes.

    Attributes:
        family: Only family of the partition; ``None`` if families are declared and dropped.
        expect_existing: True makes version 0 of an unknown checkpoint an error, too.
        run: The run if a driver registered it.
        gen: Checkpoint id of the run, which the name must have; ``None`` accepts any.
        room: Memory budget of the rows that are read; ``None`` is unbounded.
        ttl_ms: How long a row lives after it was put; ``None`` if rows do not expire.
    """

    id: StateStoreProviderId
    config: Config
    family: Family | None
    expect_existing: bool
    run: RegisteredRun | None
    gen: str | None
    room: MemoryBudget | None
    ttl_ms: int | None = None

    @property
    def tenant(self) -> str:
        """Tenant of the checkpoint; see `StoreId`."""
        return tenant_of(self.config.key_prefix)

    @property
    def where(self) -> str:
        """Name of the partition in errors."""
        return str(self.id.store_id)


@dataclass(frozen=True, slots=True)
class LinkedPartition:
    """Access to a partition in Redis; `shared` is the client that all partitions use."""

    spec: PartitionSpec
    gen: str
    shared: Client
    client: PartitionClient
    loader: Loader
    quota: Quota | None

    def check_quota(self) -> None:
        """Raises `QuotaError` if the state has reached a limit."""
        if self.quota is not None:
            self.quota.check(self.shared, where=self.spec.where)

    def confirm(self, families: Families) -> None:
        """Lists the checkpoint with its store; see `confirm_checkpoint`."""
        of, spec = self.spec.id.store_id, self.spec
        store = NamedStore(
            of.checkpoint, of.operator_id, of.store_name, of.partition_id + 1, families.table
        )
        confirm_checkpoint(
            self.shared, self.gen, store, tenant=spec.tenant, keep_ms=spec.config.keep_ms
        )
        stores = partial(partitions_of, self.shared, self.gen, tenant=spec.tenant)
        declare(self.shared, self.gen, spec.config, stores, tenant=spec.tenant)
        self.mark_folder()

    def mark_folder(self) -> bool:
        """Marks the folder that this process declared; see `redis_state.places.writer`."""
        spec = self.spec
        return not needs_files(spec.config) or mark_files(
            self.shared, self.gen, spec.config, tenant=spec.tenant
        )

    def share(self) -> int:
        """Returns the share of the partition; see `share_by`."""
        config, tenant = self.spec.config, self.spec.tenant
        if config.redis_memory is None:
            return 0
        return share_by(self.shared, self.gen, config, tenant=tenant)

    def renew(self) -> None:
        """Renews the expiries of an ephemeral checkpoint."""
        keep_ms = self.spec.config.keep_ms
        if keep_ms:
            self.client.renew()
            renew_checkpoint(self.shared, self.gen, keep_ms=keep_ms, tenant=self.spec.tenant)


class CheckpointLink:
    """Finds the checkpoint of a partition by its name, once.

    Attributes:
        found: The partition, once it was found.
    """

    def __init__(self, spec: PartitionSpec, client: Client, events: Events) -> None:
        self._spec = spec
        self._client = client
        self._events = events
        self._home = Home()
        self.found: LinkedPartition | None = None

    def make(self) -> LinkedPartition:
        """Returns the partition, and gives its checkpoint an id if it has none.

        Raises:
            ConflictError: The name has another checkpoint than `PartitionSpec.gen`.
        """
        found = self.find(create=True)
        if found is None:
            raise InternalError("naming a checkpoint", found="HSETNX left no id")
        return found

    def find(self, *, create: bool = False) -> LinkedPartition | None:
        """Returns the partition; ``None`` if Redis knows no checkpoint of that name.

        Raises:
            ConflictError: See `make`.
        """
        spec = self._spec
        self._home.check(where=spec.where)
        if self.found is None:
            store, config, tenant = spec.id.store_id, spec.config, spec.tenant
            gen = checkpoint_gen(self._client, store.checkpoint, tenant=tenant, create=create)
            if gen is None:
                return None
            check_gen(spec.id, spec.gen, gen)
            client = PartitionClient(
                self._client,
                store.partition(gen, tenant=tenant),
                versions_to_retain=config.versions_kept,
                keep_ms=config.keep_ms,
                where=spec.where,
            )
            limits = Limits(config.state_bytes_max, config.prefix_bytes_max)
            loader = Loader(client, where=spec.where, room=spec.room)
            quota = quota_of(self._client, gen, limits, tenant=tenant)
            self.found = LinkedPartition(spec, gen, self._client, client, loader, quota)
            self._events.linked()
        return self.found
