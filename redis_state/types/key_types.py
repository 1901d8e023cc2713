"""Rejects key types whose equal values may differ in bytes; no pyspark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from redis_state.errors import UsageError
from redis_state.types.ddl import ddl_of
from redis_state.types.schema import Array, Map, Struct, Type, parse_schema

_TEXT = (
    "Take a text whose bytes are alike where the values are equal: collate(lower(…), 'UTF8_BINARY')"
)
_ADVICE = {
    "map": "Take values of the map, or to_json(map_from_entries(array_sort(map_entries(…)))).",
    "variant": "Take a part of the value: variant_get(…, '$.path', 'string').",
    "geometry": "Take its bytes: st_asbinary(…).",
    "geography": "Take its bytes: st_asbinary(…).",
}

_UnfitPart = tuple[str, str, str]
"""Path of a part, its type as in Spark's DDL, and the advice for its error."""


def check_key(field: Mapping[str, Any], what: str, *, attempted: str) -> None:
    """Rejects a key column if equal values of the column, or of a part, may differ in bytes.

    Args:
        field: The column in Spark's JSON, with the metadata that names collations.
        what: Name of the column in errors.

    Raises:
        UsageError: The column is rejected; the message names the part and its type.
    """
    (parsed,) = parse_schema({"type": "struct", "fields": [field]}).fields
    found = next(_of_type(parsed.type, parsed.name), None)
    if found is None:
        return
    path, kind, advice = found
    part = "" if path == parsed.name else f", in its part {path},"
    raise UsageError(
        attempted,
        found=f"{what}{part} is of type {kind}, whose equal values may differ in bytes",
        advice=advice,
    )


def _of_type(type_: Type, path: str) -> Iterator[_UnfitPart]:
    if isinstance(type_, Struct):
        for field in type_.fields:
            yield from _of_type(field.type, f"{path}.{field.name}")
    elif isinstance(type_, Array):
        yield from _of_type(type_.element, f"{path}.element")
    elif isinstance(type_, Map):
        yield path, ddl_of(type_), _ADVICE["map"]
    elif type_.collation:
        yield path, f"string collate {type_.collation}", _text_for(type_.collation)
    elif (family := type_.text.partition("(")[0]) in _ADVICE:
        yield path, type_.text, _ADVICE[family]


def _text_for(collation: str) -> str:
    if collation == "UTF8_BINARY_RTRIM":
        return _TEXT.replace("lower", "rtrim") + "."
    return _TEXT + ", or cast(… as string) where texts that differ in bytes are different keys."
