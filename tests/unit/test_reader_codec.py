"""Keys and values of every kind of family, in both encodings: what is written can be read."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_state.errors import ConfigError, FormatError
from redis_state.format.header import Family
from redis_state.format.rows import FAMILY_BYTES, join_elements
from redis_state.reader.lookup.asked_keys import MANY, AskedKeys
from redis_state.reader.lookup.decoded import decoded
from redis_state.reader.lookup.key_search import HitGroup, Hits
from redis_state.rows.codec import FamilyCodec, codec_of
from redis_state.rows.row_bytes import AvroRows, row_bytes
from redis_state.rows.text_values import key_of, keys_of_json

TYPES: dict[str, st.SearchStrategy[Any]] = {
    "byte": st.integers(-(1 << 7), (1 << 7) - 1),
    "short": st.integers(-(1 << 15), (1 << 15) - 1),
    "integer": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32).map(lambda real: real or 0.0),
    "double": st.floats().map(lambda real: real or 0.0),
    "boolean": st.booleans(),
    "string": st.text(max_size=9),
    "binary": st.binary(max_size=9),
    "decimal(20,2)": st.integers(-(10**18), 10**18).map(lambda n: Decimal(n).scaleb(-2)),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(timezone.utc)),
    "timestamp_ntz": st.datetimes(),
}
ORDERED = ("byte", "short", "integer", "long", "float", "double")
ENCODINGS = ("unsafe", "avro")


def struct(types: list[Any]) -> dict[str, Any]:
    fields = [
        {"name": f"c {at}", "type": type_, "nullable": True, "metadata": {}}
        for at, type_ in enumerate(types)
    ]
    return {"type": "struct", "fields": fields}


def schema(types: list[Any], encoding: str) -> str:
    columns = struct(types)
    if encoding == "unsafe":
        return json.dumps(columns)
    avro = {"type": "redis-state.avro", "schema": columns, "written": [[0, columns]]}
    return json.dumps(avro)


def codec(kind: str, params: tuple[int, ...], types: list[Any], encoding: str) -> FamilyCodec:
    text = schema(types, encoding)
    if kind.startswith("ts"):
        text = text.replace(f'"c {len(types) - 1}"', '"__event_time"')
    return codec_of(Family(7, "some", kind, params, text, text))


def plain(value: Any) -> Any:
    """NaN is equal to itself here."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


@st.composite
def keys(draw: st.DrawFn) -> tuple[str, tuple[int, ...], list[str], list[Any]]:
    kind = draw(st.sampled_from(["none", "prefix", "range", "ts-prefix", "ts-postfix"]))
    types = draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=5))
    params: tuple[int, ...] = ()
    if kind == "prefix":
        params = (draw(st.integers(1, len(types))),)
    elif kind == "range":
        types.append(draw(st.sampled_from(ORDERED)))
        able = [at for at, type_ in enumerate(types) if type_ in ORDERED]
        params = tuple(draw(st.lists(st.sampled_from(able), min_size=1, unique=True)))
    values = [draw(st.none() | TYPES[type_]) for type_ in types]
    if kind.startswith("ts"):
        types.append("long")
        values.append(draw(TYPES["long"].filter(lambda at: at > -(1 << 63))))
    return kind, params, types, values


@given(keys(), st.sampled_from(ENCODINGS))
def test_a_key_is_read_as_it_was_written(
    key: tuple[str, tuple[int, ...], list[str], list[Any]], encoding: str
) -> None:
    kind, params, types, values = key
    one = codec(kind, params, types, encoding)
    stored = one.encode_key(values)
    assert stored[:FAMILY_BYTES] == b"\0\7"
    found = one.decode_key(stored)
    names = [f"c {at}" for at in range(len(types))]
    assert list(found) == ([*names[:-1], "__event_time"] if kind.startswith("ts") else names)
    assert list(map(plain, found.values())) == list(map(plain, values))


@given(
    st.sampled_from(ORDERED).flatmap(
        lambda type_: st.tuples(st.just(type_), st.lists(TYPES[type_], min_size=2, max_size=9))
    )
)
def test_bytes_of_a_range_key_are_in_the_order_of_its_numbers(
    column: tuple[str, list[Any]],
) -> None:
    type_, values = column
    one = codec("range", (0,), [type_], "unsafe")
    numbers = [value for value in values if not (isinstance(value, float) and math.isnan(value))]
    in_order = sorted(numbers, key=lambda value: one.encode_key([value]))
    assert in_order == sorted(numbers)
    last = one.encode_key([None])
    assert all(one.encode_key([value]) < last for value in numbers)


@given(st.integers(-(1 << 62), 1 << 62), st.integers(-(1 << 62), 1 << 62))
def test_timestamps_in_front_are_in_order(first: int, second: int) -> None:
    one = codec("ts-prefix", (), ["string", "long"], "unsafe")
    assert (one.encode_key(["b", first]) < one.encode_key(["b", second])) == (first < second)


