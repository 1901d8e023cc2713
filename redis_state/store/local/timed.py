"""Version as a store sees it whose rows have a time to live (docs/format.md, section 15).

Layers and base hold values as segments do, each followed by its expiry. A store puts and gets
values without it, and rows that are expired at the store's time are absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Final

from redis_state.format.expiry import NEVER, stamped
from redis_state.format.ordered import OrderedRows
from redis_state.format.visible import visible
from redis_state.store.local.version import KeyCounts, LocalVersion

_NONE: Final[dict[bytes, bytes | None]] = {}


class TimedVersion(LocalVersion):
    """A local version, seen at a time.

    Args:
        local: The version. Its cache keeps `local` itself.
        now_s: Time of the next version for a store that writes it, else that of the version itself,
            in seconds since 1970; 0 if it is not known yet, for an empty version.

    Attributes:
        now_s: The time.
        hides: True if values of the version are followed by expiries; false if the next version is
            the first one with a time to live.
    """

    __slots__ = ("hides", "now_s")

    def __init__(self, local: LocalVersion, now_s: int) -> None:
        counts = KeyCounts(local.live, local.internal)
        super().__init__(
            local.pin,
            counts,
            local.families,
            local.parts,
            local.history,
            local.reload,
            time_s=local.time_s,
        )
        self.now_s = now_s
        self.hides = local.families.expire

    def get(self, key: bytes) -> bytes | None:
        """Implements `LocalVersion.get`."""
        stored = super().get(key)
        return visible(stored, self.now_s) if self.hides else stored

    def get_many(self, keys: Sequence[bytes], above: OrderedRows = _NONE) -> list[bytes | None]:
        """Implements `LocalVersion.get_many`."""
        if not self.hides:
            return super().get_many(keys, above)
        over = {key: _unending(above[key]) for key in keys if key in above} if above else _NONE
        return list(map(visible, super().get_many(keys, over), repeat(self.now_s)))

    def rows_between(
        self, start: bytes, end: bytes | None, above: OrderedRows = _NONE
    ) -> Iterator[tuple[bytes, bytes]]:
        """Implements `LocalVersion.rows_between`."""
        if not self.hides:
            return super().rows_between(start, end, above)
        over = {key: _unending(value) for key, value in above.items()}
        return self._seen_rows(super().rows_between(start, end, over))

    def _seen_rows(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        now_s = self.now_s
        for key, stored in rows:
            value = visible(stored, now_s)
            if value is not None:
                yield key, value


def _unending(value: bytes | None) -> bytes | None:
    return None if value is None else stamped(value, NEVER)
