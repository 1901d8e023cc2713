"""Key columns whose equal values may differ in bytes: refused, wherever the type stands."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import types as t
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from redis_state.codec.typed_row import TypedRow
from redis_state.errors import UsageError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.store.scratch import scratch_store
from redis_state.testing import ProcessorTest
from redis_state.types.declared import check_key, key_schema_json, schema_json
from tests.contract.processor_support import at, handle_of

LCASE = t.StringType("UTF8_LCASE")
UNICODE = t.StringType("UNICODE")
GEOMETRY = getattr(t, "GeometryType", None)
BY_BYTES: list[t.DataType] = [
    t.StringType(), t.BinaryType(), t.BooleanType(), t.LongType(), t.DoubleType(), t.DateType(),
    t.TimestampType(), t.TimestampNTZType(), t.DecimalType(10, 2), t.CharType(3), t.VarcharType(3),
    t.DayTimeIntervalType(), t.YearMonthIntervalType(),
]  # fmt: skip
UNEQUAL: list[tuple[t.DataType, str]] = [
    (LCASE, "string collate UTF8_LCASE"),
    (UNICODE, "string collate UNICODE"),
    (t.StringType("UTF8_BINARY_RTRIM"), "string collate UTF8_BINARY_RTRIM"),
    (t.StringType("UNICODE_CI"), "string collate UNICODE_CI"),
    (t.VariantType(), "variant"),
    (t.MapType(t.StringType(), t.ArrayType(t.LongType())), "map<string,array<bigint>>"),
]
if GEOMETRY is not None:
    UNEQUAL += [(GEOMETRY(4326), "geometry"), (t.GeographyType(4326), "geography")]


class Point(t.UserDefinedType):
    """A type of a program, kept as a struct."""

    @classmethod
    def sqlType(cls) -> t.DataType:
        return struct(LCASE)

    @classmethod
    def module(cls) -> str:
        return "nowhere"


def struct(kind: t.DataType) -> t.StructType:
    return t.StructType([t.StructField("x", t.LongType()), t.StructField("variant", kind)])


def check(kind: t.DataType) -> None:
    field = t.StructField("k", kind)
    check_key(field.jsonValue(), "the key column 'k'", attempted="grouping")


@pytest.mark.parametrize("kind", BY_BYTES, ids=lambda kind: kind.simpleString())
def test_types_with_unique_bytes_are_accepted(kind: t.DataType) -> None:
    """Their names may be those of other types."""
    for nested in (kind, struct(kind), t.ArrayType(kind), struct(t.ArrayType(struct(kind)))):
        check(nested)


@pytest.mark.parametrize(("kind", "name"), UNEQUAL, ids=[name for _, name in UNEQUAL])
def test_type_with_ambiguous_bytes_is_refused_at_any_depth(kind: t.DataType, name: str) -> None:
    places = [
        (kind, ""),
        (struct(kind), "k.variant"),
        (t.ArrayType(kind), "k.element"),
        (t.ArrayType(t.ArrayType(kind)), "k.element.element"),
        (struct(struct(kind)), "k.variant.variant"),
        (struct(t.ArrayType(struct(kind))), "k.variant.element.variant"),
    ]
    for nested, path in places:
        with pytest.raises(UsageError) as caught:
            check(nested)
        found = caught.value.found
        assert f"is of type {name}" in found
        assert found.startswith("the key column 'k'")
        assert f"in its part {path}," in found if path else "part" not in found
        assert caught.value.advice


def test_user_defined_type_is_checked_by_its_storage_type() -> None:
    with pytest.raises(UsageError, match=r"part k\.variant, is of type string collate UTF8_LCASE"):
        check(Point())


@pytest.mark.parametrize(
    "given",
    [
        "n int, k string collate utf8_lcase",
        "n int, k struct<x: array<string COLLATE UTF8_LCASE>>",
        "n int, k map<string, int>",
        t.StructType([t.StructField("n", t.IntegerType()), t.StructField("k", struct(LCASE))]),
    ],
)
def test_map_key_is_checked(given: object) -> None:
    def schema(names: list[str] | None = None) -> str:
        return key_schema_json(given, "the key column", attempted="declaring", names=names)

    with pytest.raises(UsageError, match=r"key column 'k'.*equal values may differ in bytes"):
        schema()
    assert schema(["n"]) == schema_json("n int")


def test_collated_values_are_accepted() -> None:
    """As for Spark, whose operator hands out the text."""
    texts = "s string collate UTF8_LCASE, a array<string collate UNICODE>"
    columns = [t.StructField("s", LCASE), t.StructField("a", t.ArrayType(UNICODE))]
    assert json.loads(schema_json(texts)) == json.loads(schema_json(t.StructType(columns)))
    assert schema_json(texts) == schema_json("s string, a array<string>")
    row = TypedRow(schema_json(texts))
    assert row.decode(row.encode(("Ab", ["É"]))) == ("Ab", ["É"])
    assert schema_json("s string collate utf8_binary") == schema_json("s string")
    key = key_schema_json("s string collate utf8_binary", "the key column", attempted="declaring")
    assert key == schema_json("s string")


class Nothing(StatefulProcessor):
    """Is not run."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield from ()

    def close(self) -> None:
        pass


def test_processor_test_refuses_ambiguous_keys() -> None:
    for given in ("n int, k string collate UTF8_LCASE", "n int, k struct<m: map<string, int>>"):
        with pytest.raises(UsageError, match="testing a processor; the key column 'k'"):
            ProcessorTest(Nothing(), key="k", input=given, schema="n int")
        ProcessorTest(Nothing(), key="n", input=given, schema="n int")


def test_map_of_an_earlier_release_is_kept() -> None:
    """Its keys go by the bytes that they have: a refusal would leave no way to read them."""
    id_ = StateStoreProviderId(StateStoreId("s", 0, 0), "run")
    store = scratch_store(id_)
    keys = "m map<string, int>"
    with pytest.raises(UsageError, match=r"declaring state variable 'new'; the key column 'm'"):
        handle_of(store).getMapState("new", keys, "n long")
    handle_of(store)._declare("old", "map", schema_json("n long"), schema_json(keys))
    handle = handle_of(store)
    state = handle.getMapState("old", keys, "n long")
    at(handle, ("a", 1))
    state.updateValue(({"x": 1},), (2,))
    assert list(state.iterator()) == [(({"x": 1},), (2,))]
