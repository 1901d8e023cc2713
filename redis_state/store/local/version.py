"""One version of a partition in memory: decoded rows of its base, and layers of changes.

A version never changes. Blocks of its oldest segment are fetched and decoded at the first access to
one of their keys. Newer deltas and own commits lie above, in a few layers of doubling size.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

from redis_state.errors import ConflictError
from redis_state.format.entry import Entry
from redis_state.format.expiry import is_expired
from redis_state.format.ordered import OrderedRows
from redis_state.ids import EMPTY, Pin
from redis_state.protocol import SegmentGoneError, snapshots
from redis_state.store.local.base import Base
from redis_state.store.local.families import NO_FAMILIES, Families
from redis_state.store.local.memory_budget import ROW_BYTES

_MISSING: Final = object()
_SPAN_ROWS = 1024
_RELOADS_MAX = 3
_WORTH_DROPPING = 4
"""Expired rows are dropped from memory if they are more than one row in so many."""

_NONE: Final[dict[bytes, bytes | None]] = {}


class Layer:
    """Changes over the parts below: complete in memory, and never changed.

    Attributes:
        rows: Values by stored key; ``None`` is removed.
        removes: True if a ``None`` is among the values.
    """

    __slots__ = ("_in_order", "_sorted", "raw_bytes", "removes", "rows")

    def __init__(
        self,
        rows: dict[bytes, bytes | None],
        raw_bytes: int,
        keys: list[bytes] | None = None,
        *,
        in_order: bool = False,
    ) -> None:
        self.rows = rows
        # A list is searched several times as fast as the view.
        self.removes = None in list(rows.values())
        self.raw_bytes = raw_bytes
        self._sorted = keys
        self._in_order = in_order

    @property
    def held_bytes(self) -> int:
        """Returns the approximate size in this process."""
        return self.raw_bytes + ROW_BYTES * len(self.rows)

    def keys(self) -> list[bytes]:
        """Returns the stored keys in ascending order."""
        if self._sorted is None:
            self._sorted = sorted(self.rows)
        return self._sorted

    def in_order(self) -> dict[bytes, bytes | None]:
        """Returns the rows as a dict that iterates in ascending order of the keys."""
        if not self._in_order:
            keys = self.keys()
            self.rows = dict(zip(keys, map(self.rows.__getitem__, keys), strict=True))
            self._in_order = True
        return self.rows

    def between(self, start: bytes, end: bytes | None) -> list[bytes]:
        """Returns the keys in a range, in ascending order."""
        keys = self.keys()
        low = bisect_left(keys, start)
        return keys[low:] if end is None else keys[low : bisect_left(keys, end, low)]


@dataclass(frozen=True, slots=True)
class SnapshotHistory:
    """Sizes that decide when the next snapshot is due.

    Attributes:
        base_bytes: Bytes of the base segment; 0 without one.
        delta_bytes: Bytes of the deltas above the base.
        deltas: Number of these deltas.
    """

    base_bytes: int = 0
    delta_bytes: int = 0
    deltas: int = 0

    def plus(self, size: int) -> SnapshotHistory:
        """Returns the history with one more delta."""
        return SnapshotHistory(self.base_bytes, self.delta_bytes + size, self.deltas + 1)

    def is_due(self) -> bool:
        """Returns whether a snapshot is due."""
        return snapshots.is_due(self.deltas, self.delta_bytes, self.base_bytes)


Parts = tuple[tuple[Layer, ...], Base | None]
"""Layers, newest first, and the base below them."""


class KeyCounts(NamedTuple):
    """Number of live keys of a version, and of those in internal families."""

    live: int = 0
    internal: int = 0


class LocalVersion:
    """Rows of one version.

    Attributes:
        live: Number of keys; at most that many where rows have a time to live.
        internal: Number of keys in internal families.
        parts: Layers, newest first, and the base. Another thread may assign other parts with the
            same rows, so readers take layers and base in one read.
        reload: Reads a version from the segments that hold it now.
        time_s: Time of the version in seconds since 1970; 0 if no family has a time to live.
    """

    __slots__ = ("families", "history", "internal", "live", "parts", "pin", "reload", "time_s")

    def __init__(
        self,
        pin: Pin,
        counts: KeyCounts,
        families: Families,
        parts: Parts,
        history: SnapshotHistory,
        reload: Callable[[Pin], LocalVersion],
        *,
        time_s: int = 0,
    ) -> None:
        self.pin = pin
        self.live, self.internal = counts
        self.families = families
        self.parts = parts
        self.history = history
        self.reload = reload
        self.time_s = time_s

    def get(self, key: bytes) -> bytes | None:
        """Returns the value of a stored key; ``None`` if the key is absent."""
        layers, base = self.parts
        for layer in layers:
            value = layer.rows.get(key, _MISSING)
            if value is not _MISSING:
                return value  # type: ignore[return-value]  # mypy: object() is not a marker type
        if base is None:
            return None
        # Another thread may load the remaining blocks, or evict all of them, at this moment.
        rows, whole = base.rows, base.whole
        found = rows.get(key)
        if found is not None or (whole and base.rows is rows):
            return found
        try:
            return base.get(key)
        except SegmentGoneError:
            self.read_again()
            return self.get(key)

    def get_many(self, keys: Sequence[bytes], above: OrderedRows = _NONE) -> list[bytes | None]:
        """Returns the values of stored keys in their order; ``None`` for each absent key.

        Args:
            above: Changes that are not part of the version.
        """
        tries = 0
        while True:
            layers, base = self.parts
            try:
                return _looked_up(keys, [above, *(layer.rows for layer in layers)], base)
            except SegmentGoneError:
                tries += 1
                if tries > _RELOADS_MAX:
                    raise
                self.read_again()

    def count(self, keys: Sequence[bytes]) -> int:
        """Returns how many of these stored keys have a value."""
        return len(keys) - self.get_many(keys).count(None) if self.live else 0

    def overwritten(self, rows: dict[bytes, bytes | None]) -> dict[bytes, bytes | None] | None:
        """Returns the rows in key order if they set all keys of the version and no others.

        ``None`` if not, or if the answer would need reads or a sort. One merge with ordered rows
        costs a third of looking up every key and sorting all of them.
        """
        if not len(rows) == self.live > 0:
            return None
        layers, base = self.parts
        below: dict[bytes, bytes | None] = {}
        if base is None and len(layers) == 1:
            below = layers[0].in_order()
        elif base is not None and not layers and base.whole and base.in_order:
            below = base.rows
        if list(rows) == list(below):
            return rows
        # There are as many keys as in the version, so no key is new if the merge adds none.
        merged = below | rows
        return merged if len(below) == len(merged) == len(rows) else None

    def rows_between(
        self, start: bytes, end: bytes | None, above: OrderedRows = _NONE
    ) -> Iterator[tuple[bytes, bytes]]:
        """Iterates over stored keys and values in a range, in key order.

        Args:
            above: Changes that are not part of the version; must not change during the iteration.
        """
        over = (Layer(dict(above), 0),) if above else ()
        return chain.from_iterable(self._batches(start, end, over))

    def _batches(
        self, start: bytes, end: bytes | None, over: tuple[Layer, ...]
    ) -> Iterator[Iterable[tuple[bytes, bytes]]]:
        layers, base = self.parts
        tries = 0
        spans = _spans(start, end, (*over, *layers), base)
        for number, (low, high) in enumerate(spans):
            while True:
                try:
                    last = len(spans) - 1 - number
                    yield _span(low, high, (*over, *layers), base, last=last)
                    break
                except SegmentGoneError:
                    tries += 1
                    if tries > _RELOADS_MAX:
                        raise
                    self.read_again()
                    layers, base = self.parts

    def with_changes(self, pin: Pin, families: Families, top: Layer, entry: Entry) -> LocalVersion:
        """Returns the next version after its commit; `entry` is the manifest entry of its delta."""
        if entry.complete:
            layers, base, history = [top], None, SnapshotHistory(base_bytes=entry.bytes)
        else:
            below, base = self.parts
            added = [top, *below] if top.rows else list(below)
            layers = compacted(added, base, time_s=families.time_of(entry))
            history = self.history.plus(entry.bytes)
        counts = KeyCounts(entry.live, entry.internal)
        return LocalVersion(
            pin,
            counts,
            families,
            (tuple(layers), base),
            history,
            self.reload,
            time_s=entry.time,
        )

    def forget_expired(self) -> None:
        """Counts the rows that are not expired in this version, and drops the others if many.

        Does nothing if a part of the base is not in memory.
        """
        layers, base = self.parts
        if not self.families.expire or not (base is None or base.whole):
            return
        rows = unexpired_rows(self)
        self.live = len(rows)
        held = sum(len(layer.rows) for layer in layers) + (len(base.rows) if base else 0)
        # Rows of a base can be evicted one day, those of a layer cannot.
        if len(rows) * _WORTH_DROPPING < held * (_WORTH_DROPPING - 1):
            size = sum(map(len, rows)) + sum(map(len, rows.values()))
            kept: dict[bytes, bytes | None] = dict(rows)
            self.parts = (Layer(kept, size, list(rows), in_order=True),), None

    @property
    def memory_bytes(self) -> int:
        """Returns the approximate size in this process."""
        return sum(part.held_bytes for part in self.all_parts)

    @property
    def full_bytes(self) -> int:
        """Returns the approximate size with all rows in memory."""
        layers, base = self.parts
        return sum(layer.held_bytes for layer in layers) + (base.full_bytes if base else 0)

    @property
    def all_parts(self) -> list[Layer | Base]:
        """Returns the layers, newest first, and the base below them."""
        layers, base = self.parts
        return [*layers, *([base] if base else [])]

    def read_again(self) -> None:
        """Reloads the same rows from the segments that hold the version now."""
        self.parts = self.reload(self.pin).parts


def empty_version(reload: Callable[[Pin], LocalVersion]) -> LocalVersion:
    """Returns version 0, which has no rows."""
    return LocalVersion(EMPTY, KeyCounts(), NO_FAMILIES, ((), None), SnapshotHistory(), reload)


def no_rows(where: str) -> LocalVersion:
    """Returns version 0 of a store without a checkpoint.

    Args:
        where: Name of the store in errors.
    """

    def reload(_: Pin) -> LocalVersion:
        raise ConflictError("reading version 0", found="it has no rows", where=where)

    return empty_version(reload)


def _looked_up(
    keys: Sequence[bytes], parts: Sequence[OrderedRows], base: Base | None
) -> list[bytes | None]:
    """Returns each key's value from the first mapping that has the key, else from the base."""
    found: list[Any] | None = None
    left: Sequence[int] = range(len(keys))
    rest = keys
    for part in parts:
        if not rest or not part or part.keys().isdisjoint(rest):
            continue
        if found is None and base is None and part is parts[-1]:
            return list(map(part.get, rest))
        some = list(map(part.get, rest, repeat(_MISSING)))
        if found is None:
            found = some
        else:
            for at, value in zip(left, some, strict=True):
                found[at] = value
        left = [at for at, value in zip(left, some, strict=True) if value is _MISSING]
        rest = [keys[at] for at in left]
    below: list[bytes | None] = [None] * len(rest)
    if base is not None and rest:
        below = base.get_many(rest)
    if found is None:
        return below
    for at, value in zip(left, below, strict=True):
        found[at] = value
    return found


