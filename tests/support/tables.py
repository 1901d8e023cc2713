"""Checks that tables equal what `items` returns row by row."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from redis_state.reader import OperatorState
from redis_state.types.schema import CalendarInterval


def assert_tables_are_items(state: OperatorState, **which: Any) -> int:
    """Check all ways to read all rows against each other; the number of rows."""
    if state.family(**which).multi_value:
        pairs = [(key, one) for key, all_ in state.list_items(**which) for one in all_]
    else:
        pairs = list(state.items(**which))
    expected = sorted((_flat(key, value) for key, value in pairs), key=str)
    table = state.to_arrow(**which)
    table.validate(full=True)
    columns = {name: _of_arrow(values) for name, values in table.to_pydict().items()}
    assert len(columns) == table.num_columns, "names are all different"
    assert sorted(map(list, zip(*columns.values(), strict=True)), key=str) == expected
    scanned = [[_plain(one) for one in row.values()] for row in state.scan(**which)]
    assert sorted(scanned, key=str) == expected
    for batch in state.to_batches(rows=7, **which):
        assert batch.schema == table.schema
        assert 0 < batch.num_rows <= 7
    assert state.to_pandas(**which).shape == (len(expected), table.num_columns)
    keys = {str(key) for key, _ in pairs}
    assert state.count(**which) >= len(keys)
    last = table.column_names[-1]
    alone = state.to_arrow(columns=[last], **which)
    assert (alone.column_names, alone.num_rows) == ([last], table.num_rows)
    return len(expected)


def _flat(key: Any, value: Any) -> list[Any]:
    keys = list(key.values()) if isinstance(key, dict) else [key]
    values = list(value.values()) if isinstance(value, dict) else [value]
    return [_plain(one) for one in (*keys, *values)]


def _plain(value: Any) -> Any:
    """A value of `items` as lists: those of a struct, pairs of a map."""
    if isinstance(value, CalendarInterval):
        return [value.months, value.days, value.microseconds * 1_000]
    if isinstance(value, dict):
        return [[_plain(name), _plain(one)] for name, one in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    # Zones of one offset are written in several ways.
    return value.timestamp() if isinstance(value, datetime) and value.tzinfo else value


def _of_arrow(value: Any) -> Any:
    """A value of Arrow in the same form: its structs are dicts, its maps lists of pairs."""
    if isinstance(value, dict):
        return [_of_arrow(one) for one in value.values()]
    if isinstance(value, (list, tuple)):
        return [_of_arrow(one) for one in value]
    return _plain(value)
