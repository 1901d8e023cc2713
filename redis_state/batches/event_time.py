"""Event times of a partition: its notes for the watermark, and late rows; no pyspark.

Each partition commits the newest event time that it has seen as a row of its version. The
watermark of a batch is computed from the previous versions, so a rerun gets the same watermark.
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
"""Schema of families that only this library reads."""

_FAMILY_ID = 1
"""Id of the first family that a task declares; fixed, so readers need no family table to find it.
"""

NOTES_KEY = stored_key(_FAMILY_ID, encode_key("times"))
"""Stored key of the notes, equal in every partition."""


@dataclass(frozen=True, slots=True)
class Notes:
    """Event times that a partition keeps between batches, in ms since 1970.

    Attributes:
        newest_ms: Newest event time that the partition has seen; 0 without any.
        watermark_ms: Watermark of the batch that wrote the notes.
    """

    newest_ms: int = 0
    watermark_ms: int = 0

    def encode(self) -> bytes:
        """Encodes the notes."""
        packed: bytes = msgpack.packb([self.newest_ms, self.watermark_ms])
        return packed

    @classmethod
    def decode(cls, data: bytes | None) -> Notes:
        """Decodes notes; ``None`` gives those of version 0.

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
    """Returns the watermark of a batch from all previous notes; the watermark never falls."""
    found = list(notes)
    newest_ms = max((one.newest_ms for one in found), default=0)
    return max(0, newest_ms - delay_ms, *(one.watermark_ms for one in found))


def declare_notes(store: FamilyStore) -> None:
    """Declares the family of the notes, before all other families.

    Raises:
        InternalError: The family got another id than the fixed one.
    """
    prefix = store.declare(NOTES, key_schema=RAW_SCHEMA, value_schema=RAW_SCHEMA, internal=True)
    if prefix != stored_key(_FAMILY_ID, b""):
        raise InternalError("declaring the times of batches", found="their family has another id")


def note_times(store: FamilyStore, table: pa.Table, column: str, watermark_ms: int) -> pa.Table:
    """Notes the event times of a batch and returns the rows that are not late.

    Args:
        column: Column of the watermark; empty without a watermark.
        watermark_ms: Watermark of the batch.
    """
    declare_notes(store)
    if not column:
        return table
    before = Notes.decode(store.get(NOTES_KEY))
    newest_ms = max(before.newest_ms, newest_time(table, column))
    store.put(NOTES_KEY, Notes(newest_ms, watermark_ms).encode())
    return in_time(table, column, before.watermark_ms)


def newest_time(table: pa.Table, column: str) -> int:
    """Returns the newest event time of the rows in ms since 1970; 0 without one."""
    import pyarrow.compute as pc

    if not table.num_rows:
        return 0
    newest = pc.max(_micros(table[column])).as_py()
    return 0 if newest is None else max(0, int(newest) // 1000)


def in_time(table: pa.Table, column: str, late_ms: int) -> pa.Table:
    """Returns the rows newer than the watermark of the previous batch, as Spark does.

    The first watermark is 0, so rows up to 1970 are late from the first batch on.
    """
    import pyarrow.compute as pc

    if not table.num_rows:
        return table
    late = pc.less_equal(_micros(table[column]), late_ms * 1000)
    return table.filter(pc.invert(pc.fill_null(late, False)))


def _micros(column: Any) -> Any:
    import pyarrow as pa

    return column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
