"""The option `stateTtl` for state variables and state columns of Python's processors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from redis_state.batches.streams import Inputs, TimeMode
from redis_state.codec.processor_families import EXPIRY_OF
from redis_state.spark.processor.columns import ColumnEngine, ColumnState
from redis_state.spark.processor.handle import Handle, ProcessorQueryInfo, Times
from redis_state.store.provider import StateStoreProvider
from redis_state.testing import ProcessorTest, redis_url
from redis_state.types.declared import schema_json
from tests.contract.processor_support import KEY
from tests.contract.processors import INPUT, OUTPUT, Variables
from tests.contract.store_support import NewProvider

__all__ = ["redis_url"]

INFO = ProcessorQueryInfo("q", "r", 0)
TTL_MS = 100
OUTPUT_OF_COLUMNS = pa.schema([("k", pa.string())])
STATE = pa.schema([("n", pa.int64())])

Change = Callable[[Any, Any, Any], None]


def batch(
    provider: StateStoreProvider,
    version: int,
    now_ms: int,
    ttl_ms: int | None,
    change: Change | None = None,
    *,
    mode: TimeMode = "none",
    own_ms: int | None = None,
) -> tuple[Any, ...]:
    """Commits the next version of a group's variables; returns what they hold, and their keys."""
    store = provider.get_family_store(version)
    handle = Handle(store, KEY, Times(mode, now_ms, 0), INFO, ttl_ms=ttl_ms)
    value = handle.getValueState("v", "n int", own_ms)
    items = handle.getListState("l", "n int")
    table = handle.getMapState("m", "k int", "n int")
    handle.close_declarations()
    handle.group.key = handle.keys.encode(("g", 1))
    if change is not None:
        change(value, items, table)
    handle.expire()
    found = value.get(), [n for (n,) in items.get()], {k: n for ((k,), (n,)) in table.iterator()}
    store.commit()
    return *found, store.metrics.num_keys


def write(n: int) -> Change:
    def change(value: Any, items: Any, table: Any) -> None:
        value.update((n,))
        items.appendValue((n,))
        table.updateValue((n,), (n,))

    return change


@pytest.mark.parametrize("mode", ["none", "processingtime", "eventtime"])
def test_variables_without_a_time_to_live_get_that_of_the_option(
    new_families: NewProvider, mode: TimeMode
) -> None:
    provider = new_families()
    assert batch(provider, 0, 1000, TTL_MS, write(1), mode=mode) == ((1,), [1], {1: 1}, 3)
    assert batch(provider, 1, 1050, TTL_MS, write(2), mode=mode) == (
        (2,), [1, 2], {1: 1, 2: 2}, 4,
    )  # fmt: skip
    assert batch(provider, 2, 1099, TTL_MS, mode=mode)[1:] == ([1, 2], {1: 1, 2: 2}, 4)
    assert batch(provider, 3, 1100, TTL_MS, mode=mode) == ((2,), [2], {2: 2}, 3)
    assert batch(new_families(), 4, 1150, TTL_MS, mode=mode) == (None, [], {}, 0)


def test_own_time_to_live_has_precedence(new_families: NewProvider) -> None:
    provider = new_families()
    batch(provider, 0, 1000, TTL_MS, write(1), mode="processingtime", own_ms=10)
    found = batch(provider, 1, 1010, TTL_MS, mode="processingtime", own_ms=10)
    assert found == (None, [1], {1: 1}, 2)


def test_rows_from_before_the_option_live_as_long_from_then_on(new_families: NewProvider) -> None:
    provider = new_families()
    batch(provider, 0, 1000, None, write(1))
    assert batch(provider, 1, 5000, None) == ((1,), [1], {1: 1}, 3)
    assert batch(provider, 2, 9000, TTL_MS) == ((1,), [1], {1: 1}, 3)
    assert batch(provider, 3, 9050, TTL_MS, write(2))[1:] == ([1, 2], {1: 1, 2: 2}, 4)
    assert batch(new_families(), 4, 9100, TTL_MS) == ((2,), [2], {2: 2}, 3)
    assert batch(provider, 5, 9150, TTL_MS) == (None, [], {}, 0)


def test_rows_written_without_the_option_in_between_get_an_expiry_later(
    new_families: NewProvider,
) -> None:
    provider = new_families()
    batch(provider, 0, 1000, TTL_MS, write(1))
    batch(provider, 1, 1010, None, write(2))
    assert batch(provider, 2, 1020, TTL_MS) == ((2,), [1, 2], {1: 1, 2: 2}, 4)
    assert batch(provider, 3, 1100, TTL_MS) == ((2,), [2], {2: 2}, 3)
    assert batch(provider, 4, 1120, TTL_MS) == (None, [], {}, 0)


