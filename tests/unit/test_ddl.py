"""DDL text of schemas, read as Spark reads it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from redis_state.errors import UsageError
from redis_state.types.ddl import struct_of

SIMPLE = [
    t.BooleanType(), t.ByteType(), t.ShortType(), t.IntegerType(), t.LongType(), t.FloatType(),
    t.DoubleType(), t.StringType(), t.BinaryType(), t.DateType(), t.TimestampType(),
    t.TimestampNTZType(), t.DecimalType(10, 0), t.DecimalType(38, 18),
]  # fmt: skip
NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5
)


def _types(inner: st.SearchStrategy[t.DataType]) -> st.SearchStrategy[t.DataType]:
    structs = st.lists(st.tuples(NAMES, inner, st.booleans()), min_size=1, max_size=3).map(
        lambda fields: t.StructType([t.StructField(*one) for one in fields])
    )
    return (
        inner.map(t.ArrayType) | st.tuples(inner, inner).map(lambda two: t.MapType(*two)) | structs
    )


TYPES = st.recursive(st.sampled_from(SIMPLE), _types, max_leaves=6)


def _ddl(kind: t.DataType) -> str:
    """As Scala's `sql` writes a type."""
    match kind:
        case t.ArrayType():
            return f"ARRAY<{_ddl(kind.elementType)}>"
        case t.MapType():
            return f"MAP<{_ddl(kind.keyType)}, {_ddl(kind.valueType)}>"
        case t.StructType():
            return f"STRUCT<{', '.join(_field(one, ': ') for one in kind.fields)}>"
    return kind.simpleString().upper()


def _field(field: t.StructField, between: str) -> str:
    name = field.name.replace("`", "``")
    return f"`{name}`{between}{_ddl(field.dataType)}{'' if field.nullable else ' NOT NULL'}"


def _bare(found: Any) -> Any:
    """Removes the metadata, which DDL does not carry."""
    if isinstance(found, dict):
        return {name: _bare(one) for name, one in found.items() if name != "metadata"}
    return [_bare(one) for one in found] if isinstance(found, list) else found


@given(st.lists(st.tuples(NAMES, TYPES, st.booleans()), min_size=1, max_size=4))
def test_schema_round_trips_through_sparks_ddl(fields: list[Any]) -> None:
    schema = t.StructType([t.StructField(*one) for one in fields])
    for between in (" ", ": "):
        text = ", ".join(_field(one, between) for one in schema.fields)
        assert _bare(struct_of(text)) == _bare(schema.jsonValue())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a INT", "integer"),
        ("a\n\tbigint ", "long"),
        ("a real", "float"),
        ("a decimal", "decimal(10,0)"),
        ("a DEC(7)", "decimal(7,0)"),
        ("a numeric( 7 , 3 )", "decimal(7,3)"),
        ("a varchar(10)", "string"),
        ("a char(1)", "string"),
        ("a timestamp_ltz", "timestamp"),
        ("a string COMMENT 'it''s, not null'", "string"),
        ('a string not null comment "x"', "string"),
        ("1a int", "integer"),
    ],
)
def test_ddl_spellings_are_accepted(text: str, kind: str) -> None:
    if "''" in text:
        text = text.replace("''", "\\'")
    (field,) = struct_of(text)["fields"]
    assert field["type"] == kind


def test_nested_types_without_blanks_are_read() -> None:
    (field,) = struct_of("m map<string,array<struct<a:int,b:array<array<long>>>>>")["fields"]
    assert field["type"]["valueType"]["elementType"]["fields"][1]["name"] == "b"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a",
        "a int,",
        ", a int",
        "a int b int",
        "a array",
        "a array<int",
        "a array<int>>",
        "a map<int>",
        "a struct<>",
        "a struct<b>",
        "a decimal(x)",
        "a decimal(3,2,1)",
        "a decimal(39,0)",
        "a decimal(3,4)",
        "a foo",
        "a int not",
        "a int comment",
        "a int comment b",
        "a int; b int",
        "'a' int",
        "`a int",
        "a-b int",
    ],
)
def test_malformed_ddl_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a list of columns"):
        struct_of(text)
