"""Versions of one partition for one run: open, acquire, commit, abort."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.clock import Clock
from redis_state.errors import ConflictError, UsageError
from redis_state.format import ordered
from redis_state.format.expiry import expiry_of
from redis_state.ids import Pin, StateStoreProviderId
from redis_state.places.reading import files_of
from redis_state.protocol import Opened, RegisteredRun, own_run, register_run
from redis_state.store.absent import no_checkpoint
from redis_state.store.checkpoint_link import (
    CheckpointLink,
    Events,
    LinkedPartition,
    PartitionSpec,
)
from redis_state.store.delta import delta_of
from redis_state.store.local.families import NO_FAMILIES, Families, described
from redis_state.store.local.timed import TimedVersion
from redis_state.store.local.version import Layer, LocalVersion, no_rows
from redis_state.store.local.version_cache import VersionCache
from redis_state.store.maintained_server import MaintainedServer
from redis_state.store.metrics import Counters
from redis_state.store.partition_maintenance import PartitionMaintenance
from redis_state.store.write_set import WriteSet

log = logging.getLogger("redis_state.store")


class PartitionState:
    """Opens and writes versions; may be used by several threads.

    Attributes:
        cache: The versions that stay in this process.
        maintenance: Snapshots and retention of the partition.
    """

    def __init__(
        self,
        spec: PartitionSpec,
        client: Client,
        *,
        clock: Clock,
        versions_cached_max: int,
        events: Events,
    ) -> None:
        self._spec = spec
        self._events = events
        self._client = client
        files = files_of(client)
        self._reads_before, self._hits_before = files.reads, files.hits
        self._own = None if spec.family is None else Families((spec.family,))
        self._expires = self._own is not None and self._own.expire
        self._run = spec.run
        self._run_id = spec.run.run_id if spec.run else own_run(spec.id.run_id)
        self._link = CheckpointLink(spec, client, events)
        self.counters = Counters(clock)
        self.cache = VersionCache(versions_cached_max)
        self.maintenance = PartitionMaintenance(self._link, self.cache, self.counters)

    @property
    def id(self) -> StateStoreProviderId:
        """Returns the ids of the partition and the run."""
        return self._spec.id

    @property
    def server(self) -> MaintainedServer:
        """Returns the server that has the partition, or that leads to it."""
        found = self._link.found
        key = keys.names(tenant=self._spec.tenant) if found is None else keys.meta(found.client.id)
        return MaintainedServer(self._client, key)

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
                where=self._spec.where,
            )
        tables = [one._own and one._own.without_ttl() for one in (self, other)]
        if other.id.store_id != self.id.store_id or tables[0] != tables[1]:
            raise UsageError(
                "reusing cached versions",
                found="they are of another partition, or were written with another codec",
                advice="Give a provider of the same store and codec.",
                where=self._spec.where,
            )
        self.counters.go_on_from(other.counters)
        self.cache.take_over(other.cache)

    def open(self, version: int) -> tuple[LocalVersion, bool]:
        """Opens a version; returns it, and whether the run holds the partition.

        Raises:
            StateError: The version does not exist.
            ConflictError: The run went on, or has another attempt's version.
            QuotaError: The state has reached a limit.
        """
        link = self._link.find()
        if link is not None:
            link.check_quota()
        local, opened = self._open(self._run_id, version, with_time=self._expires)
        held = opened is not None and opened.held
        if self._expires:
            return TimedVersion(local, max(opened.time_s if opened else 0, local.time_s)), held
        # Without a time to live from now on, the batch sees the rows of the version below.
        return _seen(local), held

    def read(self, version: int) -> LocalVersion:
        """Opens a version for reading, without any effect on writers."""
        return _seen(self._open("", version)[0])

    def latest(self) -> int | None:
        """Returns the newest published version; ``None`` if no version was ever written."""
        link = self._link.find()
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
        link = self._link.make()
        link.check_quota()
        run = self._run or register_run(
            self._client, link.gen, self._run_id, by_driver=False, tenant=self._spec.tenant
        )
        # Before the acquire, so that a run that holds the partition can rely on the entry.
        link.confirm(families)
        share = link.share()
        with self._telling():
            self._run = link.client.acquire(run, pin, share=share)
        self.cache.opened = pin
        log.info("%s: run %s acquired version %d", self.id.store_id, self._run_id, pin.version)

    def commit(
        self, local: LocalVersion, changes: WriteSet, families: Families, uid: str
    ) -> LocalVersion:
        """Publishes the next version. The changes remove all rows of families that are left out.

        Raises:
            RedisStateError: See `PartitionClient.commit`.
        """
        link = self._link.make()
        version = local.pin.version + 1
        with self.counters.timing("commit_ms"):
            delta = delta_of(local, changes, families)
            time_s = self._time_of_next(link, local) if families.expire else 0
            if families.expire and self._spec.ttl_ms is not None:
                delta = delta.stamped(expiry_of(time_s, self._spec.ttl_ms))
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
                time=time_s,
            )
            run = self._run or RegisteredRun(self._run_id, 0, "x")
            try:
                with self._telling():
                    link.client.commit(run, local.pin, uid, written.entry, written.fields)
            finally:
                self.counters.set("room_waits", link.client.waits.count)
                self.counters.set("room_wait_ms", link.client.waits.ms)
        top = Layer(delta.rows, written.raw_bytes, delta.keys, in_order=delta.in_order)
        next_version = local.with_changes(Pin(version, uid), families, top, written.entry)
        self.cache.keep(next_version)
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
        return _seen(next_version)

    def _time_of_next(self, link: LinkedPartition, local: LocalVersion) -> int:
        """Returns the time of the next version; asks the server if the checkpoint is new."""
        if isinstance(local, TimedVersion) and local.now_s:
            return local.now_s
        return link.client.open(self._run_id, local.pin.version, with_time=True).time_s

    def abort(self, version: int, uid: str) -> None:
        """Drops the staged bytes of an attempt. Never raises."""
        if self._link.found is not None:
            self._link.found.client.abort(f"d:{version}:{uid}")
        log.info("%s: aborted an attempt of version %d", self.id.store_id, version)

    def values(self) -> dict[str, int]:
        """Returns the figures of `CUSTOM_METRICS`."""
        files = files_of(self._client)
        of_process = {
            "round_trips": self._client.round_trips,
            "file_reads": files.reads - self._reads_before,
            "disk_hits": files.hits - self._hits_before,
        }
        return self.counters.values | of_process

    def _open(
        self, run_id: str, version: int, *, with_time: bool = False
    ) -> tuple[LocalVersion, Opened | None]:
        self.counters.add("opens", 1)
        link = self._link.find()
        if link is None:
            if version or self._spec.expect_existing:
                raise no_checkpoint(self.id, version)
            return no_rows(self._spec.where), None
        cached = {local.pin: local for local in reversed(self.cache.versions())}
        with self.counters.timing("load_ms"):
            opened, local = link.loader.open(run_id, version, cached, with_time=with_time)
        self._check_families(local)
        self.cache.keep(local)
        if opened.held:
            self.cache.opened = opened.pin
        log.info(
            "%s: opened version %d: %d segments read, %d live keys",
            self.id.store_id,
            version,
            len(opened.segments),
            local.live,
        )
        return local, opened

    def _check_families(self, local: LocalVersion) -> None:
        found = local.families
        if self._own is None:
            fits = ordered.FAMILY_ID not in found.ids and not found.expire
            advice = "Open it with the codec that wrote it, by a provider without families=True."
        else:
            fits = found.without_ttl() in (self._own.without_ttl(), NO_FAMILIES)
            advice = "Open the store with the codec that wrote it, with lists if it has them."
        if not fits:
            raise UsageError(
                f"opening version {local.pin.version}",
                found=described(found),
                advice=advice,
                where=self._spec.where,
                version=local.pin.version,
            )

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except ConflictError:
            self._events.overtaken()
            raise


def _seen(local: LocalVersion) -> LocalVersion:
    """Returns a version as readers see it: without the rows that are expired in it."""
    return TimedVersion(local, local.time_s) if local.families.expire else local
