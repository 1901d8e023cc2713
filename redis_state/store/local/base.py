"""Base of a local version: its oldest segment, whose blocks are read on demand.

Decoded blocks stay in memory while there is room. Otherwise all of them are dropped, and read again
on demand. Processors take their groups in key order, so they come to each block once.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence, Set
from contextlib import nullcontext
from itertools import repeat

from redis_state.errors import FormatError
from redis_state.format import header
from redis_state.format.block import check_bytes, raw_length
from redis_state.format.entry import Segment
from redis_state.format.ordered import Index, read_block
from redis_state.format.rows import Appended, Value
from redis_state.format.segment import combined_checksum
from redis_state.protocol import PartitionClient, SegmentGoneError
from redis_state.store.local.memory_budget import ROW_BYTES, MemoryBudget

_READ_AHEAD_BLOCKS = 256
_MISSES_MAX = 64
_WHOLE_BYTES_MAX = 64 << 20
_KEYS_A_BLOCK = 4
_TIGHT_BLOCKS = 64
_BLOCK_BYTES = 16 << 10  # of a full block, before compression
_FIRST_BLOCKS = 8


class Base:
    """Oldest segment of a version, with its blocks read on demand.

    May be used by several threads: two reads of one block give the same rows. With a memory budget
    the threads take turns, so that no block is dropped between its read and its look-up.

    Args:
        head: Encoded header; empty if the segment has none.
        lists: Ids of the families whose values are lists.
        room: Memory budget of the rows; ``None`` is unbounded.

    Attributes:
        rows: Values by stored key, of the blocks in memory.
        removes: True if a ``None`` was ever among the values.
        whole: True if all blocks are in memory.
        in_order: True if iterating `rows` follows the ascending order of the keys.
        raw_bytes: Size of the blocks in memory, before compression.
    """

    __slots__ = (
        "_ahead",
        "_checks",
        "_client",
        "_head",
        "_held",
        "_keys",
        "_lists",
        "_lock",
        "_misses",
        "_next",
        "_room",
        "_rows",
        "_seen_bytes",
        "_tight",
        "_turn",
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
        room: MemoryBudget | None = None,
    ) -> None:
        self._client = client
        self._head = head
        self._room = room
        self._lists = lists
        # Held while decoded blocks are added, never during I/O.
        self._lock = threading.Lock()
        self._turn = nullcontext() if room is None else threading.RLock()
        self._keys: list[list[bytes] | None] = [None] * len(index.firsts)
        self._checks = {header.FIELD: check_bytes(head)}
        self._rows = self._seen_bytes = 0
        self._misses = 0
        self._tight = False
        # For a tight budget, by family: the block after the last one that was read, and the number
        # of blocks of that read.
        self._next: dict[int, int] = {}
        self._ahead: dict[int, int] = {}
        self._held = 0
        self.segment = segment
        self.index = index
        self.rows: dict[bytes, bytes | None] = {}
        self.raw_bytes = 0
        self.removes = False
        self.whole = False
        self.in_order = True

    def get(self, key: bytes) -> bytes | None:
        """Returns the value of a stored key; repeated misses read ever more blocks at once."""
        with self._turn:
            return self._get(key)

    def _get(self, key: bytes) -> bytes | None:
        number = bisect_right(self.index.firsts, key) - 1
        if number >= 0 and self._keys[number] is None:
            self._misses += 1
            small = self.segment.entry.bytes <= _WHOLE_BYTES_MAX
            if self._tight:
                self._load_near(number)
            elif small and self._misses > _MISSES_MAX and self._fits(len(self._keys)):
                self.load_all()
            else:
                self._load_from(number, min(self._misses, _READ_AHEAD_BLOCKS))
        return self.rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Returns the values of stored keys in their order, read in few round trips."""
        with self._turn:
            return self._get_many(keys)

    def _get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        bounded = self._room is not None and len(self._keys) > _TIGHT_BLOCKS
        if bounded and keys and not self._is_measured:
            self._load_from(max(bisect_right(self.index.firsts, keys[0]) - 1, 0), _FIRST_BLOCKS)
        if self.whole or self._fits(min(len(keys), len(self._keys) - self._held)):
            self.load_for(keys)
            return list(map(self.rows.get, keys))
        # In block order, so that each block is read once.
        ordered = sorted(set(keys))
        behind = list(map(bisect_right, repeat(self.index.firsts), ordered))
        found: dict[bytes, bytes | None] = {}
        start = 0
        while start < len(ordered):
            end = bisect_left(behind, behind[start] + self._made_room(_TIGHT_BLOCKS), start)
            some = ordered[start:end]
            self.load_for(some)
            found.update(zip(some, map(self.rows.get, some), strict=True))
            start = end
        return list(map(found.get, keys))

    def prefetch(self, keys: Sequence[bytes]) -> int:
        """Reads the blocks of stored keys together, as far as there is room for them.

        Returns:
            Number of keys, from the first one on, whose blocks are in memory.
        """
        with self._turn:
            return self._prefetch(keys)

    def _prefetch(self, keys: Sequence[bytes]) -> int:
        numbers = [bisect_right(self.index.firsts, key) - 1 for key in keys]
        missing = self._missing(numbers)
        if missing and not self._is_measured and len(missing) > _FIRST_BLOCKS:
            # The size of a block decides how many of them fit.
            self.load(sorted(missing[:_FIRST_BLOCKS]))
            missing = missing[_FIRST_BLOCKS:]
        room = self._made_room(len(missing))
        # To make room may have dropped blocks of these keys.
        some = set(self._missing(numbers)[:room])
        self.load(sorted(some))
        return next(
            (at for at, one in enumerate(numbers) if one >= 0 and self._keys[one] is None),
            len(keys),
        )

    def _missing(self, numbers: Sequence[int]) -> list[int]:
        """Returns the blocks among these that are not in memory, each once and in this order."""
        return [one for one in dict.fromkeys(numbers) if one >= 0 and self._keys[one] is None]

    def rows_between(
        self, low: bytes, high: bytes | None, *, last: int
    ) -> tuple[list[bytes], list[bytes | None]]:
        """Returns the stored keys of a range in ascending order, and their values.

        Args:
            high: ``None`` is open.
            last: Number of blocks after the range that are likely to be read next.
        """
        with self._turn:
            return self._rows_between(low, high, last)

    def _rows_between(
        self, low: bytes, high: bytes | None, last: int
    ) -> tuple[list[bytes], list[bytes | None]]:
        firsts = self.index.firsts
        number = max(bisect_right(firsts, low) - 1, 0)
        stop = len(firsts) if high is None else bisect_left(firsts, high)
        found: list[bytes] = []
        values: list[bytes | None] = []
        for at in range(number, stop):
            if self._keys[at] is None:
                self._load_from(at, min(last + 1, _READ_AHEAD_BLOCKS))
            keys = self._keys[at] or []
            start = bisect_left(keys, low)
            some = keys[start:] if high is None else keys[start : bisect_left(keys, high, start)]
            found += some
            values += map(self.rows.__getitem__, some)
        return found, values

    def evicted(self) -> Base:
        """Returns the base without its decoded blocks.

        With a memory budget this one, once its readers have ended their turns. Without one its
        readers take no turns, so another base takes its place, and they end their reads with this
        one.
        """
        if self._room is not None:
            self._drop()
            return self
        found = Base(self._client, self.segment, self.index, self._head, lists=self._lists)
        with self._lock:
            found._checks = dict(self._checks)
            found._rows, found._seen_bytes = self._rows, self._seen_bytes
            found.removes = self.removes
        return found

    def _drop(self) -> None:
        """Evicts the decoded blocks. Concurrent readers keep the rows that they already have."""
        with self._turn, self._lock:
            self.whole = False
            self.rows = {}
            self._keys = [None] * len(self._keys)
            self.in_order = True
            self._held = self.raw_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Returns the approximate size of the rows in memory."""
        return self.raw_bytes + ROW_BYTES * len(self.rows)

    @property
    def full_bytes(self) -> int:
        """Returns the approximate size of all rows, if they were in memory."""
        entry, blocks = self.segment.entry, len(self._keys)
        if not blocks:
            return 0
        if self._is_measured:
            a_block = self._seen_bytes // (len(self._checks) - 1)
        else:
            a_block = max(_BLOCK_BYTES, entry.bytes // blocks)
        return blocks * a_block + ROW_BYTES * entry.rows

    def has_room(self, raw_bytes: int) -> bool:
        """Returns whether all rows fit, given their size in bytes before compression."""
        return self._room is None or self._room.has(raw_bytes + ROW_BYTES * self.segment.entry.rows)

    @property
    def _is_measured(self) -> bool:
        """Returns whether a block was read, so that the size of blocks is known."""
        return self._seen_bytes > 0

    def _fits(self, blocks: int) -> bool:
        """Returns whether there is room for this many more blocks."""
        if self._room is None or not blocks:
            return True
        return self._room.has(blocks * self.full_bytes // len(self._keys))

    def _made_room(self, blocks: int) -> int:
        """Returns how many of these blocks may be read at once; evicts decoded blocks if needed."""
        if self._fits(blocks):
            return blocks
        if not self._is_measured:
            return min(blocks, _FIRST_BLOCKS)
        self._drop()
        self._tight = True
        while blocks > 1 and not self._fits(blocks):
            blocks //= 2
        return blocks

    def _load_from(self, number: int, count: int) -> int:
        """Reads a block and as many of the next blocks as fit; returns their number."""
        fitting = self._made_room(min(count, len(self._keys) - number))
        self.load(range(number, number + fitting))
        return fitting

    def _load_near(self, number: int) -> None:
        """Reads on from a block under a tight budget: ever more blocks while access is sequential.

        Any other access reads one block.
        """
        family = self.index.family_id(number)
        ahead = self._ahead.get(family, 1)
        goes_on = 0 <= number - self._next.get(family, -1) <= ahead
        ahead = self._ahead[family] = min(2 * ahead, _TIGHT_BLOCKS) if goes_on else 1
        self._next[family] = number + self._load_from(number, ahead)

    def load(self, numbers: Iterable[int]) -> None:
        """Reads the blocks that are not in memory.

        Raises:
            SegmentGoneError: The segment is not whole any more.
            FormatError: A block is damaged.
        """
        wanted = [number for number in numbers if self._keys[number] is None]
        if not wanted:
            return
        self.take(wanted, self._client.fetch(self.segment, list(map(self.index.name, wanted))))

    def take(self, numbers: Iterable[int], raws: Sequence[bytes | None]) -> None:
        """Decodes fetched blocks.

        Raises:
            SegmentGoneError: A block was missing.
            FormatError: A block is damaged.
        """
        for number, raw in zip(numbers, raws, strict=True):
            if raw is None:
                raise SegmentGoneError(self.segment)
            lists = bool(self._lists) and self.index.family_id(number) in self._lists
            keys, values = read_block(self.segment, self.index, number, raw, lists=lists)
            plain = list(map(_alone, values)) if lists else values
            with self._lock:
                # If two threads read one block, only the first adds its rows.
                if self._keys[number] is None:
                    self._take_one(number, raw, keys, plain)  # type: ignore[arg-type]  # no lists

    def _take_one(
        self, number: int, raw: bytes, keys: list[bytes], values: list[bytes | None]
    ) -> None:
        self._check(number, raw, len(keys))
        self.rows.update(zip(keys, values, strict=True))
        self.removes = self.removes or None in values
        self.raw_bytes += raw_length(raw)
        self.in_order = self.in_order and number == self._held
        self._held += 1
        # Last: a reader that sees the keys of a block, or the base whole, expects its rows in
        # `rows`.
        self._keys[number] = keys
        self.whole = self._held == len(self._keys)

    def _check(self, number: int, raw: bytes, rows: int) -> None:
        """Checks that a block read again is unchanged; the last new block checks the segment."""
        name, check = self.index.name(number), check_bytes(raw)
        known = self._checks.get(name)
        if known is not None:
            if known != check:
                raise FormatError(
                    f"reading field {name} of {self.segment.ident}", found="it was changed"
                )
            return
        checks = self._checks | {name: check} if len(self._checks) == len(self._keys) else None
        if checks is not None:
            self._check_whole(checks, self._rows + rows)
        self._checks[name] = check
        self._rows += rows
        self._seen_bytes += raw_length(raw)

    def load_all(self) -> None:
        """Reads all blocks."""
        if not self.whole:
            self.load(range(len(self._keys)))

    def load_for(self, keys: Sequence[bytes]) -> None:
        """Reads the blocks that can hold these stored keys."""
        if not self.whole and keys:
            firsts = self.index.firsts
            start = max(bisect_right(firsts, min(keys)) - 1, 0)
            end = bisect_right(firsts, max(keys))
            if len(keys) >= _KEYS_A_BLOCK * (end - start):
                # With so many keys for so few blocks, nearly every block is needed.
                self.load(range(start, end))
                return
            behind = set(map(bisect_right, repeat(firsts), keys))
            self.load(number - 1 for number in sorted(behind) if number)

    def _check_whole(self, checks: dict[str, bytes], rows: int) -> None:
        entry = self.segment.entry
        what = f"reading {self.segment.ident}"
        if combined_checksum(checks) != entry.checksum:
            raise FormatError(what, found="the checksum does not match")
        if rows != entry.rows:
            raise FormatError(what, found=f"it does not have {entry.rows} rows")


def _alone(value: Value) -> bytes | None:
    """Returns the value of a row with nothing below it."""
    return value.data if isinstance(value, Appended) else value
