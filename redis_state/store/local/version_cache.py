"""Versions of one partition that stay in memory between batches."""

from __future__ import annotations

import threading
from dataclasses import replace

from redis_state.ids import Pin
from redis_state.process import tell_after_fork
from redis_state.store.local.base import Base
from redis_state.store.local.version import LocalVersion


class VersionCache:
    """Opened and committed versions by their pins; thread-safe, and empty in a forked process.

    Args:
        versions_max: Number of versions that stay, at least one.

    Attributes:
        opened: The version that the run holds or opened last; ``None`` before.
    """

    def __init__(self, versions_max: int) -> None:
        self._versions_max = versions_max
        self.opened: Pin | None = None
        self.after_fork()
        tell_after_fork(self)

    def after_fork(self) -> None:
        """Empties the cache, which uses the parent's connections, and replaces the lock."""
        self._lock = threading.Lock()
        self._versions: dict[Pin, LocalVersion] = {}

    def keep(self, local: LocalVersion) -> None:
        """Adds a version; drops the least recently added ones above the limit."""
        with self._lock:
            self._versions.pop(local.pin, None)
            self._versions[local.pin] = local
            while len(self._versions) > self._versions_max:
                del self._versions[next(iter(self._versions))]

    def take_over(self, other: VersionCache) -> None:
        """Adds the versions of another cache."""
        versions = {local.pin: local for local in other.versions()}
        with self._lock:
            self._versions.update(versions)

    def versions(self) -> list[LocalVersion]:
        """Returns the versions, the most recently added last."""
        with self._lock:
            return list(self._versions.values())

    def get(self, pin: Pin | None) -> LocalVersion | None:
        """Returns a cached version; ``None`` if it is not cached."""
        with self._lock:
            return self._versions.get(pin) if pin else None

    def newest(self) -> LocalVersion | None:
        """Returns the highest version, of two attempts the later one; ``None`` if empty."""
        return max(reversed(self.versions()), key=lambda one: one.pin.version, default=None)

    def cached_bytes(self) -> int:
        """Returns the approximate size of the versions; shared parts count once."""
        parts = {id(part): part for version in self.versions() for part in version.all_parts}
        return sum(part.held_bytes for part in parts.values())

    def is_crowded(self, bytes_max: int) -> bool:
        """Returns whether the newest version is larger, and its changes alone half as large.

        The rows of its base can be evicted; its changes go only with the whole version.
        """
        newest = self.newest()
        if newest is None or newest.full_bytes <= bytes_max:
            return False
        return 2 * sum(layer.held_bytes for layer in newest.parts[0]) > bytes_max

    def drop_bases(self) -> None:
        """Evicts the decoded base blocks. Versions that share a base share the next one."""
        evicted: dict[Base, Base] = {}
        for version in self.versions():
            layers, base = version.parts
            if base is not None:
                if base not in evicted:
                    evicted[base] = base.evicted()
                version.parts = layers, evicted[base]

    def forget_older(self) -> None:
        """Drops all versions except that of the last open or commit, also after a rewind."""
        with self._lock:
            last = next(reversed(self._versions), None)
            self._versions = {pin: one for pin, one in self._versions.items() if pin == last}

    def forget_expired(self) -> None:
        """Drops the rows that are expired in the newest version, and the older versions.

        An older version would hold the same rows once more.
        """
        if any(local.families.expire for local in self.versions()):
            self.forget_older()
            for local in self.versions():
                local.forget_expired()

    def clear(self) -> None:
        """Drops all versions."""
        with self._lock:
            self._versions.clear()

    def rebase(self, local: LocalVersion, size: int) -> None:
        """Counts the history from the snapshot of a version; `size` is that of the snapshot."""
        was = local.history
        with self._lock:
            for version in self._versions.values():
                own = version.history
                if version.pin.version >= local.pin.version:
                    version.history = replace(
                        own,
                        base_bytes=size,
                        delta_bytes=own.delta_bytes - was.delta_bytes,
                        deltas=own.deltas - was.deltas,
                    )
