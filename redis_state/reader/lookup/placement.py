"""Learns whether the keys of a store lie in the partitions that Spark's shuffle implies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redis_state.reader.table_columns import RowCodec
from redis_state.rows.python_codec import PythonCodec
from redis_state.types.schema import Atomic, Struct, Type

_ENOUGH = 64
_HASHES = 1 << 30
_REALS = ("float", "double")


class Placement:
    """Observed partitions of keys.

    Most operators shuffle by the columns of their state's key, so a key can be in one partition
    only. A few shuffle by other columns, and nothing in the state records that. Then n keys with
    distinct hashes would all lie in their likely partitions by accident with a chance of 2^-n, or
    less.

    Attributes:
        scattered: Whether a key was found outside of its likely partition.
    """

    def __init__(self) -> None:
        self.scattered = False
        self._hashes: set[int] = set()

    def found(self, codec: RowCodec, keys: Iterable[Any]) -> None:
        """Records keys that were found in their likely partitions."""
        if isinstance(codec, PythonCodec) or len(self._hashes) >= _ENOUGH:
            return
        for key in keys:
            # The same key again, or another one with the same hash, proves nothing more.
            if len(self._hashes) >= _ENOUGH:
                return
            self._hashes.add(codec.likely_partition(key, partitions=_HASHES))

    def is_certain(self, codec: RowCodec) -> bool:
        """Returns whether a key that is not in its likely partition is absent."""
        if isinstance(codec, PythonCodec) or self.scattered or len(self._hashes) < _ENOUGH:
            return False
        # One real number may have several binary forms, and not every operator normalizes them.
        return not _has_reals(codec.shuffled_by)


def _has_reals(type_: Type) -> bool:
    if isinstance(type_, Struct):
        return any(_has_reals(field.type) for field in type_.fields)
    return not isinstance(type_, Atomic) or type_.name in _REALS
