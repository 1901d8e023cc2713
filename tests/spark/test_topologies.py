"""Queries on a cluster and behind sentinels, whose servers fail and whose slots move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import redis_state
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.config import parse
from redis_state.ids import PartitionId, StoreId
from redis_state.maintain.purge import purge
from tests.spark.streams import Streams
from tests.spark.test_checkpoints import Job
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinel import SentinelSet
from tests.support.tls import Certificates, make_certificates

pytestmark = pytest.mark.spark

PREFIX = "spark.sql.streaming.stateStore.redis."
# An election takes seconds, and more where two cores run nine processes.
DEADLINE = "60s"
AUTHORITY = "tls.caFile"


@pytest.fixture
def use_url(spark: SparkSession) -> Iterator[Callable[..., None]]:
    """Sends the queries of one test elsewhere."""
    names = [PREFIX + "url", PREFIX + "deadline"]
    before = {name: str(spark.conf.get(name)) for name in names}

    def use(url: str, *, tls: Certificates | None = None) -> None:
        spark.conf.set(PREFIX + "url", url)
        spark.conf.set(PREFIX + "deadline", DEADLINE)
        if tls is not None:
            spark.conf.set(PREFIX + AUTHORITY, str(tls.authority))

    yield use
    for name, value in before.items():
        spark.conf.set(name, value)
    spark.conf.unset(PREFIX + "durability")
    spark.conf.unset(PREFIX + AUTHORITY)


@pytest.fixture
def job(streams: Streams) -> Job:
    return Job(streams)


def run(job: Job, batches: int) -> None:
    job.feed(batches)
    job.run()
    job.check()


def gen_of(url: str, **options: Any) -> str:
    with redis_state.connect(url, deadline=DEADLINE, **options) as reader:
        (query,) = reader.queries()
    return query.gen


def meta_of(url: str, *, partition: int = 0, **options: Any) -> str:
    return keys.meta(PartitionId(StoreId(gen_of(url, **options), 0, "default", ""), partition))


def read(url: str, **options: Any) -> dict[str, dict[str, object]]:
    with redis_state.connect(url, deadline=DEADLINE, **options) as reader:
        rows = reader.query(gen_of(url, **options)).operator(0).items()
        return {key["k"]: value for key, value in rows}


def test_query_on_a_cluster_with_moving_slots_is_read_and_purged(
    job: Job, use_url: Callable[..., None]
) -> None:
    with RedisCluster(masters=2) as cluster:
        use_url(cluster.url)
        run(job, 3)
        for partition in (0, 1):
            meta = meta_of(cluster.url, partition=partition)
            cluster.move_slot(meta, to=1 - cluster.owner_of(meta))
        run(job, 3)
        assert len(read(cluster.url)) == 5
        client = Client(parse({"url": cluster.url, "deadline": DEADLINE}))
        purge(client, gen_of(cluster.url))
        client.close()
        assert cluster.keys() == []


def test_query_continues_after_a_cluster_master_fails(
    job: Job, use_url: Callable[..., None]
) -> None:
    with RedisCluster(masters=3, replicas=1) as cluster:
        use_url(cluster.url)
        run(job, 2)
        failing = cluster.owner_of(meta_of(cluster.url))
        with cluster.masters[failing].client() as direct:
            assert direct.wait(1, 10_000) == 1
        cluster.masters[failing].kill()
        run(job, 2)
        assert len(read(cluster.url)) == 5


def lose_the_master(sentinels: SentinelSet) -> None:
    """Kills it once its replica has everything."""
    sentinels.await_replicas()
    with sentinels.servers[0].client() as direct:
        direct.set("last", "1")
        assert direct.wait(1, 10_000) == 1
    sentinels.servers[0].kill()


def test_query_continues_after_a_sentinel_fail_over(job: Job, use_url: Callable[..., None]) -> None:
    with SentinelSet() as sentinels:
        use_url(sentinels.url)
        run(job, 2)
        lose_the_master(sentinels)
        run(job, 2)
        assert len(read(sentinels.url)) == 5


def test_replicated_commit_survives_the_master(
    job: Job, use_url: Callable[..., None], spark: SparkSession
) -> None:
    with SentinelSet() as sentinels:
        use_url(sentinels.url)
        spark.conf.set(PREFIX + "durability", "replicas:1")
        run(job, 2)
        # Nobody waits for the replica here: each commit has.
        with sentinels.servers[0].client() as direct:
            assert direct.info("commandstats")["cmdstat_wait"]["calls"] > 0
        sentinels.servers[0].kill()
        spark.conf.set(PREFIX + "durability", "none")
        run(job, 1)
        assert len(read(sentinels.url)) == 5


def test_tls_query_continues_after_a_sentinel_fail_over(
    job: Job, use_url: Callable[..., None], tmp_path: Path
) -> None:
    tls = make_certificates(tmp_path)
    with SentinelSet(tls=tls) as sentinels:
        use_url(sentinels.url, tls=tls)
        run(job, 1)
        lose_the_master(sentinels)
        run(job, 1)


def test_tls_query_continues_while_slots_move(
    job: Job, use_url: Callable[..., None], tmp_path: Path
) -> None:
    tls = make_certificates(tmp_path)
    with RedisCluster(masters=2, tls=tls) as cluster:
        use_url(cluster.url, tls=tls)
        run(job, 1)
        options = {AUTHORITY: str(tls.authority)}
        for partition in (0, 1):
            meta = meta_of(cluster.url, partition=partition, **options)
            cluster.move_slot(meta, to=1 - cluster.owner_of(meta))
        run(job, 1)
        assert len(read(cluster.url, **options)) == 5
