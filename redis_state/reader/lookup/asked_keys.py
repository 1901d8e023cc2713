"""Keys of one look-up: their bytes and likely partitions, encoded together where possible.

With numpy the keys of Spark's plain columns are encoded and hashed column by column. Without numpy,
or for other keys, one key is encoded after the other, with the same result.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from redis_state.reader.table_columns import RowCodec
from redis_state.rows.codec import FamilyCodec
from redis_state.rows.python_codec import PythonCodec
from redis_state.types.schema import Atomic, Struct, Type

if TYPE_CHECKING:
    from redis_state.rows.key_arrays import KeyArrays

MANY = 32
"""Number of keys from which numpy's fixed cost pays off."""

_ENOUGH = 64
_HASHES = 1 << 30
_REALS = ("float", "double")


class AskedKeys:
    """Keys of one call.

    Args:
        keys: In the form that `OperatorState.get` takes.
    """

    def __init__(self, keys: Sequence[Any]) -> None:
        self._keys = keys
        self._made: dict[Hashable, KeyArrays | None] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def stored(self, codec: RowCodec) -> list[bytes]:
        """Returns the stored keys, in their order.

        Raises:
            ConfigError: A key does not fit the columns.
        """
        arrays = self._arrays(codec)
        if arrays is not None:
            return arrays.stored()
        return [codec.encode_key(key) for key in self._keys]

    def likely_partitions(self, codec: RowCodec, *, partitions: int) -> Sequence[int]:
        """Returns the most likely partition of each key; see `FamilyCodec.likely_partition`.

        Raises:
            ConfigError: A key does not fit the columns.
        """
        arrays = self._arrays(codec)
        if arrays is not None:
            from redis_state.rows.key_arrays import OneByOneError

            try:
                return arrays.partitions(partitions)
            except OneByOneError:
                pass
        return [codec.likely_partition(key, partitions=partitions) for key in self._keys]

    def at(self, place: int) -> Any:
        """Returns one of the keys."""
        return self._keys[place]

    def columns(self, names: Sequence[str]) -> Sequence[Sequence[Any]] | None:
        """Returns the values of each key column; ``None`` if the keys differ in shape."""
        kinds, sizes = set(map(type, self._keys)), set(map(len, self._keys))
        if sizes != {len(names)}:
            return None
        if kinds != {dict} and not kinds <= {tuple, list}:
            return None
        places: Sequence[Any] = names if kinds == {dict} else range(len(names))
        try:
            return [list(map(itemgetter(place), self._keys)) for place in places]
        except KeyError:
            return None

    def _arrays(self, codec: RowCodec) -> KeyArrays | None:
        if len(self._keys) < MANY or not isinstance(codec, FamilyCodec):
            return None
        if codec.layout not in self._made:
            self._made[codec.layout] = self._array(codec)
        return self._made[codec.layout]

    def _array(self, codec: FamilyCodec) -> KeyArrays | None:
        try:
            from redis_state.rows.key_arrays import KeyArrays, OneByOneError
        except ImportError:  # numpy comes with the extra `arrow`
            return None
        try:
            columns = self.columns(codec.key.labels)
            return None if columns is None else KeyArrays(codec, columns)
        except (OneByOneError, TypeError):
            return None


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
