"""Rejects key types whose equal values may differ in bytes; no pyspark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from redis_state.codec.spark_types import JsonType
from redis_state.errors import UsageError

_COLLATIONS = "__COLLATIONS"
_COLLATED = "string collate "
_BY_BYTES = "UTF8_BINARY"

_TEXT = (
    "Group by a text whose bytes are the same for equal values: collate(lower(…), 'UTF8_BINARY')"
)
_ADVICE = {
    "map": "Group by values of the map, or to_json(map_from_entries(array_sort(map_entries(…)))).",
    "variant": "Group by a part of the value: variant_get(…, '$.path', 'string').",
    "geometry": "Group by its bytes: st_asbinary(…).",
    "geography": "Group by its bytes: st_asbinary(…).",
}

_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}

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
    found = next(_of_field(field, field["name"]), None)
    if found is None:
        return
    path, kind, advice = found
    part = "" if path == field["name"] else f", in its part {path},"
    raise UsageError(
        attempted,
        found=f"{what}{part} is of type {kind}, whose equal values may differ in bytes",
        advice=advice,
    )


def without_collations(kind: JsonType) -> JsonType:
    """Returns the type without the names of collations, which stored values do not need."""
    if isinstance(kind, str):
        return "string" if kind.startswith(_COLLATED) else kind
    parts: dict[str, Any] = {}
    for name, part in kind.items():
        if name in ("elementType", "keyType", "valueType"):
            parts[name] = without_collations(part)
        elif name == "fields":
            parts[name] = [{**one, "type": without_collations(one["type"])} for one in part]
        else:
            parts[name] = part
    return parts


def _of_field(field: Mapping[str, Any], path: str) -> Iterator[_UnfitPart]:
    # Spark writes a collation into the metadata of the nearest field, keyed by the path from
    # there.
    found = (field.get("metadata") or {}).get(_COLLATIONS) or {}
    below = field["name"]
    collations = {place[len(below) :]: str(name) for place, name in found.items()}
    yield from _of_type(field["type"], path, collations, "")


def _of_type(
    kind: JsonType, path: str, collations: Mapping[str, str], below: str
) -> Iterator[_UnfitPart]:
    if isinstance(kind, str):
        yield from _of_name(kind, path, collations.get(below, ""))
    elif kind["type"] == "struct":
        for field in kind["fields"]:
            yield from _of_field(field, f"{path}.{field['name']}")
    elif kind["type"] == "array":
        yield from _of_type(kind["elementType"], f"{path}.element", collations, f"{below}.element")
    elif kind["type"] == "map":
        yield path, _shown(kind), _ADVICE["map"]
    elif kind["type"] == "udt":
        yield from _of_type(kind["sqlType"], path, collations, below)


def _of_name(kind: str, path: str, collation: str) -> Iterator[_UnfitPart]:
    if kind.startswith(_COLLATED):
        collation = kind[len(_COLLATED) :]
    name = collation.rpartition(".")[2]
    if name and name != _BY_BYTES:
        yield path, f"{_COLLATED}{name}", _text_for(name)
    family = kind.partition("(")[0]
    if family in _ADVICE:
        yield path, kind, _ADVICE[family]


def _text_for(collation: str) -> str:
    if collation == "UTF8_BINARY_RTRIM":
        return _TEXT.replace("lower", "rtrim") + "."
    return _TEXT + ", or cast(… as string) where texts that differ in bytes are different keys."


def _shown(kind: JsonType) -> str:
    if isinstance(kind, str):
        return _NAMES.get(kind, kind)
    if kind["type"] == "map":
        return f"map<{_shown(kind['keyType'])},{_shown(kind['valueType'])}>"
    if kind["type"] == "array":
        return f"array<{_shown(kind['elementType'])}>"
    return str(kind["type"])
