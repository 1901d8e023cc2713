"""Versions of one partition for one run: open, acquire, commit, maintain."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from redis_state.backend.client import Client
from redis_state.clock import Clock
from redis_state.config import Config
from redis_state.errors import ConflictError, InternalError, UsageError
from redis_state.format import ordered
from redis_state.format.header import Family
from redis_state.ids import EMPTY, Pin, StateStoreProviderId
from redis_state.keys import tenant_of
from redis_state.maintain import compaction
from redis_state.process import Home, tell_after_fork
from redis_state.protocol import (
    PartitionClient,
    RegisteredRun,
    checkpoint_gen,
    confirm_checkpoint,
    own_run,
    register_run,
    renew_checkpoint,
)
from redis_state.protocol.quota import Limits, Quota, quota_of
from redis_state.store.absent import check_gen, no_checkpoint, no_rows
from redis_state.store.delta import delta_of
from redis_state.store.families import NO_FAMILIES, Families, described
from redis_state.store.loading import Loader
from redis_state.store.local_state import Layer, LocalVersion
from redis_state.store.memory_budget import MemoryBudget
from redis_state.store.metrics import Counters
from redis_state.store.write_set import WriteSet

VERSIONS_TO_RETAIN = 100
EPHEMERAL_KEEP_MS = 60 * 60 * 1000

log = logging.getLogger("redis_state.store")


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
class _Link:
    """Objects that exist once the checkpoint's name has an id."""

    gen: str
    client: PartitionClient
    loader: Loader
    quota: Quota | None


