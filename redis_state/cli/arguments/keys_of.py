"""Parsers of keys on the command line: whole keys, and beginnings of keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redis_state.errors import ConfigError
from redis_state.format.header import Family
from redis_state.reader.tables.columns import is_same
from redis_state.rows.text_values import columns_of, has_columns, key_of, plain_key


def key_of_family(family: Family, words: Sequence[str]) -> Any:
    """Returns the key that the words spell, as `OperatorState.get` takes it.

    Raises:
        ConfigError: A word is malformed, or does not fit its column.
    """
    return key_of(columns_of(family), words) if has_columns(family) else plain_key(words)


def beginning_of(family: Family, words: Sequence[str]) -> Callable[[Any], bool]:
    """Returns a test of keys: True if a key begins as the words say. Without words all keys do.

    Raises:
        ConfigError: As `key_of_family`; or the columns are not the first ones of the key.
    """
    if not words:
        return lambda _key: True
    if not has_columns(family):
        return _plain_beginning(plain_key(words))
    columns = columns_of(family)
    given = key_of(columns, words)
    first = columns.names[: len(given)]
    if set(given) != set(first):
        raise ConfigError(
            "choosing rows by their keys",
            found="the columns are not the first columns of the key",
            advice=f"Key columns, in their order: {', '.join(columns.names)}.",
        )
    return lambda key: all(is_same(key[name], value) for name, value in given.items())


def _plain_beginning(begin: Any) -> Callable[[Any], bool]:
    if isinstance(begin, str):
        return lambda key: isinstance(key, str) and key.startswith(begin)
    if isinstance(begin, list):
        parts = tuple(begin)
        return lambda key: isinstance(key, tuple) and key[: len(parts)] == parts
    return lambda key: type(key) is type(begin) and is_same(key, begin)
