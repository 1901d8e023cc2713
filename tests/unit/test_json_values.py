"""Values of rows as JSON: nothing is lost, whatever a program has stored."""

from __future__ import annotations

import json
from typing import Any

import msgpack  # type: ignore[import-untyped]  # the package ships no types
import pytest

from redis_state.codec import MSGPACK
from redis_state.rows.json_values import json_text, to_json


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({(1, 2): 3, True: 4, None: 5, 1.5: 6}, {"[1, 2]": 3, "true": 4, "null": 5, "1.5": 6}),
        ({1: "a", "1": "b"}, [[1, "a"], ["1", "b"]]),
        ([{b"a": 1, "61": (2,)}], [[["61", 1], ["61", [2]]]]),
        (msgpack.ExtType(5, b"a"), [5, "61"]),
        ([msgpack.Timestamp(1, 2)], ["Timestamp(seconds=1, nanoseconds=2)"]),
        (1j, "1j"),
    ],
)
def test_every_member_has_a_form(value: Any, shown: Any) -> None:
    assert to_json(value) == shown
    assert json.loads(json_text(value) or "") == shown


def test_the_deepest_value_that_a_store_takes_has_a_form() -> None:
    lists: Any = 1
    maps: Any = 1
    for _ in range(500):
        lists, maps = [lists], {"a": maps}
    for value in (lists, maps):
        found = MSGPACK.decode_value(MSGPACK.encode_value(value))
        assert json_text(found) == json.dumps(value)
