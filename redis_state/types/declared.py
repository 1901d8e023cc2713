"""Schemas that users declare, as Spark's JSON; no pyspark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from redis_state.errors import UsageError
from redis_state.types.ddl import struct_of
from redis_state.types.key_types import check_key

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
