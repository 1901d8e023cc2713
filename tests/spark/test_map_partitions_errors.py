"""Bad input to `map_partitions_with_state_store`: each is named, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors.exceptions.base import PySparkException
from pyspark.sql import SparkSession

from redis_state.codec import RAW
from redis_state.errors import ConfigError, StateError, UsageError
from redis_state.spark.partition_task import BatchStore
from tests.spark.streams import Streams
from tests.spark.test_map_partitions import OUT, Store
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

ROWS = [(f"k{i}", i) for i in range(30)]
Dicts = Iterator[dict[str, Any]]


@pytest.fixture
def store(spark: SparkSession, shared_redis_server: RedisServer) -> Store:
    """A store with one batch."""
    made = Store(spark, shared_redis_server.url)
    made.run([("a", 1), ("b", 2)], 0)
    return made


def unchanged(store: Store) -> None:
    assert store.state(1) == {"a": 1, "b": 2}
    mapped = store.map(ROWS, 1)
    with pytest.raises(StateError, match="partition 0, 1 never ran to the end"):
        mapped.verify_committed()
    assert len(mapped.collect()) == len(ROWS)
    mapped.verify_committed()
    assert store.state(2) == {"a": 1, "b": 2} | dict(ROWS)


def refused(
    store: Store, func: Callable[..., Any], match: str, rows: str = "dicts", **options: Any
) -> None:
    mapped = store.map(ROWS, 1, func=func, rows=rows, **options)
    with pytest.raises(PySparkException, match=match):
        mapped.collect()
    with pytest.raises(StateError, match="never ran to the end"):
        mapped.verify_committed()


def test_function_that_raises_changes_nothing(store: Store) -> None:
    def half(state: BatchStore, rows: Dicts) -> Dicts:
        for number, row in enumerate(rows):
            if number == 7:
                raise ValueError("half of the rows")
            state.put(row["k"], -1)
            yield {"k": row["k"], "total": -1}

    refused(store, half, "ValueError: half of the rows")
    unchanged(store)


def test_function_that_returns_early_is_refused(store: Store) -> None:
    def early(state: BatchStore, rows: Dicts) -> Dicts:
        row = next(rows)
        state.put(row["k"], -1)
        yield {"k": row["k"], "total": -1}

    refused(store, early, r"REDIS_USAGE.*the function returned before it had read all of its rows")

    def none(_: BatchStore, frames: Iterator[pd.DataFrame]) -> None:
        del frames

    refused(store, none, "the function returned before it had read all of its rows", rows="pandas")
    unchanged(store)


def test_function_that_stops_at_its_last_row_is_accepted(store: Store) -> None:
    def first(state: BatchStore, rows: Dicts) -> Dicts:
        for _ in range(30):
            row = next(rows)
            state.put(row["k"], row["v"])
        yield {"k": "last", "total": 0}

    mapped = store.map(ROWS, 1, func=first, schema=OUT)
    with pytest.raises(PySparkException, match="StopIteration"):
        mapped.collect()

    def one_by_one(state: BatchStore, rows: Dicts) -> Dicts:
        while row := next(rows, None):
            state.put(row["k"], row["v"])
        yield {"k": "last", "total": 0}

    mapped = store.map(ROWS, 1, func=one_by_one)
    assert len(mapped.collect()) == 2
    mapped.verify_committed()
    assert store.state(2) == {"a": 1, "b": 2} | dict(ROWS)


def test_partly_read_output_changes_nothing(store: Store) -> None:
    def endless(state: BatchStore, rows: Dicts) -> Dicts:
        for row in rows:
            state.put(row["k"], -1)
        while True:
            yield {"k": "again", "total": 0}

    mapped = store.map(ROWS, 1, func=endless)
    assert len(mapped.take(3)) == 3
    with pytest.raises(StateError, match="partition 0, 1 never ran to the end"):
        mapped.verify_committed()
    unchanged(store)


def test_a_function_cannot_commit_by_itself(store: Store) -> None:
    def commits(state: Any, rows: Dicts) -> None:
        for row in rows:
            state.put(row["k"], -1)
        state.commit()

    refused(store, commits, "AttributeError: 'BatchStore' object has no attribute 'commit'")
    unchanged(store)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ([{"k": "a"}, 7], "a int instead of a dict"),
        ([{"k": "a", "total": "x"}], r"column 'total' \(str\) are not of type int64"),
        ([{"k": "a", "totals": 1}], "the column 'totals', which the schema does not have"),
        ({"k": "a"}, "it returned a dict, not an iterator of rows"),
        (7, "it returned a int"),
    ],
)
def test_invalid_outputs_are_refused(store: Store, given: Any, match: str) -> None:
    def gives(_: BatchStore, rows: Dicts) -> Any:
        for _row in rows:
            pass
        return given

    refused(store, gives, f"REDIS_USAGE.*{match}")


@pytest.mark.parametrize(
    ("rows", "given", "match"),
    [
        ("pandas", pd.DataFrame({"k": ["a"]}), "rows without the column 'total'"),
        ("pandas", pd.DataFrame({"k": ["a"], "total": [object()]}), r"'total' \(object\)"),
        ("pandas", [1], "a list instead of a pandas DataFrame"),
        ("arrow", pa.table({"k": ["a"], "total": ["x"]}), r"\(string\) are not of type int64"),
        ("arrow", pd.DataFrame(), "a DataFrame instead of a RecordBatch"),
    ],
)
def test_invalid_frames_are_refused(store: Store, rows: str, given: Any, match: str) -> None:
    def gives(_: BatchStore, parts: Iterator[Any]) -> Iterator[Any]:
        for _part in parts:
            pass
        yield given

    refused(store, gives, f"REDIS_USAGE.*{match}", rows=rows)


def test_nulls_in_a_non_null_column_are_refused(store: Store) -> None:
    def gives(_: BatchStore, rows: Dicts) -> Dicts:
        yield from ({"k": row["k"]} for row in rows)

    schema = "k string, total long not null"
    refused(store, gives, "nulls in column 'total', which does not allow them", schema=schema)


def test_unencodable_value_is_refused(store: Store) -> None:
    def puts(state: BatchStore, rows: Dicts) -> None:
        for row in rows:
            state.put(row["k"], object())

    refused(store, puts, r"REDIS_USAGE.*encoding a value.*its type is object")
    unchanged(store)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"partitions": 3}, r"the store has 2 partitions, not 3\. Omit `partitions`"),
        ({"partitions": 0}, "0 partitions were requested"),
        (
            {"key": "kk"},
            "key names the column 'kk', which the DataFrame does not have. Did you mean 'k'",
        ),
        ({"key": ()}, "there is no key column"),
        ({"key": "v"}, r"made with .key k string; codec msgpack., not with .key v bigint"),
        ({"order_by": ["time"]}, "order_by names the column 'time'"),
        ({"rows": "lists"}, "rows is 'lists'. Give one of dicts, pandas, arrow"),
        ({"schema": "long"}, "the schema is not a list of columns"),
        ({"batch_id": -1}, "not a whole number of 0 or more"),
        ({"batch_id": True}, "not a whole number of 0 or more"),
        ({"store": ""}, "a store's name; it has 0 bytes"),
        ({"codec": RAW}, "not with .key k string; codec raw"),
    ],
)
def test_invalid_arguments_are_refused(store: Store, options: dict[str, Any], match: str) -> None:
    given = {"batch_id": 1} | options
    with pytest.raises(UsageError, match=match):
        store.map(ROWS, **given)
    unchanged(store)


def test_a_stream_and_columns_of_one_name_are_refused(store: Store, streams: Streams) -> None:
    from redis_state import map_partitions_with_state_store

    def call(frame: Any, key: str = "k") -> None:
        map_partitions_with_state_store(
            frame, lambda *_: None, store=store.name, batch_id=1, key=key, schema=OUT
        )

    with pytest.raises(UsageError, match=r"the DataFrame is a stream.*foreachBatch"):
        call(streams.input("none", "k string").stream(store.spark))
    with pytest.raises(UsageError, match="two columns are named 'k'"):
        call(store.frame([]).selectExpr("k", "v", "v as k"))
    with pytest.raises(UsageError, match=r"'m' is of type map<string,bigint>"):
        call(store.frame([]).selectExpr("map(k, v) as m"), key="m")


def test_options_are_checked_and_a_url_is_needed(store: Store, spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'deadline'"):
        store.map(ROWS, 1, deadlin="3s")
    name = "spark.sql.streaming.stateStore.redis.url"
    url = spark.conf.get(name)
    spark.conf.unset(name)
    try:
        with pytest.raises(ConfigError, match="option 'url'; it is missing"):
            store.map(ROWS, 1)
        assert len(store.map(ROWS, 1, url=url).collect()) == len(ROWS)
    finally:
        spark.conf.set(name, str(url))
