"""Cache of the most recently used values, bounded by bytes; for callers that hold a lock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class SizedCache(Generic[_Key, _Value]):
    """Drops the least recently used values, but never the newest one.

    Args:
        bytes_max: Bound of the sum of sizes given to `put`.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held = 0
        self._values: OrderedDict[_Key, tuple[_Value, int]] = OrderedDict()

    def get(self, key: _Key) -> _Value | None:
        """Returns a value and marks it as used; ``None`` if there is none."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: _Key, value: _Value, size: int) -> None:
        """Adds a value, or replaces the one of this key.

        Args:
            size: Bytes to count for the value.
        """
        self.forget(key)
        self._values[key] = value, size
        self._held += size
        while self._held > self._bytes_max and len(self._values) > 1:
            self._held -= self._values.popitem(last=False)[1][1]

    @property
    def bytes(self) -> int:
        """Bytes of all values."""
        return self._held

    def forget(self, key: _Key) -> None:
        """Removes a value, if there is one."""
        found = self._values.pop(key, None)
        self._held -= found[1] if found else 0
