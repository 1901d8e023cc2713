"""Converts text from a command line or option to values of Spark's types."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from redis_state.codec.typed_row import ROW_CODEC
from redis_state.errors import ConfigError
from redis_state.format.header import Family
from redis_state.rows.codec import codec_of
from redis_state.rows.key_filter import KEYS_MAX
from redis_state.rows.python_codec import codec_name_of
from redis_state.rows.typed_rows import typed_row_codec
from redis_state.types.schema import Atomic, Struct, Type

PLAIN_COLUMN = "key"
"""Name of the one key column of a store that Python keeps."""
_JSON_SIGN = ":"


def _truth(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _instant(text: str) -> datetime:
    """Parses a timestamp; Python 3.10 does not read ``Z`` as UTC."""
    return datetime.fromisoformat(re.sub(r"[Zz]\Z", "+00:00", text))


_READERS: Mapping[str, Callable[[str], Any]] = {
    "boolean": _truth,
    "byte": int,
    "short": int,
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
    "decimal": Decimal,
    "string": str,
    "binary": bytes.fromhex,
    "date": date.fromisoformat,
    "timestamp": _instant,
    "timestamp_ntz": datetime.fromisoformat,
    "time": time.fromisoformat,
}


def has_columns(family: Family) -> bool:
    """Returns whether keys and values have columns; those of most Python stores do not."""
    return codec_name_of(family) in (None, ROW_CODEC)


def columns_of(family: Family) -> Struct:
    """Returns the key columns of a family that has columns."""
    if codec_name_of(family) == ROW_CODEC:
        return typed_row_codec(family).key
    return codec_of(family).key


def key_of(schema: Struct, pairs: Iterable[str]) -> dict[str, Any]:
    """Parses key columns from ``name=text`` and ``name:=JSON``.

    Raises:
        ConfigError: A pair is malformed, or a value does not fit its column.
    """
    types = dict(zip(schema.labels, (field.type for field in schema.fields), strict=True))
    key: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        is_json = name.endswith(_JSON_SIGN) and name not in types
        name = name.removesuffix(_JSON_SIGN) if is_json else name
        if not separator:
            raise _bad("a key column", "there is no '='", "Write name=value, or name:=JSON.")
        if name in key:
            raise _bad(f"key column '{name}'", "it is given twice", "Give it once.")
        type_ = types.get(name)
        if type_ is None:
            columns = f"Key columns: {', '.join(types) or 'none'}."
            raise _bad(f"key column '{name}'", "there is no such column", columns)
        raw: Any = _json(name, text) if is_json or isinstance(type_, Struct) else text
        key[name] = _value(name, type_, raw)
    return key


def column_value(name: str, type_: Type, text: str | None) -> Any:
    """Parses the value of a key column from text; the text of a struct is JSON.

    Args:
        text: ``None`` for null.

    Raises:
        ConfigError: The text does not fit the column.
    """
    if text is None:
        return None
    return _value(name, type_, _json(name, text) if isinstance(type_, Struct) else text)


def keys_of_json(schema: Struct | None, text: str) -> list[dict[str, Any]]:
    """Parses distinct keys from a JSON list of objects, or of plain values for a single key column.

    Args:
        schema: The key columns; ``None`` for a Python store.

    Raises:
        ConfigError: The text is not a JSON list of keys, or a value does not fit its column.
    """
    what = "the option 'keys'"
    if schema is None:
        raise _bad(what, "a store of Python has no key columns", "Filter its rows, or use lookup.")
    names = schema.labels
    example = "{" + ", ".join(f'"{name}": …' for name in names) + "}"
    try:
        given = json.loads(text, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, list) or len(given) > KEYS_MAX:
        raise _bad(
            what,
            "it is not a JSON list of keys" if not isinstance(given, list) else "it has too many",
            f"Give at most {KEYS_MAX:,} keys such as {example}; for more, use lookup.",
        )
    found: dict[str, dict[str, Any]] = {}
    for one in given:
        alone = len(names) == 1 and not (isinstance(one, dict) and set(one) == set(names))
        key = {names[0]: one} if alone else one
        if not isinstance(key, dict) or set(key) != set(names):
            raise _bad(what, "a key has not just the key columns", f"Write {example}.")
        found[json.dumps(key, sort_keys=True)] = {
            name: _value(name, field.type, key[name])
            for name, field in zip(names, schema.fields, strict=True)
        }
    return list(found.values())


def plain_key(words: Sequence[str]) -> Any:
    """Returns the key of a store that Python keeps, from ``key=text`` or ``key:=JSON``.

    Raises:
        ConfigError: There is not one word, it names another column, or its JSON is malformed.
    """
    found = f"there are {len(words)} words"
    if len(words) == 1:
        name, separator, text = words[0].partition("=")
        if separator and name == PLAIN_COLUMN:
            return text
        if separator and name == PLAIN_COLUMN + _JSON_SIGN:
            return plain_value(f"{_JSON_SIGN}={text}")
        found = f"the word does not begin with {PLAIN_COLUMN}= or {PLAIN_COLUMN}:="
    raise _bad(
        "the key of a store of Python",
        found,
        f"Write {PLAIN_COLUMN}=text, or {PLAIN_COLUMN}:=JSON; an array is a tuple.",
    )


def plain_value(text: str) -> Any:
    """Returns the key of a store that Python keeps, from ``text`` or ``:=JSON``.

    Raises:
        ConfigError: The JSON is malformed.
    """
    if not text.startswith(_JSON_SIGN + "="):
        return text
    try:
        return json.loads(text[2:])
    except (ValueError, RecursionError) as error:
        raise _bad(
            "the key",
            "it is not JSON",
            "The shell may have removed its quotes: quote it once more.",
        ) from error


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text, parse_float=str, parse_int=str)
    except (ValueError, RecursionError) as error:
        raise _bad(
            f"key column '{name}'",
            "its value is not JSON",
            "The shell may have removed its quotes: quote it once more.",
        ) from error


def _value(name: str, type_: Type, raw: Any) -> Any:
    if raw is None:
        return None
    if isinstance(type_, Struct) and isinstance(raw, dict):
        fields = {field.name: field.type for field in type_.fields}
        return {part: _value(part, fields.get(part, type_), raw[part]) for part in raw}
    kind = type_.name if isinstance(type_, Atomic) else ""
    reader = _READERS.get(kind)
    if reader is None:
        raise _bad(
            f"key column '{name}'",
            f"a value of type {kind or 'array, map or struct'} cannot be written like this",
            "Use redis_state.connect in Python.",
        )
    try:
        if isinstance(raw, (list, dict)):
            raise TypeError
        return reader(str(raw).lower() if isinstance(raw, bool) else raw)
    except (ValueError, ArithmeticError, KeyError, TypeError, AttributeError) as error:
        raise _bad(
            f"key column '{name}'",
            f"its value is not of type {kind}",
            "Write it as Spark shows it.",
        ) from error


def _bad(what: str, found: str, advice: str) -> ConfigError:
    return ConfigError(what, found=found, advice=advice)
