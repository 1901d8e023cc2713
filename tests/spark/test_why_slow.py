"""Slow queries on Spark, each made slow in one way: `why_slow` names that way, and no other.

`tests/contract/test_why_slow.py` has the causes that need many executors or a long time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from redis_state import connect
from redis_state.reader import SlowCause, SlowCauseKind, Slowness
from tests.spark.streams import PREFIX, PROVIDER, REDIS, Row, Streams
from tests.support import tcp_proxy
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import kept, scala_object, unload_stores
from tests.support.tcp_proxy import Fault, TcpProxy

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("warm")]

BATCHES = 8
KEYS = 8
_MAINTENANCE = "spark.sql.streaming.stateStore.maintenanceInterval"
_PARTITIONS = "spark.sql.shuffle.partitions"
_WHOLE_STAGE = "spark.sql.codegen.wholeStage"
_DELAY_S = 0.02
_BUSY = "local n = 0; for i = 1, tonumber(ARGV[1]) do n = n + i end; return n"

Between = Callable[[], None]


def nothing() -> None:
    pass


def few(_batch: int) -> Sequence[Row]:
    return [{"k": f"k{key}"} for key in range(KEYS)]


def counts(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").count()


class Prepared:
    """Runs queries batch by batch, and asks why they are slow while they still run."""

    def __init__(self, spark: SparkSession, streams: Streams) -> None:
        self.spark = spark
        self.streams = streams

    def diagnosed(
        self,
        server: RedisServer,
        *,
        rows: Callable[[int], Sequence[Row]] = few,
        build: Callable[[DataFrame], DataFrame] = counts,
        batches: int = BATCHES,
        between: Between = nothing,
        partitions: int = 2,
        maintenance: str = "1h",
        url: str = "",
        **options: str,
    ) -> Slowness:
        """Runs a query and returns its diagnosis.

        Args:
            between: Called after each batch.
            url: Address for the query; the server's own for the diagnosis.
        """
        confs = {PREFIX + name: value for name, value in options.items()}
        confs |= {
            PREFIX + "url": url or server.url,
            _MAINTENANCE: maintenance,
            _PARTITIONS: str(partitions),
            _WHOLE_STAGE: "false",  # no batch is worth a compilation
            PROVIDER: REDIS,
        }
        with kept(self.spark, *confs), ExitStack() as stack:
            self.unload()
            stack.callback(self.unload)
            for name, value in confs.items():
                self.spark.conf.set(name, value)
            source = self.streams.input("events", "k string, v string")
            query = (
                build(source.stream(self.spark))
                .writeStream.queryName("slow")
                .outputMode("update")
                .option("checkpointLocation", str(self.streams.checkpoint("slow")))
                .format("noop")
                .start()
            )
            stack.callback(query.stop)
            for batch in range(batches):
                source.add(rows(batch))
                query.processAllAvailable()
                between()
            self.registry.beat(url or server.url)
            with connect(server.url) as reader:
                return reader.query("slow").why_slow()

    def unload(self) -> None:
        """Closes all stores of the process, which ends their maintenance."""
        unload_stores(self.spark)

    @property
    def registry(self) -> Any:
        return scala_object(self.spark, "org.apache.spark.sql.redisstate.executor.ExecutorRegistry")

    def forget_budget(self) -> None:
        """Drops the memory budget of the process; the next store makes one."""
        field = self.registry.getClass().getDeclaredField("budget")
        field.setAccessible(True)
        field.set(self.registry, None)


@pytest.fixture(scope="module")
def warm(
    spark: SparkSession,
    shared_redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Runs a query first: a JVM that has just begun is slow by itself."""
    streams = Streams(spark, tmp_path_factory.mktemp("warm"))
    Prepared(spark, streams).diagnosed(shared_redis_server)


@pytest.fixture
def prepared(spark: SparkSession, streams: Streams) -> Prepared:
    return Prepared(spark, streams)


OF_THE_MACHINE = {
    SlowCauseKind.EXECUTORS_BUSY,
    SlowCauseKind.SLOW_ROUND_TRIPS,
    SlowCauseKind.UNEVEN_PARTITIONS,
}
"""Causes that other work on this machine adds to any query."""


def causes(found: Slowness, *wanted: SlowCauseKind) -> list[SlowCause]:
    print(*found.times, *found.causes, *found.unknown, sep="\n")
    others = OF_THE_MACHINE - set(wanted)
    return [one for one in found.causes if one.kind not in others]


def kinds(found: Slowness) -> list[SlowCauseKind]:
    return [one.kind for one in causes(found)]


def test_healthy_query_has_no_cause(prepared: Prepared, redis_server: RedisServer) -> None:
    found = prepared.diagnosed(redis_server, maintenance="2s")
    assert kinds(found) == []
    assert [line for line in found.unknown if "a batch comes every" not in line] == []
    parts = [one.part for one in found.times]
    assert parts == ["open", "load", "miss", "task", "encode", "publish", "background"]
    assert sum(one.share for one in found.times) == pytest.approx(1)


def test_slow_network_is_the_cause(
    prepared: Prepared, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_proxy, "DELAY_S", _DELAY_S)
    with TcpProxy(redis_server.port) as proxy:
        proxy.set({Fault.DELAY: 1})
        found = prepared.diagnosed(redis_server, url=proxy.url)
    assert kinds(found) == [SlowCauseKind.SLOW_NETWORK]
    assert "at best" in causes(found)[0].found


@contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """Loads the server like another program, by scripts of some 100 ms each."""
    client = server.client()
    done = threading.Event()
    loops, took_s = 100_000, 0.0
    while took_s < 0.1:
        loops *= 2
        start = time.monotonic()
        client.eval(_BUSY, 0, str(loops))
        took_s = time.monotonic() - start

    def load() -> None:
        while not done.is_set():
            client.eval(_BUSY, 0, str(loops))

    thread = threading.Thread(target=load)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_server_that_others_load_is_the_cause(
    prepared: Prepared, redis_server: RedisServer
) -> None:
    with busy(redis_server):
        found = prepared.diagnosed(redis_server)
    assert kinds(found) == [SlowCauseKind.SERVER_BUSY]
    assert "eval" in causes(found)[0].found


def test_wait_for_a_slow_replica_is_the_cause(
    prepared: Prepared,
    redis_server: RedisServer,
    start_redis: Callable[..., RedisServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp_proxy, "DELAY_S", _DELAY_S)
    with TcpProxy(redis_server.port) as proxy:
        replica = start_redis(options={"replicaof": f"127.0.0.1 {proxy.port}"}).client()
        end = time.monotonic() + 30
        while replica.info("replication")["master_link_status"] != "up":
            assert time.monotonic() < end, "the replica does not follow"
            time.sleep(0.05)
        proxy.set({Fault.DELAY: 1})
        found = prepared.diagnosed(redis_server, durability="replicas:1")
    assert kinds(found) == [SlowCauseKind.WAITING_FOR_DURABILITY]


def test_stores_unloaded_after_each_batch_are_the_cause(
    prepared: Prepared, redis_server: RedisServer
) -> None:
    found = prepared.diagnosed(redis_server, between=prepared.unload)
    assert kinds(found) == [SlowCauseKind.COLD_LOADS]
    assert "closed and made anew" in causes(found)[0].found


def test_loads_without_snapshots_are_the_cause(
    prepared: Prepared, redis_server: RedisServer
) -> None:
    found = prepared.diagnosed(redis_server, between=prepared.unload, batches=26)
    assert kinds(found) == [SlowCauseKind.COLD_LOADS, SlowCauseKind.LONG_LOADS]


@pytest.fixture
def own_budget(prepared: Prepared) -> Iterator[None]:
    prepared.unload()
    prepared.forget_budget()
    yield
    prepared.unload()
    prepared.forget_budget()


@pytest.mark.usefixtures("own_budget")
def test_local_memory_that_is_too_small_is_the_cause(
    prepared: Prepared, redis_server: RedisServer
) -> None:
    def rows(batch: int) -> Sequence[Row]:
        of_all = range(6000) if not batch else range(batch % 7, 6000, 7)
        return [{"k": f"k{key}", "v": os.urandom(200).hex()} for key in of_all]

    found = prepared.diagnosed(
        redis_server,
        rows=rows,
        build=lambda rows: rows.groupBy("k").agg(functions.max("v")),
        localMemory="1m",
        maintenance="1s",
    )
    assert kinds(found) == [SlowCauseKind.SMALL_MEMORY]


def test_many_partitions_with_few_rows_are_the_cause(
    prepared: Prepared, redis_server: RedisServer
) -> None:
    found = prepared.diagnosed(redis_server, partitions=40, batches=5)
    assert kinds(found) == [SlowCauseKind.MANY_PARTITIONS]


def test_large_values_are_the_cause(prepared: Prepared, redis_server: RedisServer) -> None:
    def rows(_batch: int) -> Sequence[Row]:
        return [{"k": f"k{key}", "v": os.urandom(500_000).hex()} for key in range(KEYS)]

    found = prepared.diagnosed(
        redis_server, rows=rows, build=lambda rows: rows.groupBy("k").agg(functions.max("v"))
    )
    assert kinds(found) == [SlowCauseKind.LARGE_VALUES]


def test_connections_that_break_are_the_cause(
    prepared: Prepared, redis_server: RedisServer
) -> None:
    with TcpProxy(redis_server.port) as proxy:
        proxy.set({Fault.CUT: 0.25})
        found = prepared.diagnosed(redis_server, url=proxy.url, deadline="60s")
    assert kinds(found) == [SlowCauseKind.RETRIES]


def sleeping(seconds: Callable[[str], float]) -> Callable[[DataFrame], DataFrame]:
    """Counts by a Python function that sleeps for each key."""

    def count(
        key: tuple[str], groups: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        time.sleep(seconds(key[0]))
        total = sum(map(len, groups)) + (state.get[0] if state.exists else 0)
        state.update((total,))
        yield pd.DataFrame({"k": [key[0]], "n": [total]})

    def build(rows: DataFrame) -> DataFrame:
        return rows.groupBy("k").applyInPandasWithState(
            count, "k string, n long", "n long", "update", GroupStateTimeout.NoTimeout
        )

    return build


def test_slow_python_function_is_the_cause(prepared: Prepared, redis_server: RedisServer) -> None:
    found = prepared.diagnosed(redis_server, build=sleeping(lambda _key: 0.4), batches=5)
    assert kinds(found) == [SlowCauseKind.OUTSIDE_THE_STORE]


def test_partition_that_takes_longer_is_the_cause(
    prepared: Prepared, redis_server: RedisServer
) -> None:
    found = prepared.diagnosed(
        redis_server, build=sleeping(lambda key: 0.9 if key == "k0" else 0), batches=5, partitions=4
    )
    (cause,) = causes(found, SlowCauseKind.UNEVEN_PARTITIONS)
    assert cause.kind is SlowCauseKind.UNEVEN_PARTITIONS
    assert len(cause.partitions) == 1
