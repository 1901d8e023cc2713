"""The base of a local version: its oldest segment, whose blocks are read as they are needed."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence, Set
from itertools import repeat

from redis_state.errors import FormatError
from redis_state.format import header
from redis_state.format.block import check_bytes
from redis_state.format.entry import Segment
from redis_state.format.ordered import Index, read_block
from redis_state.format.rows import Appended, Value
from redis_state.format.segment import combined_checksum
from redis_state.protocol import PartitionClient, SegmentGoneError

_READ_AHEAD_BLOCKS = 256
_MISSES_MAX = 64
_WHOLE_BYTES_MAX = 64 << 20
_KEYS_A_BLOCK = 4


class Base:
    """The oldest segment of a version, of which blocks are read as they are needed.

    May be used by several threads: what two of them read at once is the same.

    Args:
        head: Its header as it was read; empty if it has none.
        lists: Ids of the families whose values are lists.

    Attributes:
        rows: Values by stored key, of the blocks that were read.
        removes: Whether there is a ``None`` among them.
        whole: Whether all were read.
        in_order: Whether `rows` gives them out in ascending order of their keys.
    """

    __slots__ = (
        "_checks",
        "_client",
        "_keys",
        "_lists",
        "_lock",
        "_misses",
        "_read",
        "_rows",
        "in_order",
        "index",
        "raw_bytes",
        "removes",
        "rows",
        "segment",
        "whole",
    )

    def __init__(
        self,
        client: PartitionClient,
        segment: Segment,
        index: Index,
        head: bytes,
        *,
        lists: Set[int],
    ) -> None:
        self._client = client
        self._lists = lists
        # Held while what was read is taken in, never while a server is asked.
        self._lock = threading.Lock()
        self._keys: list[list[bytes] | None] = [None] * len(index.firsts)
        self._checks = {header.FIELD: check_bytes(head)}
        self._read = self._rows = 0
        self._misses = 0
        self.segment = segment
        self.index = index
        self.rows: dict[bytes, bytes | None] = {}
        self.raw_bytes = 0
        self.removes = False
        self.whole = False
        self.in_order = True

    def get(self, key: bytes) -> bytes | None:
        """The value of a stored key; who asks for many gets ever more blocks at once."""
        number = bisect_right(self.index.firsts, key) - 1
        if number >= 0 and self._keys[number] is None:
            self._misses += 1
            small = self.segment.entry.bytes <= _WHOLE_BYTES_MAX
            if small and self._misses > _MISSES_MAX:
                self.load_all()
            else:
                ahead = min(self._misses, _READ_AHEAD_BLOCKS)
                self.load(range(number, min(number + ahead, len(self._keys))))
        return self.rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of stored keys in their order, read in few round trips."""
        self.load_for(keys)
        return list(map(self.rows.get, keys))

    def load(self, numbers: Iterable[int]) -> None:
        """Read these blocks, unless they were read.

        Raises:
            SegmentGoneError: The segment is not whole any more.
            FormatError: A block is damaged.
        """
        wanted = [number for number in numbers if self._keys[number] is None]
        if not wanted:
            return
        self.take(wanted, self._client.fetch(self.segment, list(map(self.index.name, wanted))))

    def take(self, numbers: Iterable[int], raws: Sequence[bytes | None]) -> None:
        """Decode blocks that were read.

        Raises:
            SegmentGoneError: One was not there.
            FormatError: One is damaged.
        """
        for number, raw in zip(numbers, raws, strict=True):
            if raw is None:
                raise SegmentGoneError(self.segment)
            lists = bool(self._lists) and self.index.family_id(number) in self._lists
            keys, values = read_block(self.segment, self.index, number, raw, lists=lists)
            plain = list(map(_alone, values)) if lists else values
            with self._lock:
                # Of two threads that read a block, the second finds it here.
                if self._keys[number] is None:
                    self._take_one(number, raw, keys, plain)  # type: ignore[arg-type]  # no lists

    def _take_one(
        self, number: int, raw: bytes, keys: list[bytes], values: list[bytes | None]
    ) -> None:
        self._checks[self.index.name(number)] = check_bytes(raw)
        last = self._read + 1 == len(self._keys)
        if last:
            self._check_whole(self._rows + len(keys))
        self.rows.update(zip(keys, values, strict=True))
        self.removes = self.removes or None in values
        self.raw_bytes += len(raw)
        self.in_order = self.in_order and number == self._read
        self._read += 1
        self._rows += len(keys)
        # Whoever finds the keys of a block, or the base whole, looks no further for its rows.
        self._keys[number] = keys
        self.whole = last

    def load_all(self) -> None:
        """Read all blocks."""
        if not self.whole:
            self.load(range(len(self._keys)))

    def load_for(self, keys: Sequence[bytes]) -> None:
        """Read the blocks in which these stored keys can be."""
        if not self.whole and keys:
            firsts = self.index.firsts
            start = max(bisect_right(firsts, min(keys)) - 1, 0)
            end = bisect_right(firsts, max(keys))
            if len(keys) >= _KEYS_A_BLOCK * (end - start):
                # So many for so few blocks: hardly one is not needed.
                self.load(range(start, end))
                return
            behind = set(map(bisect_right, repeat(firsts), keys))
            self.load(number - 1 for number in sorted(behind) if number)

    def keys(self, number: int, *, last: int) -> list[bytes]:
        """The stored keys of a block; some further ones up to `last` are read with it."""
        keys = self._keys[number]
        if keys is None:
            self.load(range(number, min(number + _READ_AHEAD_BLOCKS, last + 1)))
            keys = self._keys[number]
        return keys or []

    def _check_whole(self, rows: int) -> None:
        entry = self.segment.entry
        what = f"reading {self.segment.ident}"
        if combined_checksum(self._checks) != entry.checksum:
            raise FormatError(what, found="the checksum does not match")
        if rows != entry.rows:
            raise FormatError(what, found=f"it does not have {entry.rows} rows")


def _alone(value: Value) -> bytes | None:
    """What a value says where nothing lies below it."""
    return value.data if isinstance(value, Appended) else value
