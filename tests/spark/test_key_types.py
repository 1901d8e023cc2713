"""Keys that cannot be told apart by their bytes are refused.

Spark refuses collated keys of all its operators but `transformWithState`, which goes by the bytes.
"""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import redis_state
from redis_state.errors import ConfigError, UsageError
from redis_state.spark.partition_task import BatchStore
from redis_state.spark.processor.columns import ColumnState
from tests.spark.streams import ROCKSDB, Streams
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

LCASE = "collate(k, 'UTF8_LCASE')"
UNEQUAL = [
    (LCASE, "string collate UTF8_LCASE"),
    (f"named_struct('x', {LCASE})", "in its part key.x, is of type string collate UTF8_LCASE"),
    ("parse_json(k)", "variant"),
    ("named_struct('x', parse_json(k))", "in its part key.x, is of type variant"),
    ("map(k, 1)", "map<string,int>"),
    ("named_struct('x', map(k, 1))", "in its part key.x, is of type map<string,int>"),
]
ARRAYS = [
    (f"array({LCASE})", "in its part key.element, is of type string collate UTF8_LCASE"),
    (f"array(named_struct('x', {LCASE}))", r"key\.element\.x"),
]


class Counting(StatefulProcessor):
    """Counts the rows of a group."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        count = (self._count.get() or (0,))[0] + sum(map(len, rows))
        self._count.update((count,))
        yield pd.DataFrame({"n": [count]})

    def close(self) -> None:
        pass


class ByName(Counting):
    """Processor with a map by collated names."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        self._names = handle.getMapState("names", "name string collate UTF8_LCASE", "n long")


def _columns(state: ColumnState, table: pa.Table) -> None:
    state.put(table["key"], table.select(["v"]))


def _partitions(_store: BatchStore, rows: Iterator[Any]) -> None:
    for _ in rows:
        pass


def processor(frame: DataFrame, url: str, **options: Any) -> DataFrame:
    return redis_state.transform_with_state(
        frame, Counting(), store=uuid.uuid4().hex, key="key", schema="n long", url=url, **options
    )


def columns(frame: DataFrame, url: str) -> DataFrame:
    return redis_state.transform_columns_with_state(
        frame, _columns, store=uuid.uuid4().hex, key="key", state="v long", schema="n long", url=url
    )


def partitions(frame: DataFrame, url: str) -> DataFrame:
    batch = frame.sparkSession.createDataFrame([], frame.schema)
    return redis_state.map_partitions_with_state_store(
        batch, _partitions, store=uuid.uuid4().hex, batch_id=0, key="key", schema="n long", url=url
    )


def initial(frame: DataFrame, url: str) -> DataFrame:
    plain = frame.selectExpr("CAST(v AS STRING) AS key", "v")
    start = frame.sparkSession.createDataFrame([], frame.schema)
    return processor(plain, url, initial_state=start)


@pytest.mark.parametrize("call", [processor, columns, partitions])
@pytest.mark.parametrize(("key", "named"), UNEQUAL)
def test_key_with_collation_is_refused_before_the_first_batch(
    streams: Streams,
    shared_redis_server: RedisServer,
    call: Callable[[DataFrame, str], DataFrame],
    key: str,
    named: str,
) -> None:
    rows = streams.input("in", "k string, v long").stream(streams.spark)
    with pytest.raises(UsageError, match=rf"key column 'key'.*{named}.*differ in bytes"):
        call(rows.selectExpr(f"{key} AS key", "v"), shared_redis_server.url)
    batch = streams.spark.createDataFrame([("a", 1)], "k string, v long")
    with pytest.raises(UsageError, match=rf"key column 'key'.*{named}.*differ in bytes"):
        call(batch.selectExpr(f"{key} AS key", "v"), shared_redis_server.url)


@pytest.mark.parametrize(("key", "named"), ARRAYS)
def test_key_in_an_array_is_refused(
    streams: Streams, shared_redis_server: RedisServer, key: str, named: str
) -> None:
    rows = streams.input("in", "k string, v long").stream(streams.spark)
    with pytest.raises(UsageError, match=named):
        partitions(rows.selectExpr(f"{key} AS key", "v"), shared_redis_server.url)


def test_an_initial_state_by_a_collated_key_is_refused(
    streams: Streams, shared_redis_server: RedisServer
) -> None:
    rows = streams.input("in", "k string, v long").stream(streams.spark)
    with pytest.raises(UsageError, match="no key column 'key' of type string"):
        initial(rows.selectExpr(f"{LCASE} AS key", "v"), shared_redis_server.url)


