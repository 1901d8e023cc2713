"""UnsafeRow in Python: rows that Spark made, and damaged ones, which are refused."""

from __future__ import annotations

import contextlib
import math
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state.errors import ConfigError, FormatError, UnreadableError
from redis_state.rows.unsafe_row import decode, encode
from redis_state.types.schema import CalendarInterval, Row, Struct, parse_schema
from tests.unit.unsafe_row_vectors import VECTORS, can_be_looked_up, named
from tests.vectors.generate_unsafe_row import tagged

NAIVE = datetime.fromisoformat("2024-01-01T00:00:00")


def plain(value: Any) -> Any:
    """A decoded value in the form of the vectors."""
    if isinstance(value, CalendarInterval):
        return {"calendar": list(value)}
    if isinstance(value, dict):
        return {"map": [[plain(key), plain(item)] for key, item in value.items()]}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return tagged(value)


def schema_of(*types: Any) -> Struct:
    fields = [{"name": f"c{i}", "type": t, "nullable": True} for i, t in enumerate(types)]
    return parse_schema({"type": "struct", "fields": fields})


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_decodes_what_spark_wrote(vector: dict[str, Any]) -> None:
    row = decode(parse_schema(vector["schema"]), bytes.fromhex(vector["row"]))
    assert plain(row) == vector["values"]


@pytest.mark.parametrize(
    "vector", [v for v in VECTORS if can_be_looked_up(v)], ids=lambda v: v["name"]
)
def test_encodes_what_spark_wrote(vector: dict[str, Any]) -> None:
    schema = parse_schema(vector["schema"])
    data = bytes.fromhex(vector["row"])
    assert encode(schema, decode(schema, data)).hex() == data.hex()


def test_classes_are_those_a_user_expects() -> None:
    vector = named("timestamps")
    first = decode(parse_schema(vector["schema"]), bytes.fromhex(vector["row"]))[0]
    assert first == datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=timezone.utc)
    vector = named("timestamps without zone")
    assert decode(parse_schema(vector["schema"]), bytes.fromhex(vector["row"]))[0].tzinfo is None
    vector = named("window")
    row = decode(parse_schema(vector["schema"]), bytes.fromhex(vector["row"]))
    assert row["window"]["end"] - row["window"]["start"] == timedelta(hours=1)
    assert row.as_dict()["origin"] == row["origin"] == "JFK"


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_each_flipped_byte_decodes_or_raises_format(vector: dict[str, Any]) -> None:
    schema = parse_schema(vector["schema"])
    data = bytes.fromhex(vector["row"])
    for index in range(min(len(data), 400)):
        for mask in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[index] ^= mask
            decode_or_refuse(schema, bytes(changed))
    for size in range(len(data)):
        decode_or_refuse(schema, data[:size])


def decode_or_refuse(schema: Struct, data: bytes) -> None:
    # A text may not be UTF-8 any more, which is no damage.
    with contextlib.suppress(FormatError, UnreadableError):
        decode(schema, data)


SCHEMAS = [parse_schema(vector["schema"]) for vector in VECTORS]


@given(st.sampled_from(SCHEMAS), st.binary(max_size=256))
def test_any_bytes_decode_or_raise_format(schema: Struct, data: bytes) -> None:
    decode_or_refuse(schema, data)


WORDS = st.lists(
    st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 64), st.builds(
        lambda offset, size: offset << 32 | size, st.integers(0, 128), st.integers(0, 64)
    )),
    max_size=24,
)  # fmt: skip


@given(st.sampled_from(SCHEMAS), WORDS)
def test_plausible_words_decode_or_raise_format(schema: Struct, words: list[int]) -> None:
    decode_or_refuse(schema, b"".join(word.to_bytes(8, "little") for word in words))


@pytest.mark.parametrize(
    ("types", "words", "message"),
    [
        (["integer"], [0, 1 << 32], "too large"),
        (["boolean"], [0, 2], "neither 0 nor 1"),
        (["integer"], [1, 5], "null field has a value"),
        (["integer"], [2, 5], "after the last field"),
        (["integer"], [0], "fields need 16"),
        (["string"], [0, 16 << 32 | 9, 0], "outside"),
        (["string"], [0, 8 << 32 | 1, 0], "outside"),
        (["string", "string"], [0, 24 << 32 | 8, 24 << 32 | 8, 0], "overlap"),
        (["decimal(5,2)"], [0, 100_000], "more than 5 digits"),
        (["decimal(20,2)"], [0, 16 << 32 | 0, 0, 0], "0 bytes"),
        (["time(6)"], [0, 86_400_000_000_000], "a time of a day"),
        (["interval"], [0, 16 << 32 | 8, 0, 0], "8 bytes"),
        (["void"], [0, 0], "void"),
        ([{"type": "array", "elementType": "integer"}], [0, 16 << 32 | 8, 2**62], "too many"),
        ([{"type": "array", "elementType": "long"}], [0, 16 << 32 | 16, 1, 0], "too many"),
    ],
)
def test_malformed_rows_are_named(types: list[Any], words: list[int], message: str) -> None:
    data = b"".join(word.to_bytes(8, "little") for word in words)
    with pytest.raises(FormatError, match=message):
        decode(schema_of(*types), data)


