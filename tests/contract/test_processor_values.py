"""Values through a processor: what `update` takes is what the next `get` and a live read give."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from redis_state import connect
from redis_state.batches.streams import Inputs
from redis_state.errors import UsageError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.spark.processor.columns import ColumnEngine, ColumnState
from redis_state.spark.processor.handle import Handle, ProcessorQueryInfo
from redis_state.store.scratch import scratch_store
from redis_state.testing import ProcessorTest
from redis_state.types.declared import schema_json
from tests.contract.processor_support import at, handle_of
from tests.contract.store_support import NewProvider
from tests.support.redis_server import RedisServer

FIRST = datetime(2024, 11, 3, 5, 30, tzinfo=timezone.utc)
SECOND = FIRST + timedelta(hours=1)
"""Both are 01:30 in New York."""


class Twice(StatefulProcessor):
    """Keeps the time of its key in every place, and writes back what it reads."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._value = handle.getValueState("value", "at timestamp, all array<timestamp>")
        self._items = handle.getListState("items", "at timestamp")
        self._table = handle.getMapState("table", "at timestamp", "at timestamp")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        known = self._value.get()
        if known is None:
            self._value.update((key[0], [key[0]]))
            self._items.put([(key[0],)])
            self._table.updateValue(key, key)
        else:
            self._value.update(known)
            self._items.put(list(self._items.get()))
            for one, value in list(self._table.iterator()):
                self._table.updateValue(one, value)
            assert self._table.getValue(key) == key
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield Row(at=key[0], timer=False)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        # Timers come after the rows, with the key as it was written.
        self._table.updateValue(key, key)
        yield Row(at=key[0], timer=True)


@pytest.mark.usefixtures("new_york")
def test_repeated_hour_round_trips_in_every_variable(
    redis_server: RedisServer,
) -> None:
    with (
        connect(redis_server.url) as reader,
        ProcessorTest(
            Twice(), key="at", input="at timestamp", schema="at timestamp, timer boolean",
            rows="rows", time_mode="ProcessingTime", url=redis_server.url,
        ) as test,
    ):  # fmt: skip
        for number in range(3):
            out = test.run([(FIRST,), (SECOND,)])
            test.advance("1 second")
            moments = sorted(row.at.astimezone(timezone.utc) for row in out if not row.timer)
            assert moments == [FIRST, SECOND]
            assert sum(row.timer for row in out) == (2 if number else 0)
        test.keys("value")  # opens the version, which confirms it
        query = reader.query(test.store)
        for moment in (FIRST, SECOND):
            key = {"at": moment}
            assert query.operator(0, family="value").get(key) == {"at": moment, "all": [moment]}
            assert query.operator(0, family="items").get_list(key) == [{"at": moment}]
            # A naive time is of this machine's zone, and its fold counts.
            local = datetime(2024, 11, 3, 1, 30, fold=int(moment == SECOND))
            assert query.operator(0, family="value").get(local) == {"at": moment, "all": [moment]}
            table = query.operator(0, family="table")
            assert table.get({"key": key, "userKey": key}) == {"at": moment}
        assert len(list(query.operator(0, family="table").items())) == 2


def test_refused_value_changes_nothing(new_families: NewProvider) -> None:
    provider = new_families()
    store = provider.get_family_store(0)
    handle: Handle = handle_of(store, 1000)
    value = handle.getValueState("v", "n int, d decimal(4,2)", 5000)
    items = handle.getListState("l", "n int", 5000)
    table = handle.getMapState("m", "n int", "m map<string,int>", 5000)
    handle.close_declarations()
    at(handle, ("a", 1))
    value.update((1, Decimal("1.005")))
    items.put([(1,)])
    table.updateValue((1,), ({"a": 1},))
    before = [list(store.rows(b"", b"\xff" * 8)), value.get(), list(items.get())]
    assert before[1] == (1, Decimal("1.01"))
    for bad in ((1, "x"), (np.datetime64(1, "ns"), None), {1, 2}, (2**31, None), iter((1, 2))):
        with pytest.raises(UsageError):
            value.update(bad)
    for many in ([(1,), ("x",)], {(1,): 2}, {(1,)}, "1", None, [(2,), None]):
        with pytest.raises(UsageError):
            items.put(many)  # type: ignore[arg-type]  # that is it
        with pytest.raises(UsageError):
            items.appendList(many)  # type: ignore[arg-type]  # that is it
    for key, one in (((1,), ({"a": "x"},)), ((2**31,), (None,)), ((1,), ([("a", 1)],))):
        with pytest.raises(UsageError):
            table.updateValue(key, one)
    for time_ms in (2**63, -(2**63) - 1, 1.5, FIRST):
        with pytest.raises(UsageError, match="registering a timer"):
            handle.registerTimer(time_ms)  # type: ignore[arg-type]  # that is it
    assert [list(store.rows(b"", b"\xff" * 8)), value.get(), list(items.get())] == before
    store.abort()


NESTED = pa.schema(
    [
        ("by", pa.map_(pa.string(), pa.map_(pa.int64(), pa.timestamp("us", "UTC")))),
        ("in", pa.struct([("l", pa.list_(pa.map_(pa.string(), pa.decimal128(5, 2))))])),
    ]
)
NESTED_DDL = "by map<string,map<bigint,timestamp>>, in struct<l: array<map<string,decimal(5,2)>>>"


def _columns_run(function: Any, state: pa.Schema, ddl: str, table: pa.Table) -> None:
    inputs = Inputs(["k"], schema_json("k timestamp"), "none", "UTC", "")
    output = pa.schema([("k", table["k"].type)])
    engine = ColumnEngine(function, inputs, schema_json(ddl), state, "state", output)
    store = scratch_store(StateStoreProviderId(StateStoreId("columns", 0, 0), "run"))
    list(engine.run(store, table, 1000, 0, ProcessorQueryInfo("", "", 0)))


@pytest.mark.usefixtures("new_york")
def test_map_columns_round_trip() -> None:
    keys = pa.array([FIRST, SECOND], pa.timestamp("us", "UTC"))
    rows: list[Any] = [
        {"by": [("a", [(1, FIRST), (2, SECOND)]), ("b", None)], "in": {"l": [[("d", None)], None]}},
        {"by": None, "in": {"l": [[("d", Decimal("1.50"))]]}},
    ]
    table = pa.table([pa.array([row[name] for row in rows], NESTED.field(name).type)
                      for name in NESTED.names], schema=NESTED)  # fmt: skip
    found: list[pa.Table] = []

    def function(state: ColumnState, given: pa.Table) -> pa.Table:
        state.put(given["k"], table)
        found.append(state.get(given["k"]))
        return given

    _columns_run(function, NESTED, NESTED_DDL, pa.table({"k": keys}))
    assert found[0].to_pylist() == table.to_pylist()


def test_naive_times_are_refused_as_timestamps() -> None:
    keys = pa.array([FIRST], pa.timestamp("us", "UTC"))
    naive = pa.array([datetime(2024, 11, 3, 1, 30)], pa.timestamp("us"))
    schema = pa.schema([("seen", pa.list_(keys.type))])
    lists = pa.table({"seen": pa.array([[naive[0]]], pa.list_(naive.type))})

    def function(state: ColumnState, given: pa.Table) -> pa.Table:
        with pytest.raises(UsageError, match=r"state column 'seen'.*without a time zone"):
            state.put(given["k"], lists)
        with pytest.raises(UsageError, match=r"key column 'k'.*without a time zone"):
            state.get(naive)
        return given

    _columns_run(function, schema, "seen array<timestamp>", pa.table({"k": keys}))