def unexpired_rows(local: LocalVersion) -> dict[bytes, bytes]:
    """Returns the rows that are not expired in a version, with their expiries, in key order.

    The version has a single family, which has a time to live.
    """
    time_s = local.time_s
    rows = local.rows_between(b"", None)
    return {key: stored for key, stored in rows if not is_expired(stored, time_s)}


def compacted(layers: list[Layer], base: Base | None, *, time_s: int = 0) -> list[Layer]:
    """Merges layers, newest first, until each has more than twice the rows of the layer above.

    Args:
        time_s: Time of the version if all of its rows have a time to live, else 0.
    """
    while len(layers) > 1 and len(layers[0].rows) * 2 >= len(layers[1].rows):
        upper, lower, *rest = layers
        layers = [_merge(upper, lower, bottom=not rest and base is None, time_s=time_s), *rest]
    return layers


def _merge(upper: Layer, lower: Layer, *, bottom: bool, time_s: int) -> Layer:
    rows = lower.rows | upper.rows
    if bottom and (time_s or upper.removes or lower.removes):
        # With rows below, an expired row has to stay: it hides an older one that may expire later.
        rows = {
            key: value
            for key, value in rows.items()
            if value is not None and not (time_s and is_expired(value, time_s))
        }
    return Layer(rows, upper.raw_bytes + lower.raw_bytes)


