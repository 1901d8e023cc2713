"""Changes, differences and histories of a state compared with its rows at each version."""

from __future__ import annotations

from typing import Any

from redis_state.reader import OperatorState
from tests.support.waiting import wait_until

Rows = dict[str, tuple[Any, Any]]
"""Keys and values by the text of the key, since columns are no keys of a dict."""


def check_replay(state: OperatorState, version: int, *, lists: bool = False) -> None:
    """Checks that replayed changes give each version; the last one is confirmed soon."""
    wait_until(lambda: len(list(state.changes(since=-1))) >= version, "the last batch")
    items = state.list_items if lists else state.items
    versions: list[Rows] = [
        {} if at == 0 else {str(key): (key, value) for key, value in items(version=at)}
        for at in range(version + 1)
    ]
    rows: Rows = {}
    touched = 0
    for batch in state.changes(since=-1):
        for key, value in batch:
            touched += 1
            rows[str(key)] = (key, value)
        rows = {name: row for name, row in rows.items() if row[1] is not None}
        if batch.number < version:
            assert rows == versions[batch.number + 1]
    assert touched
    for low, high in ((0, version), (1, version), (version, version - 1)):
        found = {str(one.key): (one.before, one.after) for one in state.diff(low - 1, high - 1)}
        assert found == _difference(versions[low], versions[high])
    for key, _ in list(rows.values())[:5]:
        values = [of.get(str(key), (key, None))[1] for of in versions]
        assert [(one.batch, one.value) for one in state.history(key) if one.batch < version] == [
            (at - 1, values[at]) for at in range(version, 0, -1) if values[at] != values[at - 1]
        ]


def _difference(first: Rows, second: Rows) -> dict[str, tuple[Any, Any]]:
    none = (None, None)
    pairs = {name: (first.get(name, none)[1], second.get(name, none)[1]) for name in first | second}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