def test_duplicate_map_key_is_refused() -> None:
    schema = schema_of({"type": "map", "keyType": "long", "valueType": "long"})
    array = [2, 0, 7, 7]
    words = [0, 16 << 32 | 72, 32, *array, *array]
    with pytest.raises(FormatError, match="key twice"):
        decode(schema, b"".join(word.to_bytes(8, "little") for word in words))


def test_exponentially_nested_row_is_refused() -> None:
    """Each element points to the same inner array: without a bound, n ** depth reads."""
    count, nesting = 1000, 8
    kind: Any = "long"
    for _ in range(nesting):
        kind = {"type": "array", "elementType": kind}
    head = [count] + [0] * ((count + 63) // 64)
    size = (len(head) + count) * 8
    array = head + [0 << 32 | size] * count
    words = [0, 16 << 32 | size, *array]
    with pytest.raises(FormatError):
        decode(schema_of(kind), b"".join(word.to_bytes(8, "little") for word in words))


@pytest.mark.parametrize("name", ["time(6", "decimal(39,0)", "decimal(1", "", "a b)"])
def test_types_that_cannot_be_decoded_are_named(name: str) -> None:
    with pytest.raises(FormatError, match="type"):
        schema_of(name)


@pytest.mark.parametrize("text", ["", "{", "[]", '"long"', '{"type":"struct"}', "[" * 100_000])
def test_malformed_schemas_raise_format(text: str) -> None:
    with pytest.raises(FormatError):
        parse_schema(text)


MOMENTS = st.datetimes(timezones=st.just(timezone.utc))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "byte": st.integers(-(2**7), 2**7 - 1),
    "short": st.integers(-(2**15), 2**15 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text("ab\0é東🛫"),
    "binary": st.binary(),
    "decimal(10,2)": st.decimals(-99_999_999, 99_999_999, places=2),
    "decimal(38,5)": st.decimals(-(10**33) + 1, 10**33 - 1, places=5),
    "date": st.dates(),
    "timestamp": MOMENTS,
    "timestamp_ntz": st.datetimes(),
    "time(6)": st.times(),
    "interval day to second": st.timedeltas(timedelta(days=-10**8), timedelta(days=10**8)),
    "interval year to month": st.integers(-(2**31), 2**31 - 1),
}  # fmt: skip


@st.composite
def keys(draw: st.DrawFn) -> tuple[Struct, list[Any]]:
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=70))
    values = [draw(st.none() | VALUES[name]) for name in names]
    return schema_of(*names), values


@given(keys())
def test_encoded_keys_are_decoded_again(key: tuple[Struct, list[Any]]) -> None:
    schema, values = key
    assert list(decode(schema, encode(schema, values))) == values


def test_nested_key_columns_are_given_by_name() -> None:
    schema = parse_schema(named("struct")["schema"])
    row = {"b": 5, "a": {"z": None, "x": 1, "y": "text"}}
    assert encode(schema, row).hex() == named("struct")["row"]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("byte", 128),
        ("integer", True),
        ("integer", 1.0),
        ("long", 2**63),
        ("float", 1e39),
        ("double", 10**400),
        ("boolean", 1),
        ("string", b"x"),
        ("string", "\ud800"),
        ("binary", "x"),
        ("decimal(5,2)", Decimal("1.234")),
        ("decimal(5,2)", Decimal(1000)),
        ("decimal(5,2)", Decimal("NaN")),
        ("decimal(5,2)", 1.5),
        ("date", NAIVE),
        ("timestamp", NAIVE),
        ("timestamp_ntz", datetime(2024, 1, 1, tzinfo=timezone.utc)),
        ("timestamp", date(2024, 1, 1)),
        ("time(6)", time(1, tzinfo=timezone.utc)),
        ("interval year to month", 2**31),
        ("interval", CalendarInterval(1, 2, 3)),
        ("string collate UTF8_LCASE", "x"),
        ({"type": "array", "elementType": "long"}, [1]),
    ],
)
def test_unfitting_values_are_refused(kind: Any, value: Any) -> None:
    with pytest.raises(ConfigError, match="c0"):
        encode(schema_of(kind), [value])


def test_wrong_columns_are_named() -> None:
    schema = schema_of("long", "string")
    with pytest.raises(ConfigError, match="'c9' is unknown, 'c1' is missing"):
        encode(schema, {"c0": 1, "c9": 2})
    with pytest.raises(ConfigError, match="1 values were given for 2 columns"):
        encode(schema, [1])
    with pytest.raises(ConfigError, match="a str was given"):
        encode(schema, "ab")


def test_collation_in_the_metadata_is_used() -> None:
    schema = parse_schema(named("collated")["schema"])
    with pytest.raises(ConfigError, match="collation"):
        encode(schema, ["x"])


def test_nan_is_normalized_and_zero_on_request() -> None:
    schema = schema_of("double", "float")
    odd_nan = math.copysign(math.nan, -1)
    assert encode(schema, [odd_nan, odd_nan]) == encode(schema, [math.nan, math.nan])
    assert encode(schema, [-0.0, -0.0]) != encode(schema, [0.0, 0.0])
    assert encode(schema, [-0.0, -0.0], normalize_zero=True) == encode(schema, [0.0, 0.0])


def test_row_is_a_tuple_with_names() -> None:
    row = Row(("a", "b"), (1, 2))
    assert row == (1, 2)
    assert repr(row) == "Row(a=1, b=2)"
    with pytest.raises(KeyError):
        row["c"]  # type: ignore[call-overload]  # Row is a tuple for type checkers
