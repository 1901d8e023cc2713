"""Registry of loaded stores, after Spark's `StateStoreCoordinator`, kept in Redis.

The registry locates the server of a partition, for locality, display and clean-up. The right to
write is decided by the fence of the commit (docs/format.md, section 6), never here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.clock import SYSTEM, Clock
from redis_state.config import Config, resolve
from redis_state.coordinator.heartbeat import (
    Heartbeat,
    OnLost,
    TotalsSource,
    ignore_loss,
    uncounted,
)
from redis_state.errors import ConfigError, NotFoundError
from redis_state.ids import PartitionId, StateStoreProviderId, is_gen
from redis_state.process import STOP_S
from redis_state.protocol import checkpoint_gen, is_run
from redis_state.protocol.instances import (
    TTL_MS,
    Instance,
    find,
    leave,
)
from redis_state.protocol.registry import served_partitions

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options

__all__ = ["Instance", "StateStoreCoordinator", "StateStoreCoordinatorRef"]

_LOG = logging.getLogger("redis_state.coordinator")


class StateStoreCoordinator:
    """Instances that serve partitions, for all checkpoints of one Redis; thread-safe.

    Args:
        server: A URL, options by their names, checked options, or a client that the caller closes.
        tenant: See `StoreId`. For a client only; otherwise the options define the tenant.
        ttl_ms: Expiry of an instance that stops reporting.
        threaded: ``False`` if the caller itself calls `heartbeat.tick`.
        **options: Options of docs/configuration.md besides the URL, in snake case.

    Attributes:
        heartbeat: Keeps the instances of this process alive.
    """

    def __init__(
        self,
        server: Client | Config | str | Mapping[str, object],
        *,
        tenant: str = "",
        ttl_ms: int = TTL_MS,
        clock: Clock = SYSTEM,
        threaded: bool = True,
        **options: Unpack[Options],
    ) -> None:
        self._owned: Client | None = None
        if isinstance(server, Client):
            self._client, self._tenant = server, tenant
        else:
            checked = resolve(server, None, options)
            self._client = self._owned = Client(checked, clock=clock)
            self._tenant = keys.tenant_of(checked.key_prefix)
        self._ttl_ms = ttl_ms
        self.heartbeat = Heartbeat(self._client, ttl_ms=ttl_ms, clock=clock, threaded=threaded)

    def __repr__(self) -> str:
        return f"StateStoreCoordinator(url={self._client.url!r})"

    def reference(self, checkpoint: str) -> StateStoreCoordinatorRef:
        """Returns the reference for driver, executors and stores of one checkpoint, without I/O.

        Args:
            checkpoint: Name of a Python checkpoint, or the id (gen) of any checkpoint.
        """
        return StateStoreCoordinatorRef(self, checkpoint)

    def instances(self, checkpoint: str) -> dict[PartitionId, Instance]:
        """Returns the partitions of a checkpoint that are served now, by Python or the JVM.

        Raises:
            NotFoundError: Redis knows no such checkpoint.
            FormatError: The registry is damaged.
        """
        self.heartbeat.settle()
        gen = self._gen_of(checkpoint)
        if gen is None:
            raise NotFoundError(
                f"listing the instances of checkpoint '{checkpoint[:80]}'",
                found="there is no such checkpoint in this Redis, database and key prefix",
                advice="`redis-state queries` lists the checkpoints.",
            )
        found = find(self._client, served_partitions(self._client, gen, tenant=self._tenant))
        _LOG.debug("checkpoint %s has %d instances", gen, len(found))
        return found

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Removes the instances of this process; waits at most `timeout_s`."""
        self.heartbeat.stop(timeout_s)
        if self._owned is not None:
            self._owned.close()

    def partition_of(self, provider_id: StateStoreProviderId) -> PartitionId | None:
        """Returns the id of a partition in Redis; ``None`` if the checkpoint is unknown."""
        gen = self._gen_of(provider_id.store_id.checkpoint)
        return None if gen is None else provider_id.store_id.partition(gen, tenant=self._tenant)

    def look_up(self, provider_id: StateStoreProviderId) -> Instance | None:
        """Returns the instance that serves a partition for the id's run."""
        self.heartbeat.settle()
        id_ = self.partition_of(provider_id)
        if id_ is None:
            return None
        found = find(self._client, [id_]).get(id_)
        return found if found is not None and is_run(found.run_id, provider_id.run_id) else None

    def deactivate(self, checkpoint: str, run_id: str) -> int:
        """Removes all instances of a run; their owners learn of it at their next heartbeat."""
        self.heartbeat.settle()
        gen = self._gen_of(checkpoint)
        if gen is None:
            return 0
        found = find(self._client, served_partitions(self._client, gen, tenant=self._tenant))
        of_run = {
            id_: instance for id_, instance in found.items() if is_run(instance.run_id, run_id)
        }
        taken = leave(self._client, of_run, told_ms=self._ttl_ms)
        # Only now: earlier, this process's own instances would be gone before they are counted.
        self.heartbeat.forget_run(run_id)
        return taken

    def _gen_of(self, checkpoint: str) -> str | None:
        found = checkpoint_gen(self._client, checkpoint, tenant=self._tenant)
        return checkpoint if found is None and is_gen(checkpoint) else found


