"""Changes of an attempt, counted and ordered for the commit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from redis_state.format.expiry import stamped
from redis_state.format.ordered import family_range
from redis_state.format.rows import FAMILY_BYTES
from redis_state.store.local.families import Families
from redis_state.store.local.version import LocalVersion
from redis_state.store.write_set import WriteSet


@dataclass(frozen=True, slots=True)
class Delta:
    """Rows that a commit writes.

    Attributes:
        rows: Values by stored key.
        keys: Stored keys in ascending order.
        values: Values in the order of `keys`.
        put: Number of keys with a value.
        removed: Number of keys without one.
        live: Number of keys of the next version.
        internal: Number of live keys in internal families.
        complete: True if every key has a new value, so that the version below is not needed.
        in_order: True if iterating `rows` follows the order of `keys`.
    """

    rows: dict[bytes, bytes | None]
    keys: list[bytes]
    values: list[bytes | None]
    put: int
    removed: int
    live: int
    internal: int
    complete: bool
    in_order: bool = False

    def without(self, gone: Sequence[int]) -> tuple[list[bytes], list[bytes | None]]:
        """Returns keys and values without those of dropped families."""
        if not gone:
            return self.keys, self.values
        keys, values = list(self.keys), list(self.values)
        for id_ in gone:
            low, high = family_range(id_)
            start = bisect_left(keys, low)
            end = len(keys) if high is None else bisect_left(keys, high)
            del keys[start:end], values[start:end]
        return keys, values

    def stamped(self, expiry_s: int) -> Delta:
        """Returns the delta with this expiry behind each value."""
        values = [None if value is None else stamped(value, expiry_s) for value in self.values]
        rows = dict(zip(self.keys, values, strict=True))
        return replace(self, rows=rows, values=values, in_order=True)


def delta_of(local: LocalVersion, changes: WriteSet, families: Families) -> Delta:
    """Computes the delta of a version's changes; `families` is the table of the next version."""
    if local.families.table and local.families.expire != families.expire:
        return _all_rows(local, changes)
    rows = changes.rows
    removed = list(rows.values()).count(None)
    put = len(rows) - removed
    internal = _internal(local, rows, families)
    if not removed and not changes.appended:
        overwritten = local.overwritten(rows)
        if overwritten is not None:
            keys, values = list(overwritten), list(overwritten.values())
            return Delta(
                overwritten, keys, values, put, 0, put, internal, complete=True, in_order=True
            )
    # In the order of the changes, which is often the order of the version below: near in memory.
    live = local.live - local.count(list(rows)) + put
    complete = local.pin.version > 0 and 0 < live == put and not changes.appended
    keys = changes.in_order()
    if complete and removed:
        rows = {key: value for key, value in rows.items() if value is not None}
        keys = list(filter(rows.__contains__, keys))
    values = list(map(rows.__getitem__, keys))
    return Delta(rows, keys, values, put, removed, live, internal, complete=complete)


def _all_rows(local: LocalVersion, changes: WriteSet) -> Delta:
    """Returns a complete delta: the first one in which rows have a time to live, or have none."""
    rows: dict[bytes, bytes | None] = dict(local.rows_between(b"", None, changes.rows))
    count, keys, values = len(rows), list(rows), list(rows.values())
    return Delta(rows, keys, values, count, 0, count, 0, complete=True, in_order=True)


def _internal(local: LocalVersion, rows: Mapping[bytes, bytes | None], families: Families) -> int:
    """Returns the number of keys of the next version in internal families."""
    if not (local.internal or families.internal):
        return 0
    prefixes = local.families.internal | families.internal
    keys = [key for key in rows if key[:FAMILY_BYTES] in prefixes]
    put = len(keys) - list(map(rows.__getitem__, keys)).count(None)
    return local.internal - local.count(keys) + put
