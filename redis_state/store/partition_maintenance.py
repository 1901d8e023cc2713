"""Maintenance of one partition by the process that keeps its versions: snapshots and retention."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from redis_state.errors import ConfigError, InternalError, RedisStateError, UnavailableError
from redis_state.format import ordered
from redis_state.format.entry import Entry
from redis_state.format.ordered import Written
from redis_state.ids import EMPTY, Pin
from redis_state.maintain import compaction
from redis_state.maintain.history import move_when_due
from redis_state.maintain.hot_run import Refused, keep_hot_run
from redis_state.maintain.placing import place_snapshot
from redis_state.places.room import keep_room
from redis_state.store.checkpoint_link import CheckpointLink, LinkedPartition
from redis_state.store.local.version import LocalVersion, unexpired_rows
from redis_state.store.local.version_cache import VersionCache
from redis_state.store.metrics import Counters

_PAUSE_S, _PAUSE_MAX_S = 60, 3600
_DOUBLINGS_MAX = 6

log = logging.getLogger("redis_state.store")


class PartitionMaintenance:
    """Adds snapshots of cached versions, and drops segments that no retained version needs."""

    def __init__(self, link: CheckpointLink, cache: VersionCache, counters: Counters) -> None:
        self._link = link
        self._cache = cache
        self._counters = counters
        self._is_marked = False
        self._merged_at, self._refused = EMPTY, Refused()
        self._is_due: bool | None = None
        self._moving, self._keeping = _Tries(), _Tries()

    def run(self, *, make_room: bool = False) -> None:
        """Runs the maintenance that is due; does nothing without a checkpoint.

        Args:
            make_room: Drops all cached versions, and adds a snapshot if there are changes since the
                last one. The next open reads few changes, and only the requested blocks of the
                snapshot.

        Raises:
            RedisStateError: The server refuses, or does not answer.
        """
        link = self._link.find()
        if link is None:
            return
        with self._counters.timing("maintenance_ms"):
            link.renew()
            if make_room:
                self._make_room(link)
            local = self._cache.get(self._cache.opened)
            if local is not None and self._is_base_due(link, local):
                self._merged_at = EMPTY
                self.snapshot(local)
            report = link.client.retain()
            self._move(link)
        self._counters.add("dropped_bytes", report.dropped_bytes)
        log.info(
            "%s: maintenance: floor %d, %d segments kept, %d dropped",
            link.spec.id.store_id,
            report.floor,
            report.kept,
            report.dropped,
        )

    def _is_base_due(self, link: LinkedPartition, local: LocalVersion) -> bool:
        """Returns whether a base is due; a bounded partition keeps its hot rows in Redis before."""
        is_due: bool | None = None
        if link.spec.config.redis_memory is not None:
            if local.pin != self._merged_at:
                try:
                    self._is_due = keep_hot_run(link.client, self._refused)
                    self._merged_at = local.pin
                except RedisStateError as error:
                    # No version needs a hot run, and the next base may be written from memory.
                    log.warning("%s: no hot run now: %s", link.spec.id.store_id, error)
                    self._is_due = None
            is_due = self._is_due
        return local.history.is_due() if is_due is None else is_due

    def _move(self, link: LinkedPartition) -> None:
        """Moves segments into files; the store goes on if the folder does not answer."""
        config, now_s = link.spec.config, link.shared.clock.monotonic_s()
        moves = config.history == "files" and self._moving.are_due(now_s)
        keeps = config.redis_memory is not None and self._keeping.are_due(now_s)
        if not (moves or keeps):
            return
        # The folder may not have answered when the process declared it.
        self._is_marked = self._is_marked or link.mark_folder()
        if not self._is_marked:
            self._counters.add("failed_moves", 1)
            return
        if moves:
            self._try(link, self._moving, self._move_history)
        if keeps:
            # Commits wait where there is no room, whatever becomes of the history.
            self._try(link, self._keeping, self._keep_room)

    def _try(
        self, link: LinkedPartition, tries: _Tries, step: Callable[[LinkedPartition], None]
    ) -> None:
        try:
            step(link)
        except (ConfigError, UnavailableError) as error:
            tries.failed(link.shared.clock.monotonic_s())
            self._counters.add("failed_moves", 1)
            log.warning("%s: segments stay in Redis for now: %s", link.spec.id.store_id, error)
        else:
            tries.succeeded()

    def _move_history(self, link: LinkedPartition) -> None:
        moved = move_when_due(link.shared, link.client.id)
        self._counters.add("moved_bytes", moved.bytes)
        if moved.segments:
            name = link.spec.id.store_id
            log.info("%s: %d segments moved into files", name, moved.segments)

    def _keep_room(self, link: LinkedPartition) -> None:
        keep_room(link.shared, link.client.id, link.share())

    def snapshot(self, local: LocalVersion) -> bool:
        """Adds a snapshot of an opened version; returns false if it is no longer needed."""
        link = self._link.find()
        if link is None or local.pin.version == 0:
            return False
        # A partly read base is not loaded whole for the snapshot: it may not fit into memory.
        base = local.parts[1]
        size = self._compact(link, local.pin) if base and not base.whole else self._add(link, local)
        if size:
            self._cache.rebase(local, size)
            self._cache.forget_expired()
        return size > 0

    def _add(self, link: LinkedPartition, local: LocalVersion) -> int:
        """Adds a snapshot from memory; returns its bytes, 0 if it is no longer needed."""
        found = unexpired_rows(local) if local.families.expire else local.rows_between(b"", None)
        rows: dict[bytes, bytes | None] = dict(found)

        def cost() -> int:
            # Blocks are compressed, so this is more than they take.
            return sum(len(key) + len(value or b"") for key, value in rows.items())

        entry = place_snapshot(link.client, local.pin, cost, lambda: _LocalBlocks(local, rows))
        return self._counted(entry.bytes if entry else 0)

    def _compact(self, link: LinkedPartition, pin: Pin) -> int:
        """Adds a snapshot piece by piece from Redis, for a version that may not fit into memory.

        Returns:
            Bytes of the snapshot; 0 if it is no longer needed.
        """
        opened = link.client.open("", pin.version, [])
        entry = compaction.add_snapshot(link.client, opened) if opened.pin == pin else None
        return self._counted(entry.bytes if entry else 0)

    def _counted(self, size: int) -> int:
        self._counters.add("snapshot_bytes", size)
        return size

    def _make_room(self, link: LinkedPartition) -> None:
        newest = self._cache.newest()
        pin, deltas = (newest.pin, newest.history.deltas) if newest else (EMPTY, 0)
        del newest
        self._cache.clear()
        if deltas:
            self._compact(link, pin)


class _Tries:
    """Tries of one step, which get rarer while it fails, since each may announce a file."""

    def __init__(self) -> None:
        self._failures, self._due_s = 0, 0.0

    def are_due(self, now_s: float) -> bool:
        return not self._failures or now_s >= self._due_s

    def failed(self, now_s: float) -> None:
        pause_s = min(_PAUSE_S * 2 ** min(self._failures, _DOUBLINGS_MAX), _PAUSE_MAX_S)
        self._due_s = now_s + pause_s
        self._failures += 1

    def succeeded(self) -> None:
        self._failures = 0


class _LocalBlocks:
    """Rows of a version in memory as the blocks of a snapshot."""

    def __init__(self, local: LocalVersion, rows: Mapping[bytes, bytes | None]) -> None:
        self._local, self._rows = local, rows
        self._written: Written | None = None

    def entry(self) -> Entry:
        """Implements `SnapshotSource.entry`."""
        if self._written is None:
            raise InternalError("adding a snapshot", found="its blocks were not taken")
        return self._written.entry

    def blocks(self, writer: str) -> Iterator[Mapping[str, bytes]]:
        """Implements `SnapshotSource.blocks`."""
        local = self._local
        self._written = ordered.write(
            f"s:{local.pin.version}:{writer}",
            list(self._rows),
            list(self._rows.values()),
            ref=writer,
            live=len(self._rows),
            families=local.families.table,
            highest_id=local.families.highest_id,
            internal=local.internal,
            time=local.time_s,
        )
        yield self._written.fields
