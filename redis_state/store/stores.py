"""Loaded providers of this process, after Spark's `StateStore` object.

`get` opens a store by its id. The first call makes its provider and keeps it, so that the next
version is opened over the cached one. The maintenance thread starts with the first provider. Each
partition is reported to the coordinator as served by this process.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from redis_state.backend.client import Client
from redis_state.clock import SYSTEM, Clock
from redis_state.codec import MSGPACK, Codec
from redis_state.config import Config, resolve
from redis_state.coordinator import StateStoreCoordinator
from redis_state.coordinator.heartbeat import uncounted
from redis_state.ids import StateStoreProviderId
from redis_state.keys import tenant_of
from redis_state.process import tell_after_fork
from redis_state.protocol import RegisteredRun, own_run
from redis_state.store.api import ReadStateStore, StateStore
from redis_state.store.checkpoint_link import Events
from redis_state.store.maintenance import MaintenanceWorker, interval_s
from redis_state.store.provider import StateStoreProvider

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options

LOADED_MAX = 1024
"""Number of providers that stay loaded; above it, the least recently used is unloaded."""

log = logging.getLogger("redis_state.store")


@dataclass(frozen=True, slots=True)
class _StoresServer:
    client: Client
    coordinator: StateStoreCoordinator


@dataclass(frozen=True, slots=True)
class _Loaded:
    provider: StateStoreProvider
    config: Config
    codec: str
    run: RegisteredRun | None


class LoadedStores:
    """Providers by their ids; thread-safe, and empty in a forked process.

    The only threads are those of `maintenance` and of each coordinator's heartbeat.

    Args:
        loaded_max: See `LOADED_MAX`.
        threaded: ``False`` if the caller itself runs maintenance and heartbeat.

    Attributes:
        maintenance: Worker that maintains the loaded providers.
    """

    def __init__(
        self,
        *,
        clock: Clock = SYSTEM,
        loaded_max: int = LOADED_MAX,
        threaded: bool = True,
    ) -> None:
        self._clock = clock
        self._loaded_max = loaded_max
        self._threaded = threaded
        self._begin()
        tell_after_fork(self)

    def after_fork(self) -> None:
        """Empties the child's copy, which has no threads and may not serve partitions."""
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        self._loaded: dict[StateStoreProviderId, _Loaded] = {}
        self._servers: dict[Config, _StoresServer] = {}
        self._executor_id = f"python-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.maintenance = MaintenanceWorker(
            self._providers, unload=self._failed, clock=self._clock, threaded=self._threaded
        )

    def get(
        self,
        provider_id: StateStoreProviderId,
        version: int,
        *,
        config: Config | str | Mapping[str, object] | None = None,
        url: str | None = None,
        codec: Codec = MSGPACK,
        expect_existing: bool = False,
        run: RegisteredRun | None = None,
        **options: Unpack[Options],
    ) -> StateStore:
        """Opens a version to write on top of; see `StateStoreProvider` for arguments and errors."""
        checked = resolve(config, url, options)
        provider = self._provider(provider_id, checked, codec, expect_existing, run)
        return provider.get_store(version, codec=codec)

    def get_read_only(
        self,
        provider_id: StateStoreProviderId,
        version: int,
        *,
        config: Config | str | Mapping[str, object] | None = None,
        url: str | None = None,
        codec: Codec = MSGPACK,
        expect_existing: bool = False,
        **options: Unpack[Options],
    ) -> ReadStateStore:
        """Opens a version to read; see `StateStoreProvider` for arguments and errors."""
        checked = resolve(config, url, options)
        provider = self._provider(provider_id, checked, codec, expect_existing, None)
        return provider.get_read_store(version, codec=codec)

    def is_loaded(self, provider_id: StateStoreProviderId) -> bool:
        """Returns whether a provider of this id is loaded in this process."""
        with self._lock:
            return provider_id in self._loaded

    def loaded(self) -> list[StateStoreProviderId]:
        """Returns the loaded ids, the most recently used last."""
        with self._lock:
            return list(self._loaded)

    def maintain_every(self, interval: str | float | timedelta) -> None:
        """Sets the interval of maintenance; 60 s by default.

        Args:
            interval: A text such as ``"30s"``, seconds, or a `timedelta`; 1 s to 1 d. Each interval
                is up to a fifth longer or shorter.

        Raises:
            ConfigError: The interval is malformed or out of range.
        """
        self.maintenance.set_interval(interval_s(interval))

    def unload(self, provider_id: StateStoreProviderId) -> None:
        """Unloads a provider; stores that it opened remain usable until they end."""
        with self._lock:
            loaded = self._loaded.pop(provider_id, None)
            server = self._servers.get(loaded.config) if loaded else None
        if loaded is not None:
            loaded.provider.close()
            log.info("%s: unloaded", provider_id.store_id)
        if server is not None:
            reference = server.coordinator.reference(provider_id.store_id.checkpoint)
            reference.withdraw_instance(provider_id)

    def stop(self) -> None:
        """Unloads all providers, ends the threads and closes connections; `get` starts afresh."""
        with self._lock:
            loaded, servers = list(self._loaded.values()), list(self._servers.values())
            self._loaded.clear()
            self._servers.clear()
        self.maintenance.stop()
        for one in loaded:
            one.provider.close()
        for server in servers:
            server.coordinator.stop()
            server.client.close()

    def coordinator(
        self,
        config: Config | str | Mapping[str, object] | None = None,
        *,
        url: str | None = None,
        **options: Unpack[Options],
    ) -> StateStoreCoordinator:
        """Returns the coordinator of a server's stores; arguments as for `get`."""
        with self._lock:
            return self._server(resolve(config, url, options)).coordinator

    def __repr__(self) -> str:
        return f"LoadedStores({len(self.loaded())} loaded)"

    def _provider(
        self,
        id_: StateStoreProviderId,
        checked: Config,
        codec: Codec,
        expect_existing: bool,
        run: RegisteredRun | None,
    ) -> StateStoreProvider:
        with self._lock:
            known = self._loaded.get(id_)
            if known is not None and _fits(known, checked, codec, run):
                # The last entry of the dict is the most recently used.
                self._loaded[id_] = self._loaded.pop(id_)
                return known.provider
            provider = StateStoreProvider(
                id_,
                config=checked,
                codec=codec,
                expect_existing=expect_existing,
                run=run,
                clock=self._clock,
                client=self._server(checked).client,
                events=Events(
                    linked=self._reporter(id_, checked, run), overtaken=self._unloader(id_)
                ),
            )
            if known is not None:
                known.provider.close()
            self._loaded[id_] = _Loaded(provider, checked, codec.name, run)
            others = list(self._loaded)[: -self._loaded_max]
        for other in others:
            self.unload(other)
        self.maintenance.start()
        return provider

    def _server(self, config: Config) -> _StoresServer:
        server = self._servers.get(config)
        if server is None:
            client = Client(config, clock=self._clock)
            coordinator = StateStoreCoordinator(
                client,
                tenant=tenant_of(config.key_prefix),
                clock=self._clock,
                threaded=self._threaded,
            )
            server = self._servers[config] = _StoresServer(client, coordinator)
        return server

    def _reporter(
        self, id_: StateStoreProviderId, config: Config, run: RegisteredRun | None
    ) -> Callable[[], None]:
        def report() -> None:
            with self._lock:
                server = self._servers.get(config)
                known = self._loaded.get(id_)
            if server is not None:
                server.coordinator.reference(id_.store_id.checkpoint).report_active_instance(
                    id_,
                    socket.gethostname(),
                    self._executor_id,
                    on_lost=lambda _: self.unload(id_),
                    keep_ms=config.keep_ms,
                    run_id=run.run_id if run else own_run(id_.run_id),
                    totals=known.provider.counters.totals if known else uncounted,
                )

        return report

    def _unloader(self, id_: StateStoreProviderId) -> Callable[[], None]:
        return lambda: self.unload(id_)

    def _providers(self) -> Mapping[Hashable, StateStoreProvider]:
        with self._lock:
            return {id_: loaded.provider for id_, loaded in self._loaded.items()}

    def _failed(self, id_: Hashable, _: Exception) -> None:
        if isinstance(id_, StateStoreProviderId):
            self.unload(id_)


def _fits(known: _Loaded, config: Config, codec: Codec, run: RegisteredRun | None) -> bool:
    return (
        known.config == config and known.codec == codec.name and (run is None or run == known.run)
    )


_process = LoadedStores()

get = _process.get
get_read_only = _process.get_read_only
is_loaded = _process.is_loaded
loaded = _process.loaded
maintain_every = _process.maintain_every
unload = _process.unload
stop = _process.stop
coordinator = _process.coordinator
