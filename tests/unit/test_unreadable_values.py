"""Values without a form in Python: named, left out, or read as chosen (docs/reading.md)."""

from __future__ import annotations

import contextlib
import json
import pickle
import struct
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal
from pyspark.sql.variant_utils import VariantUtils

from redis_state.errors import ConfigError, FormatError, Kind, UnreadableError
from redis_state.format.header import Family
from redis_state.reader.table_columns import columns_of, only_columns, readable_columns
from redis_state.reader.tables.column_arrays import value_columns
from redis_state.rows import unsafe_row
from redis_state.rows.arrow_objects import objects
from redis_state.rows.arrow_types import arrow_array
from redis_state.rows.codec import FamilyCodec, codec_of
from redis_state.rows.json_values import to_json
from redis_state.rows.variants import Variant, json_of, parse_variant
from redis_state.types.calendar import date_text, timestamp_text
from redis_state.types.decoding import Decoding, decoding_of
from redis_state.types.schema import CalendarInterval, Struct, parse_schema
from redis_state.types.values import Internal

BAD = b"a\xff\xfeb"
EPOCH = date(1970, 1, 1).toordinal()
OPAQUE = (
    "geometry(OGC:CRS84)",
    "geography(OGC:CRS84, SPHERICAL)",
    "geometry(SRID:ANY)",
    "timestamp_ltz(9)",
    "timestamp_ntz(7)",
    "a_type_of_tomorrow",
)


def schema_json(**types: Any) -> str:
    fields = [{"name": name, "type": type_} for name, type_ in types.items()]
    return json.dumps({"type": "struct", "fields": fields})


def codec(decoding: Decoding | None = None, **types: Any) -> FamilyCodec:
    text = schema_json(**types)
    return codec_of(Family(0, "default", "none", (), text, text), decoding or Decoding())


