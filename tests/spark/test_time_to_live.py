"""State with a time to live: each operator against a plain computation with expiry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from redis import Redis

import redis_state
from redis_state.format.entry import parse_entry
from tests.spark.lives import Lives, manifest_of, shift
from tests.spark.streams import FORMAT, PREFIX, Output, Streams, run_to_end
from tests.support.pages import fenced
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import kept
from tools import compatibility

pytestmark = pytest.mark.spark

PAGE = Path(__file__).resolve().parents[2] / "docs" / "time-to-live.md"
TTL_S = 1000
EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
# Seconds that pass before each batch, and the keys of its rows.
LIFE: Sequence[tuple[int, str]] = (
    (0, "abc"),
    (600, "abd"),
    (600, "ae"),
    (100, "bcd"),
    (910, "aab"),
    (1100, "abcde"),
    (300, "a"),
)


def distinct(frame: DataFrame) -> DataFrame:
    return frame.dropDuplicates(["k"]).select("k")


def distinct_for_days(frame: DataFrame) -> DataFrame:
    marked = frame.withWatermark("ts", "10 days")
    return marked.dropDuplicatesWithinWatermark(["k"]).select("k")


def counted(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").count()


def counted_in_python(frame: DataFrame) -> DataFrame:
    def count(
        key: tuple[str], parts: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        total = (state.get[0] if state.exists else 0) + sum(map(len, parts))
        state.update((total,))
        yield pd.DataFrame({"k": [key[0]], "count": [total]})

    return frame.groupBy("k").applyInPandasWithState(
        count, "k string, count long", "n long", "update", GroupStateTimeout.NoTimeout
    )


def sessions(frame: DataFrame) -> DataFrame:
    windows = frame.withWatermark("ts", "10 days").groupBy(
        "k", sf.session_window("ts", "30 minutes")
    )
    return windows.count().select("k", "count")


def limited(frame: DataFrame) -> DataFrame:
    return frame.select("k").limit(3)


def limits(life: Sequence[tuple[int, str]]) -> Iterator[list[str]]:
    """Yields the rows of each batch that a limit of three lets through."""
    now, seen, count = 0, 0, 0
    for seconds, keys in life:
        now += seconds
        count = count if seen + TTL_S > now else 0
        passed = keys[: 3 - count]
        yield sorted(f"Row(k='{key}')" for key in passed)
        if passed:
            count, seen = count + len(passed), now


def counts(life: Sequence[tuple[int, str]], *, changed: bool = True) -> Iterator[list[str]]:
    """Yields the counts of each batch; a key that was not seen for long begins anew."""
    now, known = 0, dict[str, tuple[int, int]]()
    for seconds, keys in life:
        now += seconds
        for key in keys:
            count, seen = known.get(key, (0, -TTL_S))
            known[key] = (count + 1 if seen + TTL_S > now else 1, now)
        there = {key for key, (_, seen) in known.items() if seen + TTL_S > now}
        shown = set(keys) if changed else there
        yield sorted(f"Row(k='{key}', count={known[key][0]})" for key in shown)


def first_seen(life: Sequence[tuple[int, str]]) -> Iterator[list[str]]:
    """Yields the keys of each batch that were not let through within the time to live."""
    now, known = 0, dict[str, int]()
    for seconds, keys in life:
        now += seconds
        new = [key for key in sorted(set(keys)) if known.get(key, -TTL_S) + TTL_S <= now]
        known.update(dict.fromkeys(new, now))
        yield [f"Row(k='{key}')" for key in new]


OPERATORS: Mapping[str, tuple[Callable[[DataFrame], DataFrame], Any, str]] = {
    "deduplication": (distinct, first_seen, "append"),
    "deduplication within the watermark": (distinct_for_days, first_seen, "append"),
    "aggregation": (counted, counts, "update"),
    "applyInPandasWithState": (counted_in_python, counts, "update"),
    "limit": (limited, limits, "append"),
    "session window": (sessions, partial(counts, changed=False), "complete"),
}


ROWS = {
    "deduplication": ("dropDuplicates",),
    "deduplication within the watermark": ("dropDuplicatesWithinWatermark",),
    "aggregation": ("aggregation", "update mode"),
    "applyInPandasWithState": ("applyInPandasWithState", "NoTimeout"),
    "limit": ("limit",),
    "session window": ("session windows", "complete mode"),
}
"""Rows of the operators in the table of docs/compatibility.md."""


_ONE_PARTITION = pytest.mark.compatibility(
    refused={"4.0": ("ChekpointInfo length: 1", "its format 2 asserts more than one partition")}
)


def _cell(version: str, name: str) -> Any:
    column = pytest.mark.compatibility(*ROWS[name], column=compatibility.TIME_TO_LIVE)
    refused = [_ONE_PARTITION] if (version, name) == ("2", "limit") else []
    return pytest.param(version, name, marks=[column, *refused])


@pytest.fixture
def server(shared_redis_server: RedisServer) -> Iterator[Redis]:
    with Redis.from_url(shared_redis_server.url) as client:
        client.flushdb()
        yield client


@pytest.mark.parametrize(
    ("version", "name"), [_cell(version, name) for version in ("1", "2") for name in OPERATORS]
)
@pytest.mark.compatibility("time to live", "{name}, checkpoint format {version}")
def test_state_expires(
    streams: Streams,
    server: Redis,
    redis_conf: Callable[..., None],
    name: str,
    version: str,
) -> None:
    build, expected, mode = OPERATORS[name]
    redis_conf({"stateTtl": f"{TTL_S}s"})
    lives = Lives(streams, server, build)
    with kept(streams.spark, FORMAT, EMPTY_BATCHES):
        streams.spark.conf.set(FORMAT, version)
        streams.spark.conf.set(EMPTY_BATCHES, "false")
        found = [lives.batch(seconds, keys, mode=mode) for seconds, keys in LIFE]
    assert found == list(expected(LIFE))


def test_window_that_expires_before_its_watermark_is_never_emitted(
    streams: Streams, server: Redis, redis_conf: Callable[..., None]
) -> None:
    def closed(frame: DataFrame) -> DataFrame:
        windows = frame.withWatermark("ts", "2 minutes").groupBy("k", sf.window("ts", "1 minute"))
        return windows.count().select("k")

    assert passed_on(streams, server, redis_conf, closed, mode="append") == {"b"}


def test_timeout_of_an_expired_group_does_not_fire(
    streams: Streams, server: Redis, redis_conf: Callable[..., None]
) -> None:
    def wait(
        key: tuple[str], parts: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            state.remove()
            yield pd.DataFrame({"k": [key[0]]})
        else:
            newest = max(part["ts"].max() for part in parts)
            state.update((1,))
            state.setTimeoutTimestamp(int(newest.timestamp() * 1000) + 150_000)

    def waiting(frame: DataFrame) -> DataFrame:
        groups = frame.withWatermark("ts", "1 second").groupBy("k")
        return groups.applyInPandasWithState(
            wait, "k string", "n long", "update", GroupStateTimeout.EventTimeTimeout
        )

    assert passed_on(streams, server, redis_conf, waiting, mode="update") == {"b"}


def passed_on(
    streams: Streams,
    server: Redis,
    redis_conf: Callable[..., None],
    build: Callable[[DataFrame], DataFrame],
    *,
    mode: str,
) -> set[str]:
    """Returns the keys that a query returns whose first key expires before its second one comes."""
    redis_conf({"stateTtl": f"{TTL_S}s"})
    lives = Lives(streams, server, build)
    with kept(streams.spark, EMPTY_BATCHES):
        streams.spark.conf.set(EMPTY_BATCHES, "false")
        found = lives.batch(0, "a", mode=mode)
        found += lives.batch(TTL_S + 10, "b", mode=mode)
        for key in "cdef":
            found += lives.batch(0, key, mode=mode)
    return {row.split("'")[1] for row in found}


def test_batch_that_runs_again_returns_the_same_rows(
    streams: Streams, server: Redis, redis_conf: Callable[..., None]
) -> None:
    redis_conf({"stateTtl": f"{TTL_S}s"})
    lives = Lives(streams, server, counted)
    lives.batch(0, "ab")
    shift(server, TTL_S + 10)
    lives.add("a")
    collected: list[list[str]] = []

    def fail(batch: DataFrame, _: int) -> None:
        collected.append([str(row) for row in batch.collect()])
        raise RuntimeError("the sink failed")

    writer = lives.frame().writeStream.outputMode("update").foreachBatch(fail)
    checkpoint = str(streams.checkpoint("query"))
    with pytest.raises(StreamingQueryException, match="the sink failed"):
        run_to_end(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start)
    assert collected == [["Row(k='a', count=1)"]]
    # Without its first attempt the batch would be earlier than the end of the row.
    shift(server, -TTL_S - 10, below=1)
    lives.again()
    assert lives.output[1] == collected[0]


def test_rows_from_before_the_option_live_from_its_first_batch_on(
    streams: Streams, server: Redis, redis_conf: Callable[..., None]
) -> None:
    lives = Lives(streams, server, counted)
    lives.batch(0, "ab")
    lives.batch(0, "a")
    redis_conf({"stateTtl": f"{TTL_S}s"})
    assert lives.batch(0, "a") == ["Row(k='a', count=3)"]
    assert lives.batch(TTL_S - 200, "a") == ["Row(k='a', count=4)"]
    assert lives.batch(210, "ab") == ["Row(k='a', count=5)", "Row(k='b', count=1)"]


def test_rows_that_are_left_stay_once_the_option_is_gone(
    streams: Streams, server: Redis, redis_conf: Callable[..., None]
) -> None:
    redis_conf({"stateTtl": f"{TTL_S}s"})
    lives = Lives(streams, server, counted)
    lives.batch(0, "ab")
    lives.batch(TTL_S + 10, "c")
    streams.spark.conf.unset(PREFIX + "stateTtl")
    assert lives.batch(0, "ac") == ["Row(k='a', count=1)", "Row(k='c', count=2)"]
    assert lives.batch(0, "b") == ["Row(k='b', count=1)"]


def test_option_of_one_operator(
    streams: Streams, server: Redis, redis_conf: Callable[..., None]
) -> None:
    redis_conf({"stateTtl.1": f"{TTL_S}s"})

    lives = Lives(streams, server, counted)
    lives.batch(0, "a")
    assert lives.batch(0, "a") == ["Row(k='a', count=2)"]
    metas = [manifest_of(server, key) for key in server.scan_iter(match="*:m")]
    entries = [v for meta in metas for k, v in meta.items() if k[:2] == b"d:"]
    assert entries
    assert not any(parse_entry(v.decode()).time for v in entries)


def test_rows_keep_their_expiries_when_the_number_of_partitions_changes(
    streams: Streams, server: Redis, redis_conf: Callable[..., None]
) -> None:
    redis_conf({"stateTtl": f"{TTL_S}s"})
    lives = Lives(streams, server, counted)
    lives.batch(0, "ab")
    lives.batch(600, "b")
    redis_conf({"rescaleTo": "3"})
    shift(server, 600)
    lives.add("c")
    lives.again()
    # The change of partitions is a batch of its own.
    assert (lives.output[2], lives.output[3]) == ([], ["Row(k='c', count=1)"])
    shift(server, 500)
    lives.add("abc")
    lives.again()
    # The row of `a` had expired before the change, and that of `b` has meanwhile.
    counts_ = ["Row(k='a', count=1)", "Row(k='b', count=1)", "Row(k='c', count=2)"]
    assert lives.output[4] == counts_


def test_the_example_of_the_page(
    streams: Streams,
    server: Redis,
    redis_conf: Callable[..., None],
    shared_redis_server: RedisServer,
) -> None:
    redis_conf({"stateTtl": "1s"})  # restores the option after the test
    code = fenced(PAGE, "python")[0]
    clicks = streams.input("clicks", "id string, at timestamp")
    code = code.replace("redis://localhost:6379/0", shared_redis_server.url)
    code = code.replace('"clicks"', f'"{clicks.folder}"')
    scope: dict[str, Any] = {}
    with pytest.warns(RuntimeWarning, match="while a Spark session runs"):
        exec(code, scope)
    passed: list[list[str]] = []
    for days in (0, 3, 5):
        if days:
            shift(server, days * 86_400)
        clicks.add([{"id": "a", "at": "2024-01-01T10:00:00.000Z"}])
        output: Output = {}
        streams.run(scope["first"].select("id"), "page", mode="append", output=output)
        passed += output.values()
    assert passed == [["Row(id='a')"], [], ["Row(id='a')"]]


def test_readers_find_what_has_not_expired(
    streams: Streams,
    server: Redis,
    redis_conf: Callable[..., None],
    shared_redis_server: RedisServer,
) -> None:
    redis_conf({"stateTtl": f"{TTL_S}s"})
    lives = Lives(streams, server, counted)
    lives.batch(0, "ab")
    lives.batch(TTL_S + 10, "bc")
    shift(server, -TTL_S - 10, below=1)
    checkpoint = streams.checkpoint("query")
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    with redis_state.connect(shared_redis_server.url) as reader:
        state = reader.query(query).operator()
        rows = {row["k"]: row["count"] for row in map(dict, state.to_arrow(at=1).to_pylist())}
        assert rows == {"b": 1, "c": 1}
        assert state.get({"k": "a"}, at=1) is None
        assert state.get({"k": "a"}, at=0) == {"count": 1}
    for source in ("statestore", "redis_state"):
        options = (
            {"path": str(checkpoint)}
            if source == "statestore"
            else {"query": query, "url": shared_redis_server.url}
        )
        frame = streams.spark.read.format(source).options(**options).load()
        flat = frame.select("key.k", "value.count") if source == "statestore" else frame
        assert sorted((row["k"], row["count"]) for row in flat.collect()) == [("b", 1), ("c", 1)]


@pytest.mark.compatibility("time to live", "state reader, also with snapshotStartBatchId")
def test_state_reader_shows_versions_at_their_own_time_and_writes_nothing(
    streams: Streams, server: Redis, redis_conf: Callable[..., None]
) -> None:
    redis_conf({"stateTtl": f"{TTL_S}s"})
    lives = Lives(streams, server, counted)
    lives.batch(0, "ab")
    lives.batch(TTL_S + 10, "bc")
    shift(server, -TTL_S - 10, below=1)
    before = deltas_and_holders(server)
    of_batch = {0: [("a", 1), ("b", 1)], 1: [("b", 1), ("c", 1)]}
    for is_on in (True, False):
        if not is_on:
            streams.spark.conf.unset(PREFIX + "stateTtl")
        for batch, rows in of_batch.items():
            assert read_by_spark(streams, batchId=batch) == rows
            from_snapshot = [
                row
                for partition in (0, 1)
                for row in read_by_spark(
                    streams,
                    batchId=batch,
                    snapshotStartBatchId=0,
                    snapshotPartitionId=partition,
                )
            ]
            assert sorted(from_snapshot) == rows
    assert deltas_and_holders(server) == before
    redis_conf({"stateTtl": f"{TTL_S}s"})
    assert lives.batch(0, "bc") == ["Row(k='b', count=2)", "Row(k='c', count=2)"]


def read_by_spark(streams: Streams, **options: int) -> list[tuple[str, int]]:
    """Returns the counts that Spark's state reader finds."""
    read = streams.spark.read.format("statestore").options(**options)
    frame = read.load(str(streams.checkpoint("query"))).select("key.k", "value.count")
    return sorted((row["k"], row["count"]) for row in frame.collect())


def deltas_and_holders(server: Redis) -> dict[bytes, Mapping[bytes, bytes]]:
    """Returns the fields of each partition that change with a write, or with another holder."""
    return {
        key: {
            name: value
            for name, value in manifest_of(server, key).items()
            if name in (b"e", b"r") or name[:2] == b"d:"
        }
        for key in server.scan_iter(match="*:m")
    }
