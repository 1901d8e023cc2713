"""The state after the last batch is read live, though no further batch opens it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as sf

import redis_state
from redis_state.live import Reader
from tests.spark.streams import FORMAT, PROVIDER, REDIS, Streams
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

SCHEMA = "k string, v long, ts timestamp"
TS = "2026-01-01T00:00:00Z"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def reader(shared_redis_server: RedisServer) -> Any:
    with redis_state.connect(shared_redis_server.url) as found:
        yield found


def counts(reader: Reader, query: str) -> dict[str, int]:
    return {key["k"]: value["count"] for key, value in reader.query(query).operator().items()}


def shown(reader: Reader, query: str, wanted: dict[str, int]) -> None:
    wait_until(lambda: counts(reader, query) == wanted, f"{wanted} of {query}")


@pytest.mark.parametrize("format_", ["1", "2"])
def test_ended_query_shows_its_last_batch(streams: Streams, reader: Reader, format_: str) -> None:
    """As a job that a scheduler starts each day, over new data or none."""
    streams.spark.conf.set(FORMAT, format_)
    try:
        source = streams.input("in", SCHEMA)
        wanted: dict[str, int] = {}
        for rows in (["a", "b"], ["a", "c"], []):
            for k in rows:
                source.add([{"k": k, "v": 1, "ts": TS}])
                wanted[k] = wanted.get(k, 0) + 1
            query = streams.run(source.stream(streams.spark).groupBy("k").count(), "daily")
            shown(reader, query.id, wanted)
        version = 4
        state = reader.query(query.id).operator()
        assert {key["k"]: v["count"] for key, v in state.items(version=version)} == wanted
        status = reader.query(query.id).status()
        assert (status.confirmed_batch, status.newest_batch) == (version - 1, version - 1)
        assert (status.rows, status.driver_alive, status.alive) == (len(wanted), True, True)
        assert [(one.operator, one.name) for one in status.stores] == [(0, "stateStoreSave")]
        assert status.problems == []
    finally:
        streams.spark.conf.set(FORMAT, "1")


def test_waiting_query_shows_its_last_batch(streams: Streams, reader: Reader) -> None:
    source = streams.input("in", SCHEMA)
    source.add([{"k": "a", "v": 1, "ts": TS}])
    streams.spark.conf.set(PROVIDER, REDIS)
    query = (
        source.stream(streams.spark)
        .groupBy("k")
        .count()
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(streams.checkpoint("waiting")))
        .format("noop")
        .start()
    )
    try:
        query.processAllAvailable()
        shown(reader, query.id, {"a": 1})
        source.add([{"k": "a", "v": 1, "ts": TS}])
        shown(reader, query.id, {"a": 2})
        assert query.isActive
        assert query.exception() is None
    finally:
        query.stop()


def test_all_stores_of_a_join_show_the_attempts_that_were_logged(
    streams: Streams, reader: Reader
) -> None:
    streams.spark.conf.set(FORMAT, "2")
    try:
        left, right = streams.input("left", SCHEMA), streams.input("right", SCHEMA)
        for source in (left, right):
            source.add([{"k": "a", "v": 1, "ts": TS}])
        one = left.stream(streams.spark).withWatermark("ts", "1 hour").alias("l")
        two = right.stream(streams.spark).withWatermark("ts", "1 hour").alias("r")
        joined = one.join(two, sf.expr("l.k = r.k and l.ts = r.ts")).select("l.k")
        query = streams.run(joined, "join", mode="append")
        found = reader.query(query.id)
        assert query.lastProgress is not None
        version = int(query.lastProgress["batchId"]) + 1

        def opened() -> set[int]:
            stores = found.operators()
            return {
                one.pin.version
                for store in stores
                for one in found.open(store.operator, store.store, None)[1]
            }

        wait_until(lambda: opened() == {version}, "the stores of the join")
    finally:
        streams.spark.conf.set(FORMAT, "1")


@pytest.mark.application
def test_program_that_exits_at_once_shows_its_last_batch(
    reader: Reader, shared_redis_server: RedisServer, tmp_path: Path
) -> None:
    """No `spark.stop()`, no sleep: the last lines of a script."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text(json.dumps({"k": "a"}))
    code = f"""
        import redis_state
        from pyspark.sql import SparkSession
        builder = (
            SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", 2)
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
        )
        url = {shared_redis_server.url!r}
        spark = redis_state.configure(builder, url=url).getOrCreate()
        (
            spark.readStream.schema("k string").json({str(tmp_path / "in")!r})
            .groupBy("k").count().writeStream.queryName("script that ends").outputMode("update")
            .option("checkpointLocation", {str(tmp_path / "checkpoint")!r})
            .format("noop").trigger(availableNow=True).start().awaitTermination()
        )
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert counts(reader, "script that ends") == {"a": 1}


def test_recreated_folder_names_the_older_checkpoint(streams: Streams, reader: Reader) -> None:
    source = streams.input("in", SCHEMA)
    source.add([{"k": "a", "v": 1, "ts": TS}])
    frame = source.stream(streams.spark).groupBy("k").count()
    first = reader.query(streams.run(frame, "anew").id).info
    again = reader.query(streams.run(frame, "anew").id).info
    assert again.gen == first.gen
    assert again.created_ms == first.created_ms, "a start is not a creation"
    shutil.rmtree(streams.checkpoint("anew"))
    second = reader.query(streams.run(frame, "anew").id).info
    assert second.gen != first.gen
    assert second.path == first.path
    assert second.created_ms > first.created_ms


def test_a_query_with_fewer_tasks_than_partitions_is_listed_with_all(
    streams: Streams, reader: Reader
) -> None:
    """A coalesce behind an operator lets one task run several of its partitions."""
    source = streams.input("in", SCHEMA)
    keys = [f"k{number}" for number in range(20)]
    for _ in range(2):
        source.add([{"k": k, "v": 1, "ts": TS} for k in keys])
        frame = source.stream(streams.spark).groupBy("k").count().coalesce(1)
        query = streams.run(frame, "coalesced")
        (store,) = reader.query(query.id).status().stores
        assert len(store.partitions) == 2
        assert reader.query(query.id).operator().count() == len(keys)