def test_without_the_option_rows_keep_the_expiry_that_they_have(new_families: NewProvider) -> None:
    provider = new_families()
    batch(provider, 0, 1000, TTL_MS, write(1))
    assert batch(provider, 1, 1050, None, write(2))[1:] == ([1, 2], {1: 1, 2: 2}, 4)
    assert batch(provider, 2, 1100, None) == ((2,), [2], {2: 2}, 3)
    store = provider.get_family_store(3)
    assert [name for name in store.families if name.startswith(EXPIRY_OF)] == []


def test_processor_test_takes_the_option(redis_url: str) -> None:
    with ProcessorTest(
        Variables(),
        key="user",
        input=INPUT,
        schema=OUTPUT,
        time_mode="EventTime",
        event_time="ts",
        delay="1 minute",
        url=redis_url,
        state_ttl="10m",
    ) as test:
        test.run([("ann", "2024-01-01 00:10", 1)])
        test.advance("599 seconds")
        test.run([("bob", "2024-01-01 00:10", 1)])
        assert test.list("seen", "ann") == [(1, "ann")]
        test.advance("1 second")
        test.run([("bob", "2024-01-01 00:10", 2)])
        assert test.value("count", "ann") is None
        assert (test.list("seen", "ann"), test.map("signs", "ann")) == ([], {})
        assert test.value("count", "bob") == (2,)


def columns(
    provider: StateStoreProvider,
    version: int,
    now_ms: int,
    ttl_ms: int | None,
    function: Callable[[ColumnState], object] = lambda _: None,
) -> tuple[list[int | None], int]:
    """Commits the next version of state columns; returns those of three keys, and their number."""
    found: list[int | None] = []
    keys = pa.array(["a", "b", "c"])

    def call(state: ColumnState, table: pa.Table) -> pa.Table:
        function(state)
        found.extend(state.get(keys)["n"].to_pylist())
        return table.select(["k"])

    inputs = Inputs(["k"], schema_json("k string"), "none", "UTC", "")
    engine = ColumnEngine(
        call, inputs, schema_json("n long"), STATE, "state", OUTPUT_OF_COLUMNS, ttl_ms=ttl_ms
    )
    store = provider.get_family_store(version)
    list(engine.run(store, pa.table({"k": keys}), now_ms, 0, INFO))
    store.commit()
    return found, store.metrics.num_keys


def put(**values: int) -> Callable[[ColumnState], object]:
    table = pa.table({"n": pa.array(list(values.values()), pa.int64())})
    return lambda state: state.put(pa.array(list(values)), table)


def test_state_columns_live_as_long_as_the_option_says(new_families: NewProvider) -> None:
    provider = new_families()
    assert columns(provider, 0, 1000, TTL_MS, put(a=1, b=2, c=3)) == ([1, 2, 3], 3)
    assert columns(provider, 1, 1050, TTL_MS, put(b=4)) == ([1, 4, 3], 3)
    removed = columns(provider, 2, 1060, TTL_MS, lambda state: state.remove(pa.array(["c"])))
    assert removed == ([1, 4, None], 2)
    assert columns(provider, 3, 1100, TTL_MS) == ([None, 4, None], 1)
    assert columns(new_families(), 4, 1150, TTL_MS) == ([None, None, None], 0)
    store = provider.get_family_store(5)
    prefixes = [name for name, family in store.families.items() if family.internal]
    assert prefixes == ["$batch", "$expiry of state"]
    assert list(store.rows(b"", None)) == []


def test_columns_from_before_the_option_live_as_long_from_then_on(
    new_families: NewProvider,
) -> None:
    provider = new_families()
    columns(provider, 0, 1000, None, put(a=1, b=2))
    assert columns(provider, 1, 9000, TTL_MS, put(b=3)) == ([1, 3, None], 2)
    assert columns(provider, 2, 9050, TTL_MS, put(a=5)) == ([5, 3, None], 2)
    assert columns(provider, 3, 9100, None) == ([5, None, None], 1)
    assert columns(provider, 4, 9149, None, put(c=7)) == ([5, None, 7], 2)
    assert columns(provider, 5, 9150, None) == ([None, None, 7], 1)
    assert columns(provider, 6, 99999, None) == ([None, None, 7], 1)
