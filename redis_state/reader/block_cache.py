"""Blocks that keys were looked up in, decoded; segments never change, so they stay right."""

from __future__ import annotations

from collections.abc import Mapping

from redis_state.format.header import Header
from redis_state.format.rows import Value

BYTES_MAX = 32 << 20
"""Of the decoded blocks of one query, about."""

_ENTRY_BYTES_MAX = 1 << 20
_ROW_BYTES = 150


Place = tuple[int, str, int, str, str]
"""Where a block is: operator, store, partition, ident of the segment, name of the field."""


class BlockCache:
    """Starts afresh when it is full; safe to share between threads, without a lock."""

    def __init__(self) -> None:
        self._heads: dict[Place, Header] = {}
        self._rows: dict[Place, Mapping[bytes, Value]] = {}
        self._bytes = 0

    def head(self, place: Place) -> Header | None:
        """A header; ``None`` if it is not here."""
        return self._heads.get(place)

    def rows(self, place: Place) -> Mapping[bytes, Value] | None:
        """The rows of a block; ``None`` if they are not here."""
        return self._rows.get(place)

    def add_head(self, place: Place, head: Header, raw_bytes: int) -> None:
        """Keep a header."""
        if raw_bytes <= _ENTRY_BYTES_MAX:
            self._make_room(raw_bytes)
            self._heads[place] = head

    def add_rows(self, place: Place, rows: Mapping[bytes, Value], raw_bytes: int) -> None:
        """Keep the rows of a block.

        Args:
            raw_bytes: Of keys and values together, about.
        """
        size = raw_bytes + _ROW_BYTES * len(rows)
        if size <= _ENTRY_BYTES_MAX:
            self._make_room(size)
            self._rows[place] = rows

    def _make_room(self, size: int) -> None:
        # Two threads may count at once, which makes the bound a little inexact, and no more.
        self._bytes += size
        if self._bytes > BYTES_MAX:
            self._heads, self._rows, self._bytes = {}, {}, size
