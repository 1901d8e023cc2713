"""Arguments of the command line as values of key columns, and state as JSON."""

from __future__ import annotations

import json
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from redis_state.errors import ConfigError
from redis_state.rows.json_values import to_json
from redis_state.rows.text_values import key_of
from redis_state.types.schema import CalendarInterval, Row, Struct, parse_schema

UTC = timezone.utc


def _schema(type_: Any) -> Struct:
    field = {"name": "k", "type": type_, "nullable": True, "metadata": {}}
    return parse_schema(json.dumps({"type": "struct", "fields": [field]}))


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("string", "UA", "UA"),
        ("string", "a=b", "a=b"),
        ("string", "", ""),
        ("integer", "-5", -5),
        ("long", "9007199254740993", 9007199254740993),
        ("double", "0.1", 0.1),
        ("boolean", "true", True),
        ("boolean", "False", False),
        ("decimal(20,2)", "123456789012345678.90", Decimal("123456789012345678.90")),
        ("binary", "00ff", b"\x00\xff"),
        ("date", "2013-01-31", date(2013, 1, 31)),
        ("timestamp", "2013-01-31T05:00:00Z", datetime(2013, 1, 31, 5, tzinfo=UTC)),
        ("timestamp", "2013-01-31 05:00:00+00:00", datetime(2013, 1, 31, 5, tzinfo=UTC)),
        ("timestamp_ntz", "2013-01-31T05:00:00", datetime(2013, 1, 31, 5)),
        ("time(6)", "05:00:01", time(5, 0, 1)),
    ],
)
def test_text_is_converted_to_the_columns_type(type_: str, text: str, value: Any) -> None:
    assert key_of(_schema(type_), [f"k={text}"]) == {"k": value}


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("string", "null", None),
        ("string", '"null"', "null"),
        ("long", "5", 5),
        ("double", "0.5", 0.5),
        ("boolean", "true", True),
    ],
)
def test_json_is_converted_to_the_columns_type(type_: str, text: str, value: Any) -> None:
    assert key_of(_schema(type_), [f"k:={text}"]) == {"k": value}


def test_window_is_given_as_an_object() -> None:
    parts: list[dict[str, Any]] = [
        {"name": name, "type": "timestamp", "nullable": True, "metadata": {}}
        for name in ("start", "end")
    ]
    key = key_of(
        _schema({"type": "struct", "fields": parts}),
        ['k={"start": "2013-01-31T05:00:00Z", "end": null}'],
    )
    assert key == {"k": {"start": datetime(2013, 1, 31, 5, tzinfo=UTC), "end": None}}


@pytest.mark.parametrize(
    ("type_", "pairs"),
    [
        ("string", ["k"]),
        ("string", ["other=1"]),
        ("string", ["k=a", "k=b"]),
        ("string", ["k:={"]),
        ("long", ["k=five"]),
        ("long", ["k=1.5"]),
        ("boolean", ["k=1"]),
        ("decimal(5,2)", ["k=x"]),
        ("binary", ["k=xy"]),
        ("timestamp", ["k=yesterday"]),
        ("interval", ["k=1"]),
        ({"type": "array", "elementType": "long", "containsNull": True}, ["k:=[1]"]),
    ],
)
def test_unfitting_value_is_refused(type_: Any, pairs: list[str]) -> None:
    with pytest.raises(ConfigError):
        key_of(_schema(type_), pairs)


def test_values_are_printed_as_json() -> None:
    value = {
        "row": Row(("a", "b"), (1, None)),
        "list": [Decimal("1.50"), b"\xff", (1, 2)],
        "map": {date(2013, 1, 31): timedelta(seconds=1)},
        "nan": float("nan"),
        "infinite": float("-inf"),
        "interval": CalendarInterval(1, 2, 3),
        "at": datetime(2013, 1, 31, tzinfo=UTC),
    }
    assert json.loads(json.dumps(to_json(value), allow_nan=False)) == {
        "row": {"a": 1, "b": None},
        "list": ["1.50", "ff", [1, 2]],
        "map": {"2013-01-31": "0:00:01"},
        "nan": "nan",
        "infinite": "-inf",
        "interval": [1, 2, 3],
        "at": "2013-01-31T00:00:00+00:00",
    }
