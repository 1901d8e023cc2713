"""Rows with a time to live whose state moves: to other partitions, folders and providers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis

import redis_state
from tests.spark.lives import Lives, shift
from tests.spark.streams import HDFS, PREFIX, Streams
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

TTL_S = 1000


@pytest.fixture
def server(shared_redis_server: RedisServer) -> Iterator[Redis]:
    with Redis.from_url(shared_redis_server.url) as client:
        client.flushdb()
        yield client


@pytest.fixture
def lives(streams: Streams, server: Redis, redis_conf: Callable[[dict[str, str]], None]) -> Lives:
    """A query with rows of `a`, which expire at 1000, and of `b`, which expire at 1600."""
    redis_conf({"stateTtl": f"{TTL_S}s"})
    made = Lives(streams, server, lambda frame: frame.groupBy("k").count())
    assert made.batch(0, "ab") == ["Row(k='a', count=1)", "Row(k='b', count=1)"]
    assert made.batch(600, "b") == ["Row(k='b', count=2)"]
    return made


def places(streams: Streams) -> tuple[str, str]:
    return str(streams.checkpoint("query")), str(streams.checkpoint("moved"))


@pytest.mark.parametrize("to", ["redis", "rescaled"])
def test_rows_in_redis_keep_their_expiries(
    streams: Streams,
    server: Redis,
    shared_redis_server: RedisServer,
    lives: Lives,
    to: str,
) -> None:
    shift(server, 500)
    if to == "redis":
        moved = redis_state.migrate(streams.spark, *places(streams), to=shared_redis_server.url)
    else:
        moved = redis_state.rescale(streams.spark, *places(streams), 3)
    assert moved.rows == 1
    lives.name = "moved"
    assert lives.batch(0, "a") == ["Row(k='a', count=1)"]
    assert lives.batch(400, "b") == ["Row(k='b', count=3)"]
    assert lives.batch(700, "ab") == ["Row(k='a', count=1)", "Row(k='b', count=4)"]


def test_another_provider_gets_the_rows_that_have_not_expired(
    streams: Streams, server: Redis, lives: Lives
) -> None:
    shift(server, 500)
    assert redis_state.migrate(streams.spark, *places(streams), to="hdfs-backed").rows == 1
    lives.name, lives.provider = "moved", HDFS
    assert lives.batch(0, "ab") == ["Row(k='a', count=1)", "Row(k='b', count=3)"]


@pytest.mark.parametrize("is_on", [True, False], ids=["with the option", "without it"])
@pytest.mark.parametrize("mode", ["merge", "replace"])
def test_given_rows_count_as_written_when_they_are_given(
    streams: Streams, lives: Lives, mode: Any, *, is_on: bool
) -> None:
    rows = streams.spark.createDataFrame([("c", 7), ("d", 7)], "k string, count long")
    if not is_on:
        streams.spark.conf.unset(PREFIX + "stateTtl")
    redis_state.bootstrap(streams.spark, rows, *places(streams), mode=mode)
    streams.spark.conf.set(PREFIX + "stateTtl", f"{TTL_S}s")
    lives.name = "moved"
    assert lives.batch(0, "e") == ["Row(k='e', count=1)"]
    # Without the option in its session, a merge makes rows that are there as new as the next batch.
    is_new = mode == "merge" and not is_on
    assert lives.batch(500, "a") == [f"Row(k='a', count={2 if is_new else 1})"]
    assert lives.batch(400, "c") == ["Row(k='c', count=8)"]
    assert lives.batch(200, "d") == ["Row(k='d', count=1)"]
