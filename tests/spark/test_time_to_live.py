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
from tests.spark.streams import FORMAT, Output, Streams, run_to_end
from tests.support.pages import fenced
from tests.support.redis_server import RedisServer
from tools import compatibility

pytestmark = pytest.mark.spark

PAGE = Path(__file__).resolve().parents[2] / "docs" / "time-to-live.md"
TTL_S = 1000
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
    "aggregation": (counted, counts, "update"),
    "applyInPandasWithState": (counted_in_python, counts, "update"),
    "limit": (limited, limits, "append"),
    "session window": (sessions, partial(counts, changed=False), "complete"),
}


ROWS = {
    "deduplication": ("dropDuplicates",),
    "aggregation": ("aggregation", "update mode"),
    "applyInPandasWithState": ("applyInPandasWithState", "NoTimeout"),
    "limit": ("limit",),
    "session window": ("session windows", "complete mode"),
}
"""Rows of the operators in the table of docs/compatibility.md."""


def _column(name: str) -> pytest.MarkDecorator:
    return pytest.mark.compatibility(*ROWS[name], column=compatibility.TIME_TO_LIVE)


@pytest.fixture
def server(shared_redis_server: RedisServer) -> Iterator[Redis]:
    with Redis.from_url(shared_redis_server.url) as client:
        client.flushdb()
        yield client


@pytest.mark.parametrize("name", [pytest.param(name, marks=_column(name)) for name in OPERATORS])
@pytest.mark.parametrize("version", ["1", "2"])
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
    streams.spark.conf.set(FORMAT, version)
    lives = Lives(streams, server, build)
    try:
        found = [lives.batch(seconds, keys, mode=mode) for seconds, keys in LIFE]
    finally:
        streams.spark.conf.unset(FORMAT)
    assert found == list(expected(LIFE))


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
    streams.spark.conf.unset("spark.sql.streaming.stateStore.redis.stateTtl")
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


def test_moved_rows_live_from_the_next_batch_on(
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
    # The row of `a` had expired before; that of `b` counts as written after the change.
    shift(server, TTL_S - 200)
    lives.add("ab")
    lives.again()
    assert lives.output[4] == ["Row(k='a', count=1)", "Row(k='b', count=3)"]


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
