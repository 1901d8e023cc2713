"""Live reads of the state of `apply_in_pandas_with_state` as Python objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from redis_state.codec.state_object import StateObject, state_object
from redis_state.errors import ConfigError
from redis_state.reader.operator_state import OperatorState
from redis_state.rows.codec import KeyValues

_GROUP = "groupState"
_COLUMN = "object"

S = TypeVar("S")


class StateObjects(Generic[S]):
    """The state objects of an operator; made by `state_objects`."""

    def __init__(self, rows: OperatorState, codec: StateObject[S]) -> None:
        self._rows = rows
        self._codec = codec

    def get(self, key: KeyValues, version: int | None = None) -> S | None:
        """Returns the object of one group, or ``None`` if the group has no state.

        Args:
            key: Values of the grouping columns, by name or in their order.
            version: A state version; ``None`` means the newest confirmed one.

        Raises:
            RedisStateError: See `OperatorState.get`; also `FormatError` if the stored value does
                not fit the type.
        """
        row = self._rows.get(key, version)
        return None if row is None else self._object(row)

    def items(self, version: int | None = None) -> Iterator[tuple[dict[str, Any], S]]:
        """Yields grouping columns and object of every group that has a state, in no order.

        Raises:
            RedisStateError: See `get`.
        """
        for key, row in self._rows.items(version):
            found = self._object(row)
            if found is not None:
                yield key, found

    def _object(self, row: dict[str, Any]) -> S | None:
        # A group may have a time-out and no state.
        group = row.get(_GROUP, row)
        if group is None:
            return None
        columns = group if isinstance(group, dict) else group.as_dict()
        if _COLUMN not in columns:
            raise ConfigError(
                "reading state objects",
                found=f"the state has the columns {', '.join(columns)}",
                advice="Read the operator that apply_in_pandas_with_state made; others have rows.",
            )
        data = columns[_COLUMN]
        return None if data is None else self._codec.decode(data)


def state_objects(rows: OperatorState, cls: type[S] | StateObject[S]) -> StateObjects[S]:
    """Reads the state of `apply_in_pandas_with_state` as objects, without a request to Redis.

    Args:
        rows: The operator, such as ``reader.query(…).operator(0)``.
        cls: The class or `StateObject` that the query uses, or a newer one of the same state.

    Raises:
        ConfigError: The type cannot be stored.
    """
    return StateObjects(rows, state_object(cls))
