"""Event times of a partition: what it notes for the watermark, and which rows are late; no pyspark.

Each partition keeps the newest event time that it has seen in the version that it commits, so the
watermark of a batch comes from the versions below it, and is the same when the batch is run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgpack  # type: ignore[import-untyped]  # the package ships no types

from redis_state.codec.ordered_key import encode_key
from redis_state.codec.processor_families import NOTES
from redis_state.errors import FormatError, InternalError
from redis_state.format.rows import stored_key

if TYPE_CHECKING:
    import pyarrow as pa

    from redis_state.store.family_store import FamilyStore

RAW_SCHEMA = json.dumps({"type": "redis-state.python", "codec": "raw"})
"""Of families that only we read."""

_FAMILY_ID = 1
"""Of the first family that a task declares, so that others find it without a table."""

NOTES_KEY = stored_key(_FAMILY_ID, encode_key("times"))
"""The stored key of the notes, the same in every partition."""


@dataclass(frozen=True, slots=True)
class Notes:
    """What a partition keeps from batch to batch, in ms since 1970.

    Attributes:
        newest_ms: The newest event time that the partition has seen; 0 for none.
        watermark_ms: Of the batch that wrote this.
    """

    newest_ms: int = 0
    watermark_ms: int = 0

    def encode(self) -> bytes:
        """Its bytes."""
        packed: bytes = msgpack.packb([self.newest_ms, self.watermark_ms])
        return packed

    @classmethod
    def decode(cls, data: bytes | None) -> Notes:
        """The notes of their bytes; those of version 0 if there are none.

        Raises:
            FormatError: The bytes are malformed.
        """
        if data is None:
            return cls()
        try:
            newest_ms, watermark_ms = msgpack.unpackb(data)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise FormatError("reading event times", found="the bytes are malformed") from error
        return cls(newest_ms, watermark_ms)


def watermark_of(notes: Iterable[Notes], delay_ms: int) -> int:
    """The watermark of a batch, from the notes of all partitions before it; it never falls."""
    found = list(notes)
    newest_ms = max((one.newest_ms for one in found), default=0)
    return max(0, newest_ms - delay_ms, *(one.watermark_ms for one in found))


def declare_notes(store: FamilyStore) -> None:
    """Make the family of the notes, which comes before all others.

    Raises:
        InternalError: It has another id than it has to have.
    """
    prefix = store.declare(NOTES, key_schema=RAW_SCHEMA, value_schema=RAW_SCHEMA, internal=True)
    if prefix != stored_key(_FAMILY_ID, b""):
        raise InternalError("declaring the times of batches", found="their family has another id")


def note_times(store: FamilyStore, table: pa.Table, column: str, watermark_ms: int) -> pa.Table:
    """Note the event times of a batch's rows, and give back the rows that are not late.

    Args:
        column: The one that the watermark goes by; empty for none.
        watermark_ms: That of the batch.
    """
    declare_notes(store)
    if not column:
        return table
    before = Notes.decode(store.get(NOTES_KEY))
    newest_ms = max(before.newest_ms, newest_time(table, column))
    store.put(NOTES_KEY, Notes(newest_ms, watermark_ms).encode())
    return in_time(table, column, before.watermark_ms)


def newest_time(table: pa.Table, column: str) -> int:
    """The newest event time of the rows in ms since 1970; 0 if there is none."""
    import pyarrow.compute as pc

    if not table.num_rows:
        return 0
    newest = pc.max(_micros(table[column])).as_py()
    return 0 if newest is None else max(0, int(newest) // 1000)


def in_time(table: pa.Table, column: str, late_ms: int) -> pa.Table:
    """The rows that are not late: newer than the watermark of the batch before, as in Spark.

    Before there is a watermark, it is 0: rows up to 1970 are late from the first batch on.
    """
    import pyarrow.compute as pc

    if not table.num_rows:
        return table
    late = pc.less_equal(_micros(table[column]), late_ms * 1000)
    return table.filter(pc.invert(pc.fill_null(late, False)))


def _micros(column: Any) -> Any:
    import pyarrow as pa

    return column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
