"""A query that is started again with other columns while Spark's check of schemas is off."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import redis_state
from redis_state import keys
from redis_state.cli.main import main
from redis_state.errors import ConfigError
from redis_state.reader.operator_state import OperatorState
from tests.spark.streams import REDIS, ROCKSDB, Input, Streams
from tests.spark.test_join_format_4 import begin_as
from tests.spark.test_operators import JOIN_FORMAT
from tests.spark.test_state_reader import FORMAT_4_ENABLED, setting
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

CHECK = "spark.sql.streaming.stateStore.stateSchemaCheck"
SAID = "[REDIS_FORMAT] the columns of the query are not those of the state: "
ADVICE = "Go back to the query that wrote the state, or start a new checkpoint."
ROWS = "k string, v long, n int, ts timestamp"
Build = Callable[[DataFrame], DataFrame]


@pytest.fixture(autouse=True)
def unchecked(spark: SparkSession) -> Iterator[None]:
    with setting(spark, CHECK, "false"):
        yield


def _rows(*keys: str, v: int = 1) -> list[dict[str, Any]]:
    return [{"k": k, "v": v, "n": 7, "ts": "2024-01-01T10:00:00.000Z"} for k in keys]


def _sum(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").agg(sf.sum("v").alias("total"))


def _refusal(streams: Streams, source: Input, build: Build, name: str = "query") -> str:
    """Returns the error message of another query's start."""
    with pytest.raises(StreamingQueryException) as raised:
        streams.run(build(source.stream(streams.spark)), name)
    return str(raised.value)


