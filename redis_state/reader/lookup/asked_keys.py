"""Keys of one look-up: their bytes and likely partitions, encoded together where possible.

With numpy the keys of Spark's plain columns are encoded and hashed column by column. Without numpy,
or for other keys, one key is encoded after the other, with the same result.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from redis_state.reader.table_columns import RowCodec
from redis_state.rows.codec import FamilyCodec

if TYPE_CHECKING:
    from redis_state.rows.key_arrays import KeyArrays

MANY = 32
"""Number of keys from which numpy's fixed cost pays off."""


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