class StateStoreCoordinatorRef:
    """Coordinator for the stores of one checkpoint; see `StateStoreCoordinator.reference`."""

    def __init__(self, coordinator: StateStoreCoordinator, checkpoint: str) -> None:
        self._coordinator = coordinator
        self.checkpoint = checkpoint

    def __repr__(self) -> str:
        return f"StateStoreCoordinatorRef(checkpoint={self.checkpoint!r})"

    def report_active_instance(
        self,
        provider_id: StateStoreProviderId,
        host: str,
        executor_id: str,
        *,
        on_lost: OnLost = ignore_loss,
        keep_ms: int = 0,
        run_id: str = "",
        totals: TotalsSource = uncounted,
    ) -> None:
        """Reports that this process serves a partition, until the instance is withdrawn.

        Returns at once: a thread sends the report, and renews the instance until a newer one
        appears.

        Args:
            on_lost: Called once, on that thread, when a newer instance serves the partition or the
                run was deactivated; the callee unloads the store.
            keep_ms: Expiry of the keys of an ephemeral checkpoint; 0 for any other.
            run_id: Id of the run in Redis; empty uses the run of the provider's id.
            totals: Called on that thread for the store's counters, such as
                `StateStoreProvider.counters.totals`; sent with each report and heartbeat.
        """
        self._check(provider_id)
        instance = Instance(host, executor_id, run_id or provider_id.run_id)
        self._coordinator.heartbeat.report(
            provider_id,
            lambda: self._coordinator.partition_of(provider_id),
            instance,
            on_lost=on_lost,
            keep_ms=keep_ms,
            totals=totals,
        )
        _LOG.debug("reporting %s as the instance of %s", instance, provider_id)

    def withdraw_instance(self, provider_id: StateStoreProviderId) -> None:
        """Reports that this process has unloaded a store; returns at once."""
        self._check(provider_id)
        self._coordinator.heartbeat.withdraw(provider_id)
        _LOG.debug("withdrawing the instance of %s", provider_id)

    def get_location(self, provider_id: StateStoreProviderId) -> Instance | None:
        """Returns the instance that serves a partition for this run; ``None`` if none is alive.

        Raises:
            FormatError: The key holds something other than an instance.
        """
        self._check(provider_id)
        found = self._coordinator.look_up(provider_id)
        _LOG.debug("looked up %s: %s", provider_id, found)
        return found

    def verify_if_instance_active(
        self, provider_id: StateStoreProviderId, executor_id: str
    ) -> bool:
        """Returns whether this executor serves the partition for this run.

        Raises:
            FormatError: The key holds something other than an instance.
        """
        self._check(provider_id)
        found = self._coordinator.look_up(provider_id)
        active = found is not None and found.executor_id == executor_id
        _LOG.debug("verified %s on executor %s: %s", provider_id, executor_id, active)
        return active

    def deactivate_instances(self, run_id: str) -> int:
        """Removes all instances of a run, in any process.

        Returns:
            Number of removed instances.

        Raises:
            FormatError: The registry is damaged.
        """
        count = self._coordinator.deactivate(self.checkpoint, run_id)
        _LOG.debug("deactivated %d instances of run %s", count, run_id)
        return count

    def instances(self) -> Mapping[PartitionId, Instance]:
        """Returns the partitions that are served now; empty if the checkpoint is unknown.

        Raises:
            FormatError: The registry is damaged.
        """
        with suppress(NotFoundError):
            return self._coordinator.instances(self.checkpoint)
        return {}

    def stop(self) -> None:
        """Stops the coordinator of this process."""
        self._coordinator.stop()

    def _check(self, provider_id: StateStoreProviderId) -> None:
        if provider_id.store_id.checkpoint != self.checkpoint:
            raise ConfigError(
                "asking the coordinator",
                found="the store is of another checkpoint than the reference",
                advice="Use the reference of that checkpoint.",
            )
