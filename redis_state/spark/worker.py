"""Connections and loaded partitions that a Python worker keeps between tasks; no pyspark.

The worker keeps the providers of partitions whose state it has read. Each of these partitions is in
the coordinator's table as served by this worker, until another worker serves it.

Rows that were read stay within `localMemory`, including the current partition's. A read for it
evicts other partitions first, and then its own earlier rows.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from dataclasses import dataclass

from redis_state.backend.client import Client
from redis_state.codec import MSGPACK, Codec
from redis_state.config import Config
from redis_state.coordinator.heartbeat import Heartbeat
from redis_state.errors import RedisStateError
from redis_state.ids import PartitionId, StateStoreProviderId
from redis_state.places.disks import DiskUse, process_disk
from redis_state.process import tell_after_fork
from redis_state.protocol import RegisteredRun
from redis_state.protocol.instances import Instance
from redis_state.store.provider import StateStoreProvider

CLIENTS_MAX = 4
_WARM_BYTES_AUTO = 256 << 20
_MAINTAINED_EVERY = 8

log = logging.getLogger(__name__)

ConfiguredPartition = tuple[Config, PartitionId]


@dataclass(frozen=True, slots=True)
class Warm:
    """A provider kept after its task, and the approximate size of its versions."""

    provider: StateStoreProvider
    size: int


@dataclass(frozen=True, slots=True)
class _WorkerServer:
    """Connections to a server; `disk` holds local copies while no provider is kept."""

    client: Client
    heartbeat: Heartbeat
    disk: DiskUse | None


@dataclass(frozen=True, slots=True)
class _PartitionBudget:
    """Memory budget of the current partition."""

    worker: Worker
    bytes_max: int

    def has(self, size: int) -> bool:
        """Implements `MemoryBudget.has`."""
        return self.worker.has_room(size, self.bytes_max)


class Worker:
    """State of this Python worker process, which runs one task after the other.

    A task's function may have threads that read state concurrently.

    Attributes:
        warm: The kept providers, the most recently used last.
    """

    def __init__(self) -> None:
        self.warm: dict[ConfiguredPartition, Warm] = {}
        self._servers: dict[Config, _WorkerServer] = {}
        self._at_work: StateStoreProvider | None = None
        self._lock = threading.RLock()
        tell_after_fork(self)

    def after_fork(self) -> None:
        """Empties the copy of a forked child: the rows belong to the worker."""
        self._lock = threading.RLock()  # another thread may have held that of the worker
        self.warm.clear()
        self._at_work = None

    def client(self, config: Config) -> Client:
        """Returns the connections to a server, which are kept for the next task."""
        return self._server(config).client

    def serve(
        self,
        place: ConfiguredPartition,
        id_: StateStoreProviderId,
        run: RegisteredRun,
        *,
        codec: Codec = MSGPACK,
        families: bool = False,
    ) -> StateStoreProvider:
        """Returns a provider for a task, which takes over the kept provider of its partition.

        The task passes the provider to `keep` when done. After a failure nothing is kept, so a
        retry reads the state again.
        """
        config = place[0]
        with self._lock:
            self._end_work()
            found = self.warm.pop(place, None)
            self._at_work = StateStoreProvider(
                id_,
                config=config,
                codec=codec,
                families=families,
                run=run,
                gen=place[1].store.gen,
                client=self.client(config),
                after=found.provider if found else None,
                room=_PartitionBudget(self, _bytes_max(config)),
            )
            if found is not None:
                found.provider.close()
            return self._at_work

    def has_room(self, size: int, bytes_max: int) -> bool:
        """Returns whether this many more bytes fit; evicts idle versions and partitions first."""
        with self._lock:
            own = self._at_work.cached_bytes() if self._at_work else 0
            if self._at_work and own + self._bytes() + size > bytes_max:
                self._at_work.forget_older()
                own = self._at_work.cached_bytes()
            while self.warm and own + self._bytes() + size > bytes_max:
                self._forget(next(iter(self.warm)))
            return own + self._bytes() + size <= bytes_max

    def maintain(self, config: Config, provider: StateStoreProvider, turn: int) -> None:
        """Maintains a partition after its batch: every eighth turn, and when memory is short.

        Changes above the snapshot are held in whole. If they are too large, a new snapshot replaces
        them.
        """
        crowded = provider.is_crowded(_bytes_max(config))
        if turn % _MAINTAINED_EVERY and not crowded:
            return
        try:
            provider.do_maintenance(make_room=crowded)
        except RedisStateError as error:
            # The batch is committed; the next batch tries again.
            log.warning("maintenance of %s failed: %s", provider.id.store_id, error)

    def keep(self, place: ConfiguredPartition, provider: StateStoreProvider, run_id: str) -> None:
        """Keeps a task's provider; evicts the least recently used ones when memory is short."""
        config, partition = place
        with self._lock:
            self._at_work = None
        self._server(config).heartbeat.report(
            place,
            lambda: partition,
            Instance(socket.gethostname(), f"python-{os.getpid()}", run_id),
            keep_ms=config.keep_ms,
            totals=provider.counters.totals,
        )
        allowed = _bytes_max(config)
        with self._lock:
            self.warm[place] = Warm(provider, provider.cached_bytes())
            # The version below the newest is only needed when a batch is run again.
            for other, one in list(self.warm.items()):
                if self._bytes() > allowed:
                    one.provider.forget_older()
                    self.warm[other] = Warm(one.provider, one.provider.cached_bytes())
            while len(self.warm) > 1 and self._bytes() > allowed:
                self._forget(next(iter(self.warm)))
            if self._bytes() <= allowed:
                return
        # Outside of the lock: the call waits for readers of these rows, who may wait for the lock.
        provider.drop_bases()
        with self._lock:
            if place not in self.warm:
                return
            self.warm[place] = Warm(provider, provider.cached_bytes())
            if self._bytes() > allowed:
                self._forget(place)

    def _end_work(self) -> None:
        """Closes the provider of a task that failed, since nobody has kept it."""
        provider, self._at_work = self._at_work, None
        if provider is not None:
            provider.close()

    def close(self) -> None:
        """Drops all providers and connections."""
        with self._lock:
            self._end_work()
            for config in list(self._servers):
                self._close(config)

    def _server(self, config: Config) -> _WorkerServer:
        with self._lock:
            found = self._servers.get(config)
            if found is None:
                while len(self._servers) >= CLIENTS_MAX:
                    self._close(next(iter(self._servers)))
                client = Client(config)
                disk = process_disk.use(config, client.clock)
                found = self._servers[config] = _WorkerServer(client, Heartbeat(client), disk)
            return found

    def _close(self, config: Config) -> None:
        server = self._servers.pop(config)
        server.heartbeat.stop()
        for place in [one for one in self.warm if one[0] == config]:
            self.warm.pop(place).provider.close()  # its versions read through this client
        if server.disk is not None:
            server.disk.end()
        server.client.close()

    def _forget(self, place: ConfiguredPartition) -> None:
        self.warm.pop(place).provider.close()
        self._servers[place[0]].heartbeat.withdraw(place)

    def _bytes(self) -> int:
        return sum(one.size for one in self.warm.values())


def _bytes_max(config: Config) -> int:
    """Returns this worker's limit; an executor has about as many workers as processors."""
    limit = config.local_memory
    return limit // (os.cpu_count() or 1) if isinstance(limit, int) else _WARM_BYTES_AUTO


WORKER = Worker()
"""Worker of this process."""
