"""Every step of docs/moving.md: its commands as real processes, its Python as it stands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import redis_state
from tests.spark.moving.test_moving import rows_of
from tests.spark.moving.test_moving_killed import confs_as_arguments
from tests.spark.streams import HDFS, REDIS, ROCKSDB, Output, Streams
from tests.spark.test_operators import EVENTS, events
from tests.support.pages import fenced
from tests.support.redis_server import RedisServer
from tests.upgrades.job import windows

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "moving.md"
URL = "redis://redis.example:6379/0"
LIMIT_S = 240
BATCHES = events(2)
blocks = partial(fenced, PAGE)


def commands() -> Iterator[tuple[list[str], list[str]]]:
    """The words of each command of the page, and the lines that it prints."""
    for block in blocks("console"):
        for part in re.split(r"^\$ redis-state ", block, flags=re.M)[1:]:
            first, *shown = part.replace("\\\n", "").splitlines()
            yield shlex.split(first), shown


class Place:
    """The page's folders, and its server."""

    def __init__(self, streams: Streams, url: str) -> None:
        self.streams, self.url = streams, url
        self.source = streams.input("events", EVENTS)
        self.fed = 0

    def named(self, text: str) -> str:
        return text.replace("/data/", f"{self.streams.checkpoint('')}/").replace(URL, self.url)

    def redis_state(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        given = [self.named(word) for word in words]
        spark = ["--master", "local[1]", *confs_as_arguments()]
        return subprocess.run(
            [sys.executable, "-m", "redis_state.cli.main", *given, *spark],
            env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def feed(self) -> None:
        self.source.add(BATCHES[self.fed][0])
        self.fed += 1

    def query(self, name: str, provider: str, output: Output) -> None:
        frame = windows([self.source.stream(self.streams.spark)])
        self.streams.run(frame, name, mode="append", provider=provider, output=output)


def shape(line: str) -> str:
    """Removes numbers, and the text behind `…` on the page."""
    return re.sub(r"\d[\d,]*", "N", line.partition(", …")[0])


@pytest.mark.usefixtures("spark")
def test_steps_of_the_page_move_a_query_in_and_out(
    streams: Streams,
    spark: SparkSession,
    redis_server: RedisServer,
    redis_conf: Callable[[dict[str, str]], None],
) -> None:
    redis_conf({"url": redis_server.url})
    place = Place(streams, redis_server.url)
    stays: Output = {}
    for _ in range(2):
        place.feed()
    place.query("stays", ROCKSDB, stays)
    moves: Output = {}
    place.query("orders", ROCKSDB, moves)
    place.query("adopted", HDFS, {})
    (look, shown), (leave, _) = commands()

    looked = place.redis_state(look)
    assert looked.returncode == 0, looked.stderr
    printed = [shape(line) for line in looked.stdout.splitlines()]
    # The page cuts the digest off.
    assert len(printed) == len(shown)
    for one, two in zip(printed, shown, strict=True):
        assert one.startswith(shape(two)), f"{one}\n{two}"
    assert not streams.checkpoint("orders-redis").exists()
    come = [word for word in look if word != "--dry-run"]
    moved = place.redis_state(come)
    assert moved.returncode == 0, moved.stderr
    assert "equal digests" in moved.stdout
    again = place.redis_state(come)
    assert again.returncode != 0
    assert "it has files already" in again.stderr

    place.feed()
    place.query("orders-redis", REDIS, moves)
    place.query("stays", ROCKSDB, stays)

    # In a job, into a folder of its own, and by one conf.
    call, configure = blocks("python")
    call = place.named(call).replace("orders-redis", "orders-called")
    exec(call, {"redis_state": redis_state, "spark": spark})
    called: Output = {}
    place.query("orders-called", REDIS, called)
    assert "adopt=True" in configure
    redis_conf({"adopt": "true"})
    adopted: Output = {}
    place.query("adopted", REDIS, adopted)

    left = place.redis_state([*leave, "--force"])
    assert left.returncode == 0, left.stderr
    place.feed()
    place.query("orders-rocksdb", ROCKSDB, moves)
    place.query("stays", ROCKSDB, stays)
    assert rows_of(moves) == rows_of(stays)
    assert all(stays[batch] == rows for batch, rows in called.items())
    # An adoption takes a batch of its own, so that the numbers are others from there on.
    assert rows_of(adopted) == rows_of(called)


def test_refused_move_has_an_exit_code_and_advice(
    streams: Streams, redis_server: RedisServer
) -> None:
    place = Place(streams, redis_server.url)
    place.feed()
    place.query("orders", ROCKSDB, {})
    (look, _), _ = commands()
    newest = max(int(one.name) for one in (streams.checkpoint("orders") / "commits").glob("[0-9]*"))
    commit = streams.checkpoint("orders") / "commits" / str(newest)
    text = commit.read_text()
    commit.unlink()
    refused = place.redis_state(look)
    assert refused.returncode != 0
    assert f"batch {newest} is planned but not committed" in refused.stderr
    assert "Nothing was changed" in refused.stderr
    commit.write_text(text)
    with redis_server.client() as client:
        client.config_set("maxmemory", "100kb")
        full = place.redis_state(look)
        client.config_set("maxmemory", "0")
    assert full.returncode != 0, "there is no room for the state"
    assert "maxmemory" in full.stderr
    assert not streams.checkpoint("orders-redis").exists()