def _spans(
    start: bytes, end: bytes | None, layers: Sequence[Layer], base: Base | None
) -> list[tuple[bytes, bytes | None]]:
    """Cuts a range at the first keys of blocks, or at every thousandth row of the largest layer."""
    cuts: Sequence[bytes]
    if base is not None:
        cuts = base.index.firsts
    elif layers:
        cuts = max(layers, key=lambda layer: len(layer.rows)).keys()[::_SPAN_ROWS]
    else:
        return []
    low = bisect_right(cuts, start)
    high = len(cuts) if end is None else bisect_left(cuts, end)
    inner = list(cuts[low:high])
    return list(zip([start, *inner], [*inner, end], strict=True))


def _span(
    low: bytes, high: bytes | None, layers: Sequence[Layer], base: Base | None, *, last: int
) -> Iterable[tuple[bytes, bytes]]:
    """Returns the rows between two neighbouring cuts, in key order.

    Args:
        last: Number of later spans, which are likely to be read next.
    """
    sources: list[tuple[list[bytes], Iterable[bytes | None]]] = []
    removes = False
    for layer in layers:
        if keys := layer.between(low, high):
            sources.append((keys, map(layer.rows.__getitem__, keys)))
            removes = removes or layer.removes
    if base is not None:
        sources.append(base.rows_between(low, high, last=last))
        removes = removes or base.removes
    found: Iterable[tuple[bytes, bytes | None]]
    if len(sources) == 1:
        found = zip(*sources[0], strict=True)
    else:
        merged: dict[bytes, bytes | None] = {}
        for keys, values in reversed(sources):
            merged.update(zip(keys, values, strict=True))
        found = sorted(merged.items(), key=itemgetter(0))
    if removes:
        return [(key, value) for key, value in found if value is not None]
    return cast("Iterable[tuple[bytes, bytes]]", found)
