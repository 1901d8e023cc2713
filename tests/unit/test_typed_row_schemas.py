"""Schemas of typed rows: how they are given, and types that cannot be stored."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    UserDefinedType,
)

from redis_state.codec.typed_row import TypedKey, TypedRow
from redis_state.errors import UsageError
from redis_state.types.declared import schema_json


@pytest.mark.parametrize("kind", ["interval", "variant", "interval day"])
def test_a_type_that_cannot_be_stored_is_refused(kind: str) -> None:
    schema = json.dumps(
        {"type": "struct", "fields": [{"name": "c", "type": kind, "nullable": True}]}
    )
    for make in (TypedRow, TypedKey):
        with pytest.raises(UsageError, match=f"column 'c'.*its type is {kind}"):
            make(schema)


def test_schemas_are_given_as_text_or_as_types() -> None:
    wanted = '{"type":"struct","fields":[{"name":"a","type":"integer","nullable":true}]}'
    assert schema_json("a int") == wanted
    assert schema_json("a: int comment 'of it'") == wanted
    assert schema_json(StructType([StructField("a", IntegerType())])) == wanted
    for bad, found in (
        (7, "of type int"),
        (IntegerType(), "of type IntegerType"),
        ("a int, a string", "the same name"),
        (StructType([]), "no column"),
    ):
        with pytest.raises(UsageError, match=found):
            schema_json(bad)


class Point(UserDefinedType):
    """A type of a program, kept as a struct."""

    @classmethod
    def sqlType(cls) -> DataType:  # noqa: N802  # PySpark's name
        return StructType([StructField("x", DoubleType())])

    @classmethod
    def module(cls) -> str:
        return "shapes"


@pytest.mark.parametrize(
    "kind",
    [
        Point(),
        ArrayType(Point()),
        MapType(StringType(), Point()),
        MapType(Point(), StringType()),
        StructType([StructField("at", ArrayType(Point()))]),
    ],
    ids=lambda kind: kind.simpleString(),
)
def test_user_defined_type_raises_usage_error_with_its_name(kind: DataType) -> None:
    text = schema_json(StructType([StructField("n", IntegerType()), StructField("p", kind)]))
    for declare in (TypedRow, TypedKey):
        with pytest.raises(UsageError) as caught:
            declare(text, what="state variable 'v'")
        message = str(caught.value)
        assert "declaring state variable 'v', column 'p'" in message
        assert "the user-defined type shapes.Point, which cannot be stored" in message
        assert "sqlType()" in message
