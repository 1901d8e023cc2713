"""Keys of a partition: state that a task keeps for another task's keys is hidden from that task."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timezone
from typing import Any

from redis_state.codec.typed_row import TypedKey
from redis_state.errors import ConfigError, UsageError
from redis_state.rows.murmur3 import hash_key
from redis_state.types.schema import parse_schema


class OwnKeys:
    """Separates the keys of a partition from those of others, by Spark's hash of the key columns.

    Args:
        schema: Schema of the key columns, as Spark's JSON.
        partitions: Number of the store's partitions; ``None`` if no later task reads the state.

    Attributes:
        codec: Codec of the keys, with times in UTC.
    """

    def __init__(self, schema: str, partition: int, partitions: int | None) -> None:
        self._partition = partition
        self._partitions = partitions or 1
        self._columns = parse_schema(schema)
        self.codec = TypedKey(schema, zone=timezone.utc)

    def others(self, columns: Sequence[Sequence[Any]], encoded: Sequence[bytes]) -> list[int]:
        """Returns the indexes of keys that belong to other partitions.

        Args:
            columns: The values of each key column.
            encoded: The same keys, encoded.
        """
        if self._partitions == 1 or not encoded:
            return []
        from redis_state.rows.key_arrays import OneByOneError, hashes_of

        try:
            numbers = hashes_of(self._columns, columns) % self._partitions
        except (OneByOneError, ConfigError, TypeError):
            keys = map(self.codec.decode, encoded)
            found = [hash_key(self._columns, key) % self._partitions for key in keys]
            return [at for at, number in enumerate(found) if number != self._partition]
        others: list[int] = (numbers != self._partition).nonzero()[0].tolist()
        return others

    def check(
        self, columns: Sequence[Sequence[Any]], encoded: Sequence[bytes], attempted: str
    ) -> None:
        """Refuses keys that belong to other partitions.

        Raises:
            UsageError: A key belongs to another partition.
        """
        others = self.others(columns, encoded)
        if others:
            raise self.refused(attempted, len(others), len(encoded))

    def refused(self, attempted: str, others: int, count: int) -> UsageError:
        """Returns the error for keys that belong to other partitions."""
        return UsageError(
            attempted,
            found=(
                f"{others} of {count} keys do not belong to this partition, {self._partition} of "
                f"{self._partitions}, but to the partitions of their rows"
            ),
            advice="Give keys of the table's rows or of due timers. Rows of other keys come to "
            "other partitions, which read and write the state there. Nothing was changed.",
        )