def test_older_rows_of_an_avro_family_have_the_columns_of_now() -> None:
    inner_then = {"type": "struct", "fields": struct(["integer"])["fields"]}
    inner_now = {"type": "struct", "fields": struct(["long", "string"])["fields"]}
    then = struct(["integer", "string", inner_then, "date"])
    now: dict[str, Any] = {"type": "struct"}
    now["fields"] = [*reversed(then["fields"][:2]), {"name": "c 2"}]
    now["fields"][1] = {**now["fields"][1], "type": "double"}
    now["fields"][2] = {"name": "c 2", "type": inner_now, "nullable": True, "metadata": {}}
    now["fields"].append({"name": "new", "type": "long", "nullable": True, "metadata": {}})
    text = json.dumps({"type": "redis-state.avro", "schema": now, "written": [[0, then], [1, now]]})
    family = Family(0, "some", "none", (), schema(["string"], "avro"), text)
    old = row_bytes(
        json.dumps({"type": "redis-state.avro", "schema": then, "written": [[0, then]]})
    )
    assert isinstance(old, AvroRows)
    value = old.encode(range(4), [7, "text", (5,), date(2024, 1, 2)])
    found = codec_of(family).decode_value(value)
    assert found["c 2"].as_dict() == {"c 0": 5, "c 1": None}
    assert {**found, "c 2": None} == {"c 1": "text", "c 0": 7.0, "c 2": None, "new": None}


def test_a_list_has_the_elements_in_order() -> None:
    one = codec("none", (), ["long", "string"], "avro")
    rows = [[number, f"text {number}"] for number in range(3)]
    raw = join_elements(one.values.encode((0, 1), row) for row in rows)
    assert [list(found.values()) for found in one.decode_values(raw)] == rows


def test_range_key_with_a_null_for_its_number_is_malformed() -> None:
    one = codec("range", (0,), ["long"], "unsafe")
    key = bytearray(one.encode_key({"c 0": 7}))
    null_bits = FAMILY_BYTES + 4 + 1  # behind the length and the encoding version
    key[null_bits] |= 1
    with pytest.raises(FormatError, match="malformed"):
        one.decode_key(bytes(key))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", ["none", "prefix", "range", "ts-prefix", "ts-postfix"])
def test_bytes_that_are_no_key_are_refused(kind: str, encoding: str) -> None:
    params = {"prefix": (1,), "range": (1,)}.get(kind, ())
    one = codec(kind, params, ["string", "long"], encoding)
    good = one.encode_key(["key", 5])
    for bad in (b"", good[:-1], good[:3], good + b"\0" * 5, good[:2] + b"\xff" * 40):
        with pytest.raises(FormatError):
            one.decode_key(bad)


def test_impossible_family_is_refused() -> None:
    for kind, params, types in (
        ("prefix", (3,), ["string", "long"]),
        ("range", (0,), ["string", "long"]),
        ("range", (2,), ["string", "long"]),
        ("range", (1, 1), ["string", "long"]),
        ("ts-prefix", (), ["string"]),
    ):
        with pytest.raises(FormatError):
            codec(kind, params, types, "unsafe")
    for text in ("[]", "{", '{"type":"redis-state.avro","schema":{}}', "null"):
        with pytest.raises(FormatError):
            row_bytes(text)
    rows = row_bytes(schema(["long"], "avro").replace("[[0,", "[[3,"))
    with pytest.raises(FormatError, match="schema 0 is unknown"):
        rows.decode((0,), b"\0\0\0\2\2")


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", ["ts-prefix", "ts-postfix"])
def test_a_description_without_the_event_time_is_refused(kind: str, encoding: str) -> None:
    text = schema(["string", "long"], encoding)
    with pytest.raises(FormatError, match="without the event time of its keys"):
        codec_of(Family(7, "left-keyWithTsToValues", kind, (), text, text))


def test_key_without_a_timestamp_raises_config() -> None:
    one = codec("ts-postfix", (), ["string", "long"], "unsafe")
    with pytest.raises(ConfigError, match="column '__event_time'"):
        one.encode_key(["key", datetime(2024, 1, 1)])


def test_columns_of_one_name_keep_their_values() -> None:
    """Spark calls all maps of a key `_groupingmapsort`, and all buffers of `last` alike."""
    columns = struct(["long"] * 4)
    for field, name in zip(columns["fields"], ("k", "k", "v", "k"), strict=True):
        field["name"] = name
    text = json.dumps(columns)
    made = codec_of(Family(0, "default", "none", (), text, text))
    row = {"k": 1, "k.2": 2, "v": 3, "k.3": 4}
    stored = made.encode_key([1, 2, 3, 4])
    assert made.decode_key(stored) == row
    assert made.decode_value(stored[FAMILY_BYTES:]) == row
    assert made.encode_key(row) == stored
    keys = AskedKeys([row] * MANY)
    assert keys.stored(made) == [stored] * MANY
    hits = Hits(MANY)
    hits.add(HitGroup(made, 0, [*range(MANY)], [stored[FAMILY_BYTES:]] * MANY))
    assert decoded(hits) == [row] * MANY
    assert key_of(made.key, ["k=1", "k.2=2", "v=3", "k.3=4"]) == row
    (found,) = keys_of_json(made.key, json.dumps([row]))
    assert found == row
    with pytest.raises(ConfigError, match=r"'k\.2' is missing, 'k\.3' is missing"):
        made.encode_key({"k": 1, "v": 3})
