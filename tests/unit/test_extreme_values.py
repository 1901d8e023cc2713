"""Values at the ends of each atomic type, alone and nested, as Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state.rows.arrow_types import arrow_array
from redis_state.types.schema import (
    Array,
    Atomic,
    CalendarInterval,
    Field,
    Map,
    Struct,
    Type,
    parse_schema,
)
from redis_state.types.values import to_python

_INT = (-(1 << 31), (1 << 31) - 1)
_LONG = (-(1 << 63), (1 << 63) - 1)
_WIDE = Context(prec=76)
_DIGITS = 10**38 - 1
_MOMENTS = (
    *_LONG,
    -62_135_596_800_000_000,
    -62_135_596_800_000_001,
    253_402_300_799_999_999,
    253_402_300_800_000_000,
)
ENDS: dict[str, tuple[Any, ...]] = {
    "boolean": (False, True),
    "byte": (-128, 127),
    "short": (-(1 << 15), (1 << 15) - 1),
    "integer": _INT,
    "long": _LONG,
    "float": (3.4028234663852886e38, -1.401298464324817e-45, float("inf"), -0.0),
    "double": (1.7976931348623157e308, -5e-324, float("-inf"), -0.0),
    "string": (b"", b"\x00", "\U0010ffff".encode()),
    "binary": (b"", b"\x00\xff"),
    "date": (*_INT, -719_162, -719_163, 2_932_896, 2_932_897),
    "timestamp": _MOMENTS,
    "timestamp_ntz": _MOMENTS,
    "time(6)": (0, 86_399_999_999_000),
    "time(9)": (1, 86_399_999_999_999),
    "interval day to second": (*_LONG, _LONG[0] + 1, _LONG[1] - 1),
    "interval year to month": _INT,
    "interval": tuple(
        CalendarInterval(months, days, micros)
        for months, days, micros in (
            (*_INT, _LONG[1] // 1000),
            (_INT[1], _INT[0], -(_LONG[1] // 1000)),
        )
    ),
    "decimal(1,1)": (-9, 9),
    "decimal(18,18)": (1 - 10**18, 10**18 - 1),
    "decimal(19,0)": (1 - 10**19, 10**19 - 1),
    "decimal(38,0)": (-_DIGITS, _DIGITS),
    "decimal(38,38)": (-_DIGITS, _DIGITS, 1),
    "decimal(10,-5)": (1 - 10**10, 10**10 - 1),
}
"""Internal values of Spark's types: those at both ends, and those that Python has none for."""


def atomic(name: str) -> Atomic:
    columns = [{"name": "a", "type": name, "nullable": True, "metadata": {}}]
    (field,) = parse_schema({"type": "struct", "fields": columns}).fields
    assert isinstance(field.type, Atomic)
    return field.type


_INTEGER = atomic("integer")
Wrap = tuple[Callable[[Type], Type], Callable[[Any], Any], Callable[[pa.Array], pa.Array]]
WRAPS: dict[str, Wrap] = {
    "array": (Array, lambda value: [value], lambda array: array.flatten()),
    "struct": (
        lambda kind: Struct((Field("f", kind),)),
        lambda value: (value,),
        lambda array: array.flatten()[0],
    ),
    "map value": (
        lambda kind: Map(_INTEGER, kind),
        lambda value: {1: value},
        lambda array: array.items,
    ),
    "map key": (
        lambda kind: Map(kind, _INTEGER),
        lambda value: {_hashable(value): 1},
        lambda array: array.keys,
    ),
}


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if type(value) in (list, tuple) else value


def allowed(names: list[str]) -> list[str]:
    """The containers without those that Spark lacks: no key of a map has a map in it."""
    maps = [one.startswith("map") for one in names]
    return [
        "map value" if one == "map key" and any(maps[:at]) else one for at, one in enumerate(names)
    ]


def numbers(array: pa.Array) -> Any:
    """Returns the numbers that Spark stores for the values, where Arrow has the same numbers."""
    kind = array.type
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return array.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    if pa.types.is_decimal(kind):
        return [int(one.scaleb(kind.scale, _WIDE)) for one in array.to_pylist()]
    if pa.types.is_string(kind):
        return array.cast(pa.binary()).to_pylist()
    return array.to_pylist()


@pytest.mark.parametrize("name", ENDS)
@given(data=st.data())
def test_nested_extreme_values_keep_their_numbers(name: str, data: st.DataObject) -> None:
    kind: Type = atomic(name)
    raws = data.draw(st.permutations(ENDS[name]))
    names = data.draw(st.lists(st.sampled_from([*WRAPS]), max_size=3).map(allowed))
    values = [to_python(atomic(name), raw) for raw in raws]
    for one in names:
        around, wrap, _ = WRAPS[one]
        kind, values = around(kind), list(map(wrap, values))
    array = arrow_array(kind, values)
    array.validate(full=True)
    for one in reversed(names):
        array = WRAPS[one][2](array)
    found = numbers(array)
    if name == "interval":
        found = [CalendarInterval(one.months, one.days, one.nanoseconds // 1000) for one in found]
    assert list(map(repr, found)) == list(map(repr, raws))