def row(*values: int | bytes | None) -> bytes:
    """A stored row: its encoding version, nulls, slots, and the parts of variable length."""
    fixed = 8 + 8 * len(values)
    nulls, slots, tail = 0, b"", b""
    for at, value in enumerate(values):
        if value is None:
            nulls |= 1 << at
            slots += bytes(8)
        elif isinstance(value, bytes):
            slots += struct.pack("<II", len(value), fixed + len(tail))
            tail += value.ljust(-(-len(value) // 8) * 8, b"\0")
        else:
            slots += value.to_bytes(8, "little", signed=True)
    return b"\0" + nulls.to_bytes(8, "little") + slots + tail


def array(*parts: bytes) -> bytes:
    """An array of values of variable length."""
    head = 8 + 8 + 8 * len(parts)
    slots, tail = b"", b""
    for part in parts:
        slots += struct.pack("<II", len(part), head + len(tail))
        tail += part.ljust(-(-len(part) // 8) * 8, b"\0")
    return len(parts).to_bytes(8, "little") + bytes(8) + slots + tail


def map_of(key: bytes, value: bytes) -> bytes:
    keys = array(key)
    return len(keys).to_bytes(8, "little") + keys + array(value)


def inside(type_: str, value: bytes) -> list[tuple[str, Any, bytes]]:
    """A value in every shape up to two deep: path of the column, its type, its bytes."""
    arrays = {"type": "array", "elementType": type_, "containsNull": True}
    maps = {"type": "map", "keyType": "string", "valueType": type_, "valueContainsNull": True}
    of_struct = {"type": "struct", "fields": [{"name": "f", "type": type_}]}
    plain = [("", type_, value), ("", arrays, array(value)), ("", maps, map_of(b"k", value))]
    plain.append((".f", of_struct, row(value)[1:]))
    found = list(plain)
    for path, kind, data in plain[1:]:
        found.append((path, arrays | {"elementType": kind}, array(data)))
        found.append((path, maps | {"valueType": kind}, map_of(b"k", data)))
        nested = {"type": "struct", "fields": [{"name": "g", "type": kind}]}
        found.append((f".g{path}", nested, row(data)[1:]))
    return found


@pytest.mark.parametrize("type_", OPAQUE)
def test_unreadable_type_is_named_with_its_column(type_: str) -> None:
    for path, kind, data in inside(type_, b"12345678"):
        of = codec(n="integer", c=kind)
        stored = row(5, data)
        with pytest.raises(UnreadableError) as raised:
            of.decode_value(stored)
        error = raised.value
        assert (error.kind, error.column, error.type) == (Kind.UNREADABLE, f"c{path}", type_)
        assert f"column 'c{path}' of type {type_}" in str(error)
        assert "Restore" not in str(error)
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        with pytest.raises(UnreadableError, match="column 'c"):
            value_columns(of, [stored])
        assert only_columns(of, ["n"]).decode_value(stored) == {}
        assert only_columns(of, ["value.n"]).decode_value(stored) == {"n": 5}
        assert readable_columns(of) == ["n", "value.n"]
        assert of.decode_value(row(5, None)) == {"n": 5, "c": None}
        (left, null) = value_columns(of, [row(5, None)])
        assert (left.to_pylist(), null.to_pylist()) == ([5], [None])


def test_damage_is_reported_despite_unreadable_types() -> None:
    of = codec(n="string", c=OPAQUE[0])
    with pytest.raises(FormatError):
        of.decode_value(row(200 << 32 | 8, None))


def test_unrequested_columns_are_not_parsed() -> None:
    columns = {"t": "string", "v": "variant", "n": "long"}
    stored = row(BAD, b"\xff" * 8, 7)
    for kind, params in (("none", ()), ("prefix", (1,)), ("range", (2,))):
        schema = schema_json(**columns)
        of = codec_of(Family(0, "default", kind, params, schema, schema))
        alone = only_columns(of, ["n", "value.n"])
        assert alone.decode_value(stored) == {"n": 7}
        assert alone.value_row(stored) == (None, None, 7)
        names = [array.type for array in value_columns(alone, [stored])]
        assert names == [pa.string(), pa.string(), pa.int64()]
        assert columns_of(alone).names == columns_of(of).names
        if kind == "none":
            assert alone.decode_key(b"\0\0" + stored) == {"n": 7}


@pytest.mark.parametrize("text", ["replace", "surrogates"])
def test_non_utf_8_text_is_read_as_configured(text: Any) -> None:
    read = {"replace": "a��b", "surrogates": "a\udcff\udcfeb"}[text]
    for path, kind, data in inside("string", BAD):
        stored = row(data)
        with pytest.raises(UnreadableError) as raised:
            codec(c=kind).decode_value(stored)
        assert (raised.value.column, raised.value.type) == (f"c{path}", "string")
        of = codec(decoding_of(text), c=kind)
        assert (
            read
            in str(to_json(of.decode_value(stored)))
            .encode("utf-8", "surrogatepass")
            .decode("utf-8", "surrogatepass")
            or text == "surrogates"
        )
        if text == "replace":
            (found,) = value_columns(of, [stored])
            found.validate(full=True)
        else:
            with pytest.raises(UnreadableError, match="surrogate"):
                value_columns(of, [stored])
    of = codec(decoding_of(text), c="string")
    assert of.decode_value(row(BAD)) == {"c": read}


def test_a_key_with_surrogates_is_found_again() -> None:
    of = codec(decoding_of("surrogates"), c="string")
    stored = b"\0\0" + row(BAD)
    assert of.encode_key(of.decode_key(stored)) == stored
    with pytest.raises(ConfigError, match="surrogate"):
        codec(c="string").encode_key(of.decode_key(stored))


def test_map_keys_that_decode_to_one_text_are_not_damage() -> None:
    keys = array(b"\xff", b"\xfe")
    data = len(keys).to_bytes(8, "little") + keys + array(b"a", b"b")
    kind = {"type": "map", "keyType": "string", "valueType": "string"}
    with pytest.raises(UnreadableError, match="same text"):
        codec(decoding_of("replace"), c=kind).decode_value(row(data))
    found = codec(decoding_of("surrogates"), c=kind).decode_value(row(data))
    assert list(found["c"].items()) == [("\udcff", "a"), ("\udcfe", "b")]


@pytest.mark.parametrize(
    ("type_", "raw", "iso"),
    [
        ("date", 2_932_897, "+10000-01-01"),
        ("date", -719_163, "0000-12-31"),
        ("date", -(1 << 31), "-5877641-06-23"),
        ("timestamp", 253_402_300_800_000_001, "+10000-01-01T00:00:00.000001+00:00"),
        ("timestamp_ntz", 253_402_300_800_000_000, "+10000-01-01T00:00:00"),
        ("time(9)", 45_296_123_456_789, "12:34:56.123456789"),
    ],
)
def test_unrepresentable_time_spoils_no_other_value(type_: str, raw: int, iso: str) -> None:
    of = codec(c=type_, n="integer")
    word = raw & 0xFFFFFFFF if type_ == "date" else raw
    stored = row(word, 5)
    found = of.decode_value(stored)
    assert (found["n"], int(found["c"]), type(found["c"])) == (5, raw, Internal)
    assert to_json(found) == {"c": iso, "n": 5}
    assert to_json(pickle.loads(pickle.dumps(found))) == to_json(found)
    assert of.encode_key(found) == b"\0\0" + stored, "it is looked up by what was read"
    with pytest.raises(ConfigError):
        codec(c="timestamp" if type_ != "timestamp" else "date", n="integer").encode_key(found)
    (column, _) = value_columns(of, [stored, row(0, 6)])
    column.validate(full=True)
    first, second = objects(column)
    assert (int(first), type(first)) == (raw, Internal)
    assert type(second) is not Internal
    # Where rows are read one after the other, too.
    kind = parse_schema(schema_json(c=type_)).fields[0].type
    assert objects(arrow_array(kind, [found["c"], None])) == [first, None]
    assert objects(pa.array([None, [column[0]]], pa.list_(column.type)))[1] == [first]


def test_interval_that_arrow_cannot_hold_is_named() -> None:
    of = codec(c="interval")
    stored = row(struct.pack("<iiq", 1, 2, 1 << 62))
    assert of.decode_value(stored) == {"c": CalendarInterval(1, 2, 1 << 62)}
    with pytest.raises(UnreadableError, match="column 'c' of type interval"):
        value_columns(of, [stored])


@given(st.integers(1, date.max.toordinal()))
def test_dates_are_written_as_python_writes_them(ordinal: int) -> None:
    assert date_text(ordinal - EPOCH) == date.fromordinal(ordinal).isoformat()


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_every_timestamp_has_a_text(micros: int) -> None:
    days, rest = divmod(micros, 86_400_000_000)
    assert timestamp_text(micros).split("T")[0] == date_text(days)
    clock = timestamp_text(micros).split("T")[1].split(".")
    assert timedelta(microseconds=rest).seconds == sum(
        int(part) * size for part, size in zip(clock[0].split(":"), (3600, 60, 1), strict=True)
    )


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=100),
    lambda one: (
        st.lists(one, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), one, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(JSON)
def test_variant_equals_sparks_json(value: Any) -> None:
    made = VariantVal.parseJson(json.dumps(value))
    found = json_of(Variant(bytes(made.value), bytes(made.metadata)))
    assert json.loads(found) == json.loads(VariantUtils.to_json(made.value, made.metadata))


def packed(value: bytes, metadata: bytes = b"\x01\0\0") -> bytes:
    return len(value).to_bytes(4, "little") + value + metadata


def primitive(kind: int, data: bytes) -> bytes:
    return bytes([kind << 2]) + data


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (primitive(8, b"\x02" + (1230).to_bytes(4, "little")), "12.3"),
        (primitive(9, b"\x00" + (100).to_bytes(8, "little")), "100"),
        (primitive(10, b"\x14" + (-1).to_bytes(16, "little", signed=True)), f"-0.{'0' * 19}1"),
        (primitive(11, (2_932_897).to_bytes(4, "little")), '"+10000-01-01"'),
        (primitive(12, (500_000).to_bytes(8, "little")), '"1970-01-01 00:00:00.5+00:00"'),
        (primitive(13, bytes(8)), '"1970-01-01 00:00:00"'),
        (primitive(14, struct.pack("<f", 1.5)), "1.5"),
        (primitive(7, struct.pack("<d", float("nan"))), '"NaN"'),
        (primitive(15, b"\x02\0\0\0\0\xff"), '"AP8="'),
        (primitive(20, bytes(range(16))), '"00010203-0405-0607-0809-0a0b0c0d0e0f"'),
    ],
)
def test_variant_values_without_a_json_form_are_read(value: bytes, text: str) -> None:
    for path, kind, data in inside("variant", packed(value)):
        assert text.strip('"') in str(to_json(codec(c=kind).decode_value(row(data)))), path
    assert json_of(parse_variant(memoryview(packed(value)))) == text
    of = codec(decoding_of("strict", "binary"), c="variant")
    assert of.decode_value(row(packed(value))) == {"c": Variant(value, b"\x01\0\0")}
    (column,) = value_columns(of, [row(packed(value))])
    assert column.to_pylist() == [{"value": value, "metadata": b"\x01\0\0"}]


def test_a_variant_of_a_later_kind_is_named_and_its_binaries_are_read() -> None:
    stored = row(packed(primitive(40, bytes(8))))
    with pytest.raises(UnreadableError, match="column 'c' of type variant") as raised:
        codec(c="variant").decode_value(stored)
    assert "variant='binary'" in str(raised.value)
    codec(decoding_of("strict", "binary"), c="variant").decode_value(stored)


def test_non_utf_8_text_in_a_variant_is_read_as_configured() -> None:
    stored = row(packed(bytes([4 << 2 | 1]) + BAD))
    with pytest.raises(UnreadableError, match="not UTF-8"):
        codec(c="variant").decode_value(stored)
    found = codec(decoding_of("replace"), c="variant").decode_value(stored)
    assert found == {"c": '"a��b"'}


@given(st.binary(max_size=60), st.binary(max_size=20))
def test_any_bytes_decode_to_a_variant_or_raise(value: bytes, metadata: bytes) -> None:
    with contextlib.suppress(FormatError, UnreadableError):
        json.loads(json_of(Variant(value, b"\x01" + metadata), "replace"))


def test_exponentially_nested_variant_is_refused() -> None:
    """Each array has the next one twice: without a bound 2 ** depth values are read."""
    value = primitive(0, b"")
    for _ in range(40):
        size = len(value)
        value = bytes([3]) + bytes([2, 0, 0, size]) + value if size < 256 else value
    with pytest.raises(FormatError):
        json_of(Variant(value, b"\x01\0\0"))


@pytest.mark.parametrize("choice", [{"text": "ignore"}, {"variant": "xml"}, {"columns": "a,b"}])
def test_unknown_choice_is_refused(choice: dict[str, Any]) -> None:
    given: dict[str, Any] = {"text": "strict", **choice}
    with pytest.raises(ConfigError, match="Give"):
        decoding_of(**given)


def test_every_spark_type_is_known() -> None:
    """A new type of pyspark has to be looked at: it is opaque until then."""
    from pyspark.sql import types

    def kinds(of: Any) -> Sequence[Any]:
        return [of, *(one for sub in of.__subclasses__() for one in kinds(sub))]

    made = [
        kind()
        for kind in kinds(types.DataType)
        if not kind.__subclasses__()
        and kind.__name__ not in ("ArrayType", "MapType", "StructType", "CharType", "VarcharType")
        and kind.__module__ == types.__name__
        and not kind.__name__.startswith(("UserDefined", "StructField", "Geo"))
    ]
    for one in made:
        columns = parse_schema(schema_json(c=one.jsonValue()))
        assert isinstance(columns, Struct)
        assert not getattr(columns.fields[0].type, "opaque", False), one
    assert unsafe_row.decode(parse_schema(schema_json()), b"") == ()