def test_a_map_by_a_collated_key_is_refused_by_the_first_batch(
    streams: Streams, shared_redis_server: RedisServer
) -> None:
    source = streams.input("in", "key string, v long")
    source.add([{"key": "a", "v": 1}])
    made = redis_state.transform_with_state(
        source.stream(streams.spark), ByName(), store=uuid.uuid4().hex, key="key",
        schema="n long", url=shared_redis_server.url,
    )  # fmt: skip
    with pytest.raises(
        StreamingQueryException,
        match=r"declaring state variable 'names'.*'name' is of type string collate UTF8_LCASE",
    ):
        streams.run(made, "by name")


@pytest.mark.parametrize("key", [LCASE, f"named_struct('x', {LCASE})"])
def test_sparks_operator_with_a_collated_key_is_refused_at_its_start(
    streams: Streams, key: str
) -> None:
    """RocksDB's keeps a row for each form of a text. All other operators are refused by Spark."""
    source = streams.input("in", "k string, v long")
    source.add([{"k": "a", "v": 1}, {"k": "A", "v": 2}])
    rows = source.stream(streams.spark).selectExpr(f"{key} AS key", "v")
    with pytest.raises(StreamingQueryException, match="BINARY_INEQUALITY"):
        streams.run(rows.groupBy("key").count(), "counts")
    made = rows.groupBy("key").transformWithStateInPandas(Counting(), "n long", "update", "None")
    with pytest.raises(
        StreamingQueryException,
        match=r"was not started.*'key': its type at key(\.x)? is STRING COLLATE UTF8_LCASE",
    ):
        streams.run(made, "ours")
    output: dict[int, list[str]] = {}
    streams.run(made, "theirs", provider=ROCKSDB, output=output)
    assert output == {0: ["Row(n=1)", "Row(n=1)"]}


def test_advice_for_a_collated_key_works(
    streams: Streams, shared_redis_server: RedisServer
) -> None:
    source = streams.input("in", "k string, v long")
    source.add([{"k": "a", "v": 1}, {"k": "A", "v": 2}])
    rows = source.stream(streams.spark).selectExpr(f"{LCASE} AS k", "v")
    made = processor(
        rows.selectExpr("collate(lower(k), 'UTF8_BINARY') AS key", "v"), shared_redis_server.url
    )
    output: dict[int, list[str]] = {}
    streams.run(made, "lower", output=output)
    assert output == {0: ["Row(n=2)"]}


def test_look_ups_by_collated_columns_are_refused(
    spark: SparkSession, shared_redis_server: RedisServer
) -> None:
    """Any column may be a key of a Python store, if its bytes tell keys apart."""
    name = uuid.uuid4().hex

    def keep(store: BatchStore, rows: Iterator[Any]) -> None:
        for row in rows:
            store.put(row["k"], row["v"])

    frame = spark.createDataFrame([("a", 1), ("b", 2)], "k string, v long")
    redis_state.map_partitions_with_state_store(
        frame, keep, store=name, batch_id=0, key="k", schema="n long", url=shared_redis_server.url
    ).collect()
    redis_state.map_partitions_with_state_store(
        frame, keep, store=name, batch_id=1, key="k", schema="n long", url=shared_redis_server.url
    )
    found = redis_state.lookup(
        frame.select("k"), query=name, on="k", url=shared_redis_server.url
    ).collect()
    assert sorted(map(tuple, found)) == [("a", "1"), ("b", "2")]
    for key in (LCASE, f"named_struct('x', {LCASE})", "map(k, 1)", "parse_json(k)"):
        with pytest.raises(UsageError, match=r"column 'k'.*equal values may differ in bytes"):
            redis_state.lookup(
                frame.selectExpr(f"{key} AS k"), query=name, on="k", url=shared_redis_server.url
            )


def test_look_up_by_an_array_key_is_refused_at_the_call(
    streams: Streams, shared_redis_server: RedisServer
) -> None:
    """Spark groups by them, and no reader asks for such a key by its value."""
    source = streams.input("in", "k string, v long")
    source.add([{"k": "a", "v": 1}])
    rows = source.stream(streams.spark).selectExpr("array(k) AS key", "v")
    query = streams.run(rows.groupBy("key").count(), "counts")
    asked = streams.spark.createDataFrame([("a",)], "k string").selectExpr("array(k) AS key")
    with redis_state.connect(shared_redis_server.url) as reader:
        state = reader.query(str(query.id)).operator(0)
        wait_until(lambda: len(list(state.items())) == 1, "the count is confirmed")
    with pytest.raises(ConfigError, match=r"key column 'key'; rows cannot be looked up by a array"):
        redis_state.lookup(asked, query=str(query.id), on="key", url=shared_redis_server.url)
