"""What a Python worker keeps between tasks: connections and loaded partitions; no pyspark.

Its connections, and the providers of partitions whose state it has read. Each of these partitions
stands in the coordinator's table as served by this worker, until another worker serves it.

What was read of states stays within `localMemory`, the partition at work included: what is read for
it pushes out other partitions first, and then what was read before.
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
from redis_state.process import tell_after_fork
from redis_state.protocol import RegisteredRun
from redis_state.protocol.instances import Instance
from redis_state.store.partition_state import EPHEMERAL_KEEP_MS
from redis_state.store.provider import StateStoreProvider

CLIENTS_MAX = 4
_WARM_BYTES_AUTO = 256 << 20
_MAINTAINED_EVERY = 8

log = logging.getLogger(__name__)

ConfiguredPartition = tuple[Config, PartitionId]


@dataclass(frozen=True, slots=True)
class Warm:
    """A provider that stays after its task, and about what its versions take."""

    provider: StateStoreProvider
    size: int


@dataclass(frozen=True, slots=True)
class _WorkerServer:
    client: Client
    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class _PartitionBudget:
    """That of the partition at work."""

    worker: Worker
    bytes_max: int

    def has(self, size: int) -> bool:
        """As `Room.has`."""
        return self.worker.has_room(size, self.bytes_max)


class Worker:
    """The state of this Python worker process, which does one task after the other.

    A task's function may have threads that read state at once.

    Attributes:
        warm: The providers that stay, the one that was used last at the end.
    """

    def __init__(self) -> None:
        self.warm: dict[ConfiguredPartition, Warm] = {}
        self._servers: dict[Config, _WorkerServer] = {}
        self._at_work: StateStoreProvider | None = None
        self._lock = threading.RLock()
        tell_after_fork(self)

    def after_fork(self) -> None:
        """A function that forks: what its worker has read is the worker's."""
        self._lock = threading.RLock()  # another thread may have held that of the worker
        self.warm.clear()
        self._at_work = None

    def client(self, config: Config) -> Client:
        """Connections to a server, which stay for the next task."""
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
        """A provider for a task, which goes on with what the last task of the partition left here.

        That comes back by `keep` once the task is done: whoever tries again after a failure reads
        again.
        """
        config = place[0]
        with self._lock:
            self._at_work = None
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
            return self._at_work

    def has_room(self, size: int, bytes_max: int) -> bool:
        """Whether so many bytes fit beside what is held; what is not at work goes for them."""
        with self._lock:
            own = self._at_work.cached_bytes() if self._at_work else 0
            if self._at_work and own + self._bytes() + size > bytes_max:
                self._at_work.forget_older()
                own = self._at_work.cached_bytes()
            while self.warm and own + self._bytes() + size > bytes_max:
                self._forget(next(iter(self.warm)))
            return own + self._bytes() + size <= bytes_max

    def maintain(self, config: Config, provider: StateStoreProvider, turn: int) -> None:
        """Maintain a partition after its batch: every eighth turn, and where memory is short.

        Changes lie over the snapshot, whole: where they take too much, a new one takes their place.
        """
        crowded = provider.is_crowded(_bytes_max(config))
        if turn % _MAINTAINED_EVERY and not crowded:
            return
        try:
            provider.do_maintenance(make_room=crowded)
        except RedisStateError as error:
            # The batch is committed; the next one tries again.
            log.warning("maintenance of %s failed: %s", provider.id.store_id, error)

    def keep(self, place: ConfiguredPartition, provider: StateStoreProvider, run_id: str) -> None:
        """Keep what a task has read; what was used least lately goes where memory is short."""
        config, partition = place
        with self._lock:
            self._at_work = None
        self._server(config).heartbeat.report(
            place,
            lambda: partition,
            Instance(socket.gethostname(), f"python-{os.getpid()}", run_id),
            keep_ms=EPHEMERAL_KEEP_MS if config.ephemeral else 0,
            totals=provider.counters.totals,
        )
        allowed = _bytes_max(config)
        with self._lock:
            self.warm[place] = Warm(provider, provider.cached_bytes())
            # The version below the newest is only for batches that are run again.
            for other, one in list(self.warm.items()):
                if self._bytes() > allowed:
                    one.provider.forget_older()
                    self.warm[other] = Warm(one.provider, one.provider.cached_bytes())
            while len(self.warm) > 1 and self._bytes() > allowed:
                self._forget(next(iter(self.warm)))
            if self._bytes() <= allowed:
                return
        # It waits for who reads these rows, who may wait for the lock.
        provider.drop_bases()
        with self._lock:
            if place not in self.warm:
                return
            self.warm[place] = Warm(provider, provider.cached_bytes())
            if self._bytes() > allowed:
                self._forget(place)

    def close(self) -> None:
        """Drop everything."""
        with self._lock:
            self._at_work = None
            for config in list(self._servers):
                self._close(config)

    def _server(self, config: Config) -> _WorkerServer:
        with self._lock:
            found = self._servers.get(config)
            if found is None:
                while len(self._servers) >= CLIENTS_MAX:
                    self._close(next(iter(self._servers)))
                client = Client(config)
                found = self._servers[config] = _WorkerServer(client, Heartbeat(client))
            return found

    def _close(self, config: Config) -> None:
        server = self._servers.pop(config)
        server.heartbeat.stop()
        for place in [one for one in self.warm if one[0] == config]:
            del self.warm[place]  # its versions read on through this client
        server.client.close()

    def _forget(self, place: ConfiguredPartition) -> None:
        self.warm.pop(place).provider.close()
        self._servers[place[0]].heartbeat.withdraw(place)

    def _bytes(self) -> int:
        return sum(one.size for one in self.warm.values())


def _bytes_max(config: Config) -> int:
    """What this worker may keep: an executor has about as many of them as it has processors."""
    limit = config.local_memory
    return limit // (os.cpu_count() or 1) if isinstance(limit, int) else _WARM_BYTES_AUTO


WORKER = Worker()
"""That of this process."""
