"""Whether the keys of a store lie where Spark's shuffle puts them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redis_state.reader.table_columns import RowCodec
from redis_state.rows.python_codec import PythonCodec
from redis_state.rows.spark_types import Atomic, Struct, Type

_ENOUGH = 64
_HASHES = 1 << 30
_REALS = ("float", "double")


class Placement:
    """What was seen of the places of keys.

    Most operators shuffle by the columns of their state's key, and then one partition can have a
    key. A few shuffle by other columns, and nothing in the state says so. Then n keys whose hashes
    all differ would lie in their likely places by accident with a chance of 2^-n, or less.

    Attributes:
        scattered: Whether a key was found elsewhere than in its likely place.
    """

    def __init__(self) -> None:
        self.scattered = False
        self._hashes: set[int] = set()

    def found(self, codec: RowCodec, keys: Iterable[Any]) -> None:
        """These keys were found in their likely places."""
        if isinstance(codec, PythonCodec) or len(self._hashes) >= _ENOUGH:
            return
        for key in keys:
            # The same key again, or another one with the same hash, proves nothing more.
            if len(self._hashes) >= _ENOUGH:
                return
            self._hashes.add(codec.likely_partition(key, partitions=_HASHES))

    def is_certain(self, codec: RowCodec) -> bool:
        """Whether a key that is not in its likely place is nowhere."""
        if isinstance(codec, PythonCodec) or self.scattered or len(self._hashes) < _ENOUGH:
            return False
        # One number may have several forms there, and not every operator makes them one.
        return not _has_reals(codec.shuffled_by)


def _has_reals(type_: Type) -> bool:
    if isinstance(type_, Struct):
        return any(_has_reals(field.type) for field in type_.fields)
    return not isinstance(type_, Atomic) or type_.name in _REALS
