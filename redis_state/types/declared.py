"""Schemas that users declare, as Spark's JSON, and the check of their key columns; no pyspark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from redis_state.errors import UsageError
from redis_state.types.ddl import ddl_of, struct_of
from redis_state.types.schema import Array, Map, Struct, Type, parse_schema

_TEXT = (
    "Group by a text whose bytes are the same for equal values: collate(lower(…), 'UTF8_BINARY')"
)
_ADVICE = {
    "map": "Group by values of the map, or to_json(map_from_entries(array_sort(map_entries(…)))).",
    "variant": "Group by a part of the value: variant_get(…, '$.path', 'string').",
    "geometry": "Group by its bytes: st_asbinary(…).",
    "geography": "Group by its bytes: st_asbinary(…).",
}

_UnfitPart = tuple[str, str, str]
"""Path of a part, its type as in Spark's DDL, and the advice for its error."""

JsonType = str | dict[str, Any]
"""A type as in Spark's JSON."""


def schema_json(given: object) -> str:
    """Returns Spark's JSON of a `StructType` or a DDL text, without collations.

    Raises:
        UsageError: The schema is neither, has no columns, or has two columns of one name.
    """
    return _as_json(_described(given))


def key_schema_json(
    given: object, what: str, *, attempted: str, names: Sequence[str] | None = None
) -> str:
    """Returns Spark's JSON of the columns of a key, like `schema_json`.

    Args:
        what: Name of a key column in errors.
        names: Names of the key columns; ``None`` means all.

    Raises:
        UsageError: `schema_json` rejects the schema, or equal values of a column may differ in
            bytes.
    """
    found = [one for one in _described(given) if names is None or one["name"] in names]
    for field in found:
        check_key(field, f"{what} '{field['name']}'", attempted=attempted)
    return _as_json(found)


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


def _described(given: object) -> list[dict[str, Any]]:
    if isinstance(given, str):
        found = struct_of(given)
    else:
        to_json = getattr(given, "json", None)
        found = json.loads(to_json()) if callable(to_json) else {}
        if not isinstance(found, dict) or found.get("type") != "struct":
            raise UsageError(
                "reading a schema",
                found=f"it is of type {type(given).__name__}",
                advice="Give a StructType, or text such as 'count long'.",
            )
    fields: list[dict[str, Any]] = found["fields"]
    names = [field["name"] for field in fields]
    if not names or len(set(names)) < len(names):
        raise UsageError(
            "reading a schema",
            found="it has no column" if not names else "two columns have the same name",
            advice="Give each column a name of its own.",
        )
    return fields


def _as_json(fields: Sequence[Mapping[str, Any]]) -> str:
    bare = [_bare(field) for field in fields]
    return json.dumps({"type": "struct", "fields": bare}, separators=(",", ":"))


def _bare(field: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": field["name"],
        "type": _without_collations(field["type"]),
        "nullable": field.get("nullable", True),
    }


def _without_collations(kind: JsonType) -> JsonType:
    """Returns the type without the names of collations, which stored values do not need."""
    if isinstance(kind, str):
        return "string" if kind.startswith("string collate ") else kind
    parts: dict[str, Any] = {}
    for name, part in kind.items():
        if name in ("elementType", "keyType", "valueType"):
            parts[name] = _without_collations(part)
        elif name == "fields":
            parts[name] = [{**one, "type": _without_collations(one["type"])} for one in part]
        else:
            parts[name] = part
    return parts
