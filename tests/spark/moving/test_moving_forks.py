"""Forks, and parents that have pins, whose state moves: each goes on as the other one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

import redis_state
from redis_state.errors import ConflictError
from redis_state.files import folder_at
from redis_state.live import Reader
from redis_state.maintain.checkpoint import maintain_checkpoint
from redis_state.maintain.recall import expire
from redis_state.maintain.report import Policy
from redis_state.recovery.marker import gen_of
from tests.spark.moving.test_rescale import SHUFFLE, Parts, confs
from tests.spark.streams import FORMAT, PREFIX, REDIS, ROCKSDB, Streams
from tests.support.redis_server import RedisServer

__all__ = ["confs"]
pytestmark = [pytest.mark.spark, pytest.mark.slow]

FAMILY = "counts"
RedisConf = Callable[[dict[str, str]], None]


def forked(parent: Parts, url: str) -> Parts:
    """Returns a fork that reads what its parent reads; forgets the output of both up to there."""
    folders = (str(parent.streams.checkpoint(name)) for name in ("parent", "fork"))
    redis_state.fork(url, next(folders), to=next(folders))
    parent.output.clear()
    made = Parts.__new__(Parts)
    made.__dict__ |= parent.__dict__ | {"output": {}}
    return made


def moved(query: Parts, name: str, how: str, redis_conf: RedisConf) -> str:
    """Moves the state of a query; returns the name of the checkpoint that it has then."""
    if how == "rescaleTo":
        redis_conf({"rescaleTo": "5"})
        return name
    if how == "rescale":
        query.rescale(name, "moved", 5)
        return "moved"
    there, to = (str(query.streams.checkpoint(one)) for one in (name, "moved"))
    redis_state.migrate(query.streams.spark, there, to, to="rocksdb")
    query.provider = ROCKSDB
    return "moved"


@pytest.mark.usefixtures("confs")
@pytest.mark.parametrize("format_", ["1", "2"])
@pytest.mark.parametrize("whose", ["parent", "fork"])
@pytest.mark.parametrize("how", ["migrate", "rescale", "rescaleTo"])
def test_parent_and_fork_are_equal_after_one_has_moved(
    streams: Streams,
    spark: SparkSession,
    shared_redis_server: RedisServer,
    redis_conf: RedisConf,
    how: str,
    whose: str,
    format_: str,
) -> None:
    url = shared_redis_server.url
    spark.conf.set(FORMAT, format_)
    spark.conf.set(SHUFFLE, "2")
    parent = Parts(streams, FAMILY)
    parent.run("parent", 2)
    queries = {"parent": parent, "fork": forked(parent, url)}
    gen = gen_of(folder_at(str(streams.checkpoint("parent"))))
    other = "fork" if whose == "parent" else "parent"
    goes, stays = queries[whose], queries[other]
    name = moved(goes, whose, how, redis_conf)
    goes.run(name, 1)
    with Reader(redis_state.config.parse({"url": url})) as reader:
        for _ in range(2):
            maintain_checkpoint(reader.client, gen, policy=Policy("test"))
        with pytest.raises(ConflictError, match="others read its state: fork"):
            expire(reader.client, gen)
    if how == "rescaleTo":
        spark.conf.unset(f"{PREFIX}rescaleTo")
    stays.run(other, 0)
    assert last_counts(goes) == last_counts(stays)
    assert (goes.provider, stays.provider) == (ROCKSDB if how == "migrate" else REDIS, REDIS)
    if how == "migrate":
        back = [str(streams.checkpoint(one)) for one in ("moved", "back")]
        redis_state.migrate(spark, *back, to=url)
        goes.provider = REDIS
        for query, at in ((goes, "back"), (stays, other)):
            query.run(at, int(query is goes))
        assert last_counts(goes) == last_counts(stays)


def last_counts(query: Parts) -> set[str]:
    """Returns the newest row of each key."""
    found: dict[str, str] = {}
    for _, rows in sorted(query.output.items()):
        for row in rows:
            found[str(row).rpartition(",")[0]] = str(row)
    assert found
    return set(found.values())