class PartitionState:
    """Opens and writes versions; may be used by several threads.

    Args:
        family: Only family of the partition; ``None`` if families are declared and dropped.
        gen: Checkpoint id of the run, which the name must have; ``None`` accepts any.
        versions_cached_max: Number of versions that stay in this process.
        room: Memory budget of the rows that are read; ``None`` is unbounded.
    """

    def __init__(
        self,
        id_: StateStoreProviderId,
        client: Client,
        config: Config,
        *,
        family: Family | None,
        expect_existing: bool,
        run: RegisteredRun | None,
        gen: str | None,
        clock: Clock,
        versions_cached_max: int,
        events: Events,
        room: MemoryBudget | None = None,
    ) -> None:
        self.id = id_
        self._room = room
        self._events = events
        self.counters = Counters(clock)
        self._client = client
        self._config = config
        self._tenant = tenant_of(config.key_prefix)
        self._keep_ms = EPHEMERAL_KEEP_MS if config.ephemeral else 0
        self._own = None if family is None else Families((family,))
        self._expect_existing = expect_existing
        self._run = run
        self._gen = gen
        self._run_id = run.run_id if run else own_run(id_.run_id)
        self._cached_max = versions_cached_max
        self._home = Home()
        self._lock = threading.Lock()
        tell_after_fork(self)
        self._cached: dict[Pin, LocalVersion] = {}
        self._opened: Pin | None = None
        self._link: _Link | None = None

    def after_fork(self) -> None:
        """Empties the cache, which uses the parent's connections, and replaces the lock."""
        self._lock = threading.Lock()
        self._cached = {}

    def take_over(self, other: PartitionState) -> None:
        """Adopts the cached versions of an earlier run; a version is identified by its uid.

        Raises:
            UsageError: The other state has another partition, codec or client.
        """
        if other._client is not self._client:
            raise UsageError(
                "reusing cached versions",
                found="they still read through another client, which may be closed at any time",
                advice="Give both providers the same client.",
                where=str(self.id.store_id),
            )
        if (other.id.store_id, other._own) != (self.id.store_id, self._own):
            raise UsageError(
                "reusing cached versions",
                found="they are of another partition, or were written with another codec",
                advice="Give a provider of the same store and codec.",
                where=str(self.id.store_id),
            )
        self.counters.go_on_from(other.counters)
        with other._lock:
            cached = dict(other._cached)
        with self._lock:
            self._cached.update(cached)

    def open(self, version: int) -> tuple[LocalVersion, bool]:
        """Opens a version; returns it, and whether the run holds the partition.

        Raises:
            StateError: The version does not exist.
            ConflictError: The run went on, or has another attempt's version.
            QuotaError: The state has reached a limit.
        """
        link = self._linked()
        if link is not None:
            self._check_quota(link)
        return self._open(self._run_id, version)

    def read(self, version: int) -> LocalVersion:
        """Opens a version for reading, without any effect on writers."""
        return self._open("", version)[0]

    def latest(self) -> int | None:
        """Returns the newest published version; ``None`` if no version was ever written."""
        link = self._linked()
        return None if link is None else link.client.latest()

    def families(self, local: LocalVersion) -> Families:
        """Returns the family table with which the next version begins."""
        return self._own or local.families

    def acquire(self, pin: Pin, families: Families) -> None:
        """Acquires the partition before the first change, and reports a new checkpoint.

        Raises:
            ConflictError: A newer run holds the partition, or the version was replaced.
            StateError: The version no longer exists.
            QuotaError: The state has reached a limit.
        """
        link = self._made()
        self._check_quota(link)
        run = self._run or register_run(
            self._client, link.gen, self._run_id, by_driver=False, tenant=self._tenant
        )
        store = self.id.store_id
        # Before the acquire, so that a run that holds the partition can rely on the entry.
        confirm_checkpoint(
            self._client,
            link.gen,
            name=store.checkpoint,
            operator=store.operator_id,
            store=store.store_name,
            partitions=store.partition_id + 1,
            families=families.table,
            tenant=self._tenant,
            keep_ms=self._keep_ms,
        )
        with self._telling():
            self._run = link.client.acquire(run, pin)
        with self._lock:
            self._opened = pin
        log.info("%s: run %s acquired version %d", store, self._run_id, pin.version)

    def commit(
        self, local: LocalVersion, changes: WriteSet, families: Families, uid: str
    ) -> LocalVersion:
        """Publishes the next version. The changes remove all rows of families that are left out.

        Raises:
            RedisStateError: See `PartitionClient.commit`.
        """
        link = self._made()
        version = local.pin.version + 1
        with self.counters.timing("commit_ms"):
            delta = delta_of(local, changes, families)
            changed = families is not local.families and families != local.families
            known = local.families.ids
            gone = families.dropped_over(local.families) if changed else []
            keys, values = delta.without(gone)
            written = ordered.write(
                f"d:{version}:{uid}",
                keys,
                values,
                ref=local.pin.uid,
                live=delta.live,
                families=families.table,
                highest_id=families.highest_id,
                with_families=delta.complete or version == 1 or changed,
                appended=changes.appended,
                cleared=[] if delta.complete else [id_ for id_ in gone if id_ in known],
                complete=delta.complete,
                internal=delta.internal,
            )
            run = self._run or RegisteredRun(self._run_id, 0, "x")
            with self._telling():
                link.client.commit(run, local.pin, uid, written.entry, written.fields)
        top = Layer(delta.rows, written.raw_bytes, delta.keys, in_order=delta.in_order)
        next_version = local.with_changes(Pin(version, uid), families, top, written.entry)
        self._keep(next_version)
        if link.quota is not None:
            link.quota.after_commit(self._client)
        self.counters.add("commits", 1)
        self.counters.add("rows_put", delta.put)
        self.counters.add("rows_removed", delta.removed)
        self.counters.add("commit_bytes", written.entry.bytes)
        log.info(
            "%s: committed version %d: %d rows, %d bytes, %d live keys",
            self.id.store_id,
            version,
            delta.put + delta.removed,
            written.entry.bytes,
            delta.live,
        )
        return next_version

    def abort(self, version: int, uid: str) -> None:
        """Drops the staged bytes of an attempt. Never raises."""
        if self._link is not None:
            self._link.client.abort(f"d:{version}:{uid}")
        log.info("%s: aborted an attempt of version %d", self.id.store_id, version)

    def maintain(self, *, make_room: bool = False) -> None:
        """Adds a snapshot if one is due, and drops segments that no kept version needs.

        Args:
            make_room: Drops all cached versions, and adds a snapshot if there are changes since the
                last one. The next open reads few changes, and only the requested blocks of the
                snapshot.

        Raises:
            RedisStateError: The server refuses, or does not answer.
        """
        link = self._linked()
        if link is None:
            return
        with self.counters.timing("maintenance_ms"):
            if self._keep_ms:
                link.client.renew()
                renew_checkpoint(self._client, link.gen, keep_ms=self._keep_ms, tenant=self._tenant)
            if make_room:
                self._make_room(link)
            with self._lock:
                local = self._cached.get(self._opened) if self._opened else None
            if local is not None and local.history.is_due():
                self.snapshot(local)
            report = link.client.retain()
        self.counters.add("dropped_bytes", report.dropped_bytes)
        log.info(
            "%s: maintenance: floor %d, %d segments kept, %d dropped",
            self.id.store_id,
            report.floor,
            report.kept,
            report.dropped,
        )

    def snapshot(self, local: LocalVersion) -> bool:
        """Adds a snapshot of an opened version; returns false if it is no longer needed."""
        link = self._linked()
        if link is None or local.pin.version == 0:
            return False
        # A partly read base is not loaded whole for the snapshot: it may not fit into memory.
        base = local.parts[1]
        if base is not None and not base.whole:
            size = self._compact(link, local.pin)
            if size:
                self._rebase(local, size)
            return size > 0
        rows: dict[bytes, bytes | None] = dict(local.rows_between(b"", None))
        writer = uuid.uuid4().hex
        written = ordered.write(
            f"s:{local.pin.version}:{writer}",
            list(rows),
            list(rows.values()),
            ref=writer,
            live=local.live,
            families=local.families.table,
            highest_id=local.families.highest_id,
            internal=local.internal,
        )
        added = link.client.add_snapshot(local.pin, writer, written.entry, written.fields)
        if added:
            self.counters.add("snapshot_bytes", written.entry.bytes)
            self._rebase(local, written.entry.bytes)
        return added

    def _make_room(self, link: _Link) -> None:
        newest = self._newest()
        pin, deltas = (newest.pin, newest.history.deltas) if newest else (EMPTY, 0)
        del newest
        self.close()
        if deltas:
            self._compact(link, pin)

    def _newest(self) -> LocalVersion | None:
        with self._lock:
            # Of two attempts at a version the later one counts.
            versions = list(reversed(self._cached.values()))
        return max(versions, key=lambda one: one.pin.version, default=None)

    def _compact(self, link: _Link, pin: Pin) -> int:
        """Adds a snapshot piece by piece from Redis, for a version that may not fit into memory.

        Returns:
            Bytes of the snapshot; 0 if it is no longer needed.
        """
        opened = link.client.open("", pin.version, [])
        entry = compaction.add_snapshot(link.client, opened) if opened.pin == pin else None
        if entry is None:
            return 0
        self.counters.add("snapshot_bytes", entry.bytes)
        return entry.bytes

    def cached_bytes(self) -> int:
        """Returns the approximate size of the cached versions; shared parts count once."""
        with self._lock:
            versions = list(self._cached.values())
        parts = {id(part): part for version in versions for part in version.all_parts}
        return sum(part.held_bytes for part in parts.values())

    def is_crowded(self, bytes_max: int) -> bool:
        """Returns whether the newest cached version is larger, and its changes alone half as large.

        The rows of its base can be evicted; its changes go only with the whole version.
        """
        newest = self._newest()
        if newest is None or newest.full_bytes <= bytes_max:
            return False
        return 2 * sum(layer.held_bytes for layer in newest.parts[0]) > bytes_max

    def drop_bases(self) -> None:
        """Evicts the decoded base blocks of cached versions."""
        with self._lock:
            versions = list(self._cached.values())
        for version in versions:
            base = version.parts[1]
            if base is not None:
                base.drop()

    def forget_older(self) -> None:
        """Drops all cached versions except that of the last open or commit, also after a rewind."""
        with self._lock:
            last = next(reversed(self._cached), None)
            self._cached = {pin: one for pin, one in self._cached.items() if pin == last}

    def values(self) -> dict[str, int]:
        """Returns the figures of `CUSTOM_METRICS`."""
        return self.counters.values | {"round_trips": self._client.round_trips}

    def close(self) -> None:
        """Drops the cached versions."""
        with self._lock:
            self._cached.clear()

    def _open(self, run_id: str, version: int) -> tuple[LocalVersion, bool]:
        self.counters.add("opens", 1)
        link = self._linked()
        if link is None:
            if version or self._expect_existing:
                raise no_checkpoint(self.id, version)
            return no_rows(self.id), False
        with self._lock:
            cached = dict(reversed(self._cached.items()))
        with self.counters.timing("load_ms"):
            opened, local = link.loader.open(run_id, version, cached)
        self._check_families(local)
        self._keep(local)
        if opened.held:
            with self._lock:
                self._opened = opened.pin
        log.info(
            "%s: opened version %d: %d segments read, %d live keys",
            self.id.store_id,
            version,
            len(opened.segments),
            local.live,
        )
        return local, opened.held

    def _check_quota(self, link: _Link) -> None:
        if link.quota is not None:
            link.quota.check(self._client, where=str(self.id.store_id))

    def _check_families(self, local: LocalVersion) -> None:
        found = local.families
        if self._own is None:
            fits = ordered.FAMILY_ID not in found.ids
            advice = "Open it with the codec that wrote it, by a provider without families=True."
        else:
            fits = found in (self._own, NO_FAMILIES)
            advice = "Open the store with the codec that wrote it, with lists if it has them."
        if not fits:
            raise UsageError(
                f"opening version {local.pin.version}",
                found=described(found),
                advice=advice,
                where=str(self.id.store_id),
                version=local.pin.version,
            )

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except ConflictError:
            self._events.overtaken()
            raise

    def _made(self) -> _Link:
        link = self._linked(create=True)
        if link is None:
            raise InternalError("naming a checkpoint", found="HSETNX left no id")
        return link

    def _linked(self, *, create: bool = False) -> _Link | None:
        self._home.check(where=str(self.id.store_id))
        if self._link is None:
            store = self.id.store_id
            gen = checkpoint_gen(self._client, store.checkpoint, tenant=self._tenant, create=create)
            if gen is not None:
                check_gen(self.id, self._gen, gen)
                retained = self._config.versions_to_retain
                client = PartitionClient(
                    self._client,
                    store.partition(gen, tenant=self._tenant),
                    versions_to_retain=VERSIONS_TO_RETAIN if retained is None else retained,
                    keep_ms=self._keep_ms,
                    where=str(store),
                )
                limits = Limits(self._config.state_bytes_max, self._config.prefix_bytes_max)
                loader = Loader(client, where=str(store), room=self._room)
                quota = quota_of(self._client, gen, limits, tenant=self._tenant)
                self._link = _Link(gen, client, loader, quota)
                self._events.linked()
        return self._link

    def _keep(self, local: LocalVersion) -> None:
        with self._lock:
            self._cached.pop(local.pin, None)
            self._cached[local.pin] = local
            while len(self._cached) > self._cached_max:
                del self._cached[next(iter(self._cached))]

    def _rebase(self, local: LocalVersion, size: int) -> None:
        """Counts the history from the snapshot of a version."""
        was = local.history
        with self._lock:
            for version in self._cached.values():
                own = version.history
                if version.pin.version >= local.pin.version:
                    version.history = replace(
                        own,
                        base_bytes=size,
                        delta_bytes=own.delta_bytes - was.delta_bytes,
                        deltas=own.deltas - was.deltas,
                    )
