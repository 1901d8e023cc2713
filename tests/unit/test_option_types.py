"""The options that an editor offers are those of the table, with its types."""

from __future__ import annotations

import inspect
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest

import redis_state
from redis_state import config
from redis_state.option_types import Options

TYPES: dict[str, Any] = {
    "bool": bool | None,
    "bytes": str | None,
    "durability": str | None,
    "duration": str | float | timedelta | None,
    "int": int | None,
    "path": str | Path | None,
    "prefix": str | None,
    "string": str | None,
}


def _expected(option: config.Option) -> Any:
    return Literal[option.values] | None if option.type == "enum" else TYPES[option.type]


def test_keyword_options_match_the_table() -> None:
    others = [one for one in config.options().values() if one.name != "url"]
    table = {one.python_name: _expected(one) for one in others}
    assert get_type_hints(Options) == table
    assert list(Options.__annotations__) == list(table), "in the order of the page"


@pytest.mark.parametrize(
    "function",
    [
        redis_state.configure,
        redis_state.connect,
        redis_state.map_partitions_with_state_store,
        redis_state.foreach_batch_with_state_store,
        redis_state.StateStoreProvider,
        redis_state.stores.get,
        redis_state.stores.get_read_only,
        redis_state.stores.coordinator,
    ],
)
def test_functions_accept_the_options_by_name(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    (rest,) = (one for one in parameters.values() if one.kind is one.VAR_KEYWORD)
    assert rest.annotation == "Unpack[Options]"
    assert not set(parameters) & set(Options.__annotations__)
