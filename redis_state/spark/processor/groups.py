"""Rows of a partition by groups: sorted by the key, as pandas frames, rows or Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Form = Literal["pandas", "rows", "arrow"]
FORMS: tuple[Form, ...] = ("pandas", "rows", "arrow")

Group = tuple[tuple[Any, ...], Any]
"""A key and its rows, in the form that was asked for."""


def groups(table: pa.Table, keys: Sequence[str], form: Form, time_zone: str) -> Iterator[Group]:
    """The groups in the order of their keys; rows of a group stay in the order of the table."""
    if not table.num_rows:
        return
    ordered = _in_order(table, keys)
    starts = _starts(ordered, keys)
    values = zip(*(ordered[name].take(starts).to_pylist() for name in keys), strict=True)
    spans = zip(starts, [*starts[1:], ordered.num_rows], strict=True)
    if form == "arrow":
        for key, (start, end) in zip(values, spans, strict=True):
            yield key, ordered.slice(start, end - start)
    elif form == "rows":
        rows = _rows(ordered)
        for key, (start, end) in zip(values, spans, strict=True):
            yield key, rows[start:end]
    else:
        import pandas as pd

        frame = frame_of(ordered, time_zone)
        for key, (start, end) in zip(values, spans, strict=True):
            part = frame.iloc[start:end]
            part.index = pd.RangeIndex(end - start)
            yield key, part


def frame_of(table: pa.Table, time_zone: str) -> pd.DataFrame:
    """The table as pandas: time stamps are naive and of the session's zone."""
    import pyarrow as pa

    frame: pd.DataFrame = table.to_pandas(date_as_object=True)
    for field in table.schema:
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            local = frame[field.name].dt.tz_convert(time_zone).dt.tz_localize(None)
            frame[field.name] = local
    return frame


def _in_order(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    import pyarrow.compute as pc

    order = pc.sort_indices(table, [(name, "ascending") for name in keys])
    return table.take(order).combine_chunks()


def _starts(ordered: pa.Table, keys: Sequence[str]) -> list[int]:
    """Where each group begins."""
    import numpy as np

    begins = np.zeros(ordered.num_rows, dtype=bool)
    begins[0] = True
    for name in keys:
        column = ordered[name].combine_chunks()
        codes = column.dictionary_encode(null_encoding="encode")
        indices = getattr(codes, "indices", None)
        if indices is None:
            indices = codes.chunk(0).indices
        numbers = indices.to_numpy(zero_copy_only=False)
        begins[1:] |= numbers[1:] != numbers[:-1]
    found: list[int] = np.flatnonzero(begins).tolist()
    return found


def _rows(ordered: pa.Table) -> list[Any]:
    from pyspark.sql import Row

    make = Row(*ordered.schema.names)
    columns = [column.to_pylist() for column in ordered.columns]
    return [make(*values) for values in zip(*columns, strict=True)]