CHANGES: dict[str, tuple[Build, Build, list[str]]] = {
    "value added": (
        _sum,
        lambda frame: frame.groupBy("k").agg(sf.sum("v"), sf.max("n")),
        ["the value column 'max' (int) was added"],
    ),
    "value of another type": (
        lambda frame: frame.groupBy("k").agg(sf.max("v")),
        lambda frame: frame.groupBy("k").agg(sf.max("k")),
        ["the value column 'max' was bigint and is string"],
    ),
    "key added": (
        _sum,
        lambda frame: frame.groupBy("k", "n").agg(sf.sum("v")),
        ["the key column 'n' (int) was added"],
    ),
    "key replaced": (
        lambda frame: frame.groupBy("n").agg(sf.sum("v")),
        lambda frame: frame.groupBy("k").agg(sf.sum("v")),
        ["the key column 'n' (int) was removed", "the key column 'k' (string) was added"],
    ),
    "deduplicated by more": (
        lambda frame: frame.dropDuplicates(["k"]),
        lambda frame: frame.dropDuplicates(["k", "n"]),
        ["the key column 'n' (int) was added"],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_columns_are_named_first(
    streams: Streams, shared_redis_server: RedisServer, change: str
) -> None:
    before, after, changes = CHANGES[change]
    source = streams.input("rows", ROWS)
    source.add(_rows(*"abcdef"))
    query_id = streams.run(before(source.stream(streams.spark)), "query").id
    with redis_state.connect(shared_redis_server.url) as reader:
        state = reader.query(query_id).operator(0)
        wait_until(lambda: state.count() > 0, "the batch to be confirmed")
        rows = sorted(map(str, state.scan()))
        source.add(_rows(*"abcdef"))
        said = _refusal(streams, source, after)
        assert f"{SAID}{'; '.join(changes)}. " in said
        assert ADVICE in said
        # Live reads go by the columns that each version has.
        for read in (state, reader.query(query_id).operator(0)):
            assert sorted(map(str, read.scan())) == rows
            assert all(read.get(key) == value for key, value in read.items())
    # Nothing was changed: the query that wrote the state goes on.
    streams.run(before(source.stream(streams.spark)), "query")


def _by(*columns: str) -> Build:
    numbers = sf.col("v").alias("a"), (sf.col("v") * 2).alias("b"), sf.col("k")
    return lambda frame: frame.select(*numbers).groupBy(*columns).agg(sf.max(sf.length("k")))


def _run_with_100_keys(streams: Streams, name: str, build: Build) -> tuple[str, Input]:
    source = streams.input(name, ROWS)
    source.add([{"k": "k", "v": v, "n": 1} for v in range(100)])
    return str(streams.run(build(source.stream(streams.spark)), name).id), source


def test_keys_are_read_by_the_columns_of_the_state_not_of_a_refused_query(
    streams: Streams, shared_redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    # Partition 0 of a refused query may describe its columns before another partition refuses.
    query_id, _ = _run_with_100_keys(streams, "query", _by("a"))
    refused_id, _ = _run_with_100_keys(streams, "refused", _by("k", "b"))
    url = shared_redis_server.url
    with redis_state.connect(url) as reader:
        wait_until(lambda: reader.query(query_id).operator(0).count() == 100, "the batch")
        ours, theirs = (reader.query(id_).info.gen for id_ in (query_id, refused_id))
        with shared_redis_server.client() as client:
            listed = client.hget(keys.query(theirs), "op:0:default")
            client.hset(keys.query(ours), "op:0:default", listed)

        def fresh() -> OperatorState:
            return reader.query(query_id).operator(0)

        assert fresh().family() == fresh().families()[0]
        assert fresh().get({"a": 7}) == fresh().get([7]) == {"max": 1}
        assert (
            fresh().get_many([{"a": v} for v in range(90, 110)]) == [{"max": 1}] * 10 + [None] * 10
        )
        assert fresh().view().get({"a": 7}) == fresh().get({"a": 7}, at=0) == {"max": 1}
        assert [one.value for one in fresh().history({"a": 7})] == [{"max": 1}]
        assert reader.sql(f'SELECT max FROM "{query_id}" WHERE a = 7').to_pylist() == [{"max": 1}]
        with pytest.raises(ConfigError, match="'b' is unknown, 'a' is missing"):
            fresh().get({"k": "k", "b": 14})
    assert main(["get", query_id, "a=7", "--url", url]) == 0
    assert '"max": 1' in capsys.readouterr().out


def test_keys_are_read_by_the_columns_that_a_running_query_has_now(
    streams: Streams, shared_redis_server: RedisServer
) -> None:
    query_id, source = _run_with_100_keys(streams, "query", _by("a", "b"))
    with redis_state.connect(shared_redis_server.url) as reader:
        state = reader.query(query_id).operator(0)
        wait_until(lambda: state.count() == 100, "the batch")
        # Many keys show that each lies where Spark's shuffle sends it.
        assert state.get_many([{"a": v, "b": 2 * v} for v in range(100)]) == [{"max": 1}] * 100
        source.add([{"k": "word", "v": 500, "n": 1}])
        streams.run(_by("b", "a")(source.stream(streams.spark)), "query")
        wait_until(lambda: reader.query(query_id).operator(0).count() == 101, "the next batch")
        assert state.get({"b": 1000, "a": 500}) == state.get({"a": 500, "b": 1000}) == {"max": 4}
        # The rows of the first batch go on under the new names.
        assert state.get_many([{"b": v, "a": 2 * v} for v in range(100)]) == [{"max": 1}] * 100
        assert state.get({"a": 7, "b": 14}) is None
        assert state.get({"a": 7, "b": 14}, at=0) == {"max": 1}


def test_fitting_rows_continue_under_the_new_columns(
    streams: Streams, shared_redis_server: RedisServer
) -> None:
    source = streams.input("rows", ROWS)
    source.add(_rows("a", "b"))
    streams.run(source.stream(streams.spark).groupBy("k").agg(sf.sum("v")), "query")
    source.add(_rows("a", v=5))
    renamed = source.stream(streams.spark).withColumnRenamed("k", "who").groupBy("who")
    query_id = streams.run(renamed.agg(sf.max("v")), "query").id
    with redis_state.connect(shared_redis_server.url) as reader:
        state = reader.query(query_id).operator(0)
        wait_until(
            lambda: [dict(row) for row in state.scan(prefix="a")] == [{"who": "a", "max": 5}],
            "the batch to be confirmed",
        )
        assert {row["who"]: row["max"] for row in state.scan()} == {"a": 5, "b": 1}
        assert state.get({"who": "a"}) == {"max": 5}


def test_a_state_without_rows_takes_new_columns(
    streams: Streams, shared_redis_server: RedisServer
) -> None:
    source = streams.input("rows", ROWS)
    source.add(_rows("a"))
    none = source.stream(streams.spark).where("v > 3")
    streams.run(none.groupBy("k").agg(sf.sum("v")), "query")
    source.add(_rows("a", "b", v=5))
    more = source.stream(streams.spark).where("v > 3")
    query_id = streams.run(more.groupBy("k").agg(sf.sum("v"), sf.max("n")), "query").id
    with redis_state.connect(shared_redis_server.url) as reader:
        state = reader.query(query_id).operator(0)
        wait_until(lambda: state.count() == 2, "the batch to be confirmed")
        rows = state.scan()
        assert {row["k"]: (row["sum"], row["max"]) for row in rows} == {"a": (5, 7), "b": (5, 7)}


def _join(state_columns: Sequence[str], keys: Sequence[str]) -> Build:
    def build(frame: DataFrame) -> DataFrame:
        late = frame.withWatermark("ts", "5 minutes").select(*state_columns, "ts")
        on = " AND ".join(f"l.{key} = r.{key}" for key in keys)
        near = sf.expr(f"{on} AND r.ts BETWEEN l.ts AND l.ts + INTERVAL 10 MINUTES")
        return late.alias("l").join(late.alias("r"), near, "leftOuter")

    return build


JOINS = {
    "value added": (["k", "v"], ["k"], ["k", "v", "n"], ["k"], "the value column 'n' (int) was"),
    "key added": (["k", "n", "v"], ["k"], ["k", "n", "v"], ["k", "n"], "'field1' (int) was added"),
    "long key added": (["k", "v"], ["k"], ["k", "v"], ["k", "v"], "'field1' (bigint) was added"),
}


@pytest.mark.parametrize("change", JOINS)
@pytest.mark.parametrize("state_format", [2, 3, 4])
def test_changed_columns_of_joins(streams: Streams, state_format: int, change: str) -> None:
    columns, keys, columns_after, keys_after, said = JOINS[change]
    source = streams.input("rows", ROWS)
    source.add(_rows(*"abcdef"))
    with (
        setting(streams.spark, JOIN_FORMAT, str(state_format)),
        setting(streams.spark, FORMAT_4_ENABLED, "true"),
    ):
        before = _join(columns, keys)(source.stream(streams.spark))
        if state_format > 2:
            streams.run(before, "theirs", mode="append", provider=ROCKSDB)
            begin_as(streams.checkpoint("theirs"), streams.checkpoint("query"), str(state_format))
        streams.run(before, "query", mode="append", provider=REDIS)
        source.add(_rows(*"abcdef"))
        after = _join(columns_after, keys_after)(source.stream(streams.spark))
        with pytest.raises(StreamingQueryException) as raised:
            streams.run(after, "query", mode="append", provider=REDIS)
    assert SAID in str(raised.value)
    assert said in str(raised.value)
