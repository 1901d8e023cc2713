"""State with a time to live: each operator against a plain computation with expiry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from redis import Redis

import redis_state
from redis_state.format.entry import parse_entry
from tests.spark.streams import FORMAT, Input, Output, Streams, run_to_end
from tests.support.pages import fenced
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

PAGE = Path(__file__).resolve().parents[2] / "docs" / "time-to-live.md"
TTL_S = 1000
EVENTS = "k string, v long, ts timestamp"
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


def shift(server: Redis, seconds: int, *, below: int = 0) -> None:
    """Moves the time of the newest version of each partition, or of one below it."""
    for meta in server.scan_iter(match="*:m"):
        manifest = _manifest(server, meta)
        wanted = int(manifest[b"l"]) - below
        for field, text in manifest.items():
            if field[:2] not in (b"d:", b"s:") or int(field.split(b":")[1]) != wanted:
                continue
            entry = parse_entry(text.decode())
            words = text.decode().split(" ")
            assert entry.time, "a version of a store with a time to live has no time"
            words[-2] = str(entry.time + seconds)
            server.hset(meta, field, " ".join(words))


def _manifest(server: Redis, key: bytes) -> Mapping[bytes, bytes]:
    return cast("Mapping[bytes, bytes]", server.hgetall(key))


class Lives:
    """Runs batches of one query, with time in between."""

    def __init__(self, streams: Streams, server: Redis, build: Callable[[DataFrame], DataFrame]):
        self._streams, self._server, self._build = streams, server, build
        self._input: Input = streams.input("in", EVENTS)
        self.output: Output = {}
        self._batches = 0

    def batch(self, seconds: int, keys: str, *, mode: str = "update") -> list[str]:
        """Returns the output of the next batch, which runs so many seconds later."""
        if seconds:
            shift(self._server, seconds)
        self.add(keys)
        self.again(mode=mode)
        return self.output[self._batches - 1]

    def add(self, keys: str) -> None:
        """Adds the rows of the next batch."""
        time = f"2024-01-01T10:{self._batches:02d}:00.000Z"
        self._input.add([{"k": key, "v": self._batches, "ts": time} for key in keys])
        self._batches += 1

    def frame(self) -> DataFrame:
        """The query."""
        return self._build(self._input.stream(self._streams.spark))

    def again(self, *, mode: str = "update") -> None:
        """Starts the query until nothing is left to do."""
        self._streams.run(self.frame(), "query", mode=mode, output=self.output)


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


@pytest.fixture
def server(shared_redis_server: RedisServer) -> Iterator[Redis]:
    with Redis.from_url(shared_redis_server.url) as client:
        client.flushdb()
        yield client


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("version", ["1", "2"])
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
    metas = [_manifest(server, key) for key in server.scan_iter(match="*:m")]
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


def test_joins_are_refused(
    streams: Streams, server: Redis, redis_conf: Callable[..., None]
) -> None:
    redis_conf({"stateTtl": f"{TTL_S}s"})

    def joined(frame: DataFrame) -> DataFrame:
        left = frame.withWatermark("ts", "1 hour")
        return left.alias("l").join(left.alias("r"), sf.expr("l.k = r.k and l.ts = r.ts"))

    lives = Lives(streams, server, joined)
    with pytest.raises(StreamingQueryException) as caught:
        lives.batch(0, "a", mode="append")
    assert "is a join, which numbers the rows of a key" in str(caught.value)


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
