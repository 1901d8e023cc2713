"""Python's coordinator lists the executors that serve a query of Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from redis_state.coordinator import Instance, StateStoreCoordinator
from redis_state.ids import PartitionId
from redis_state.live import Reader
from redis_state.maintain import Policy, maintain_checkpoint
from redis_state.protocol.instances import Totals, find_counted
from tests.interop.test_reading_what_spark_wrote import SCHEMA, rows_of
from tests.spark.streams import PROVIDER, REDIS, Streams
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark


def documented_members() -> set[str]:
    """Members of `recent`, by the table of docs/format.md."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "format.md").read_text("utf-8")
    table = page.partition("The member `recent`")[2].partition("\n\n`fenced")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([A-Za-z]+)`", row.split("|")[1])}


def test_the_executors_of_a_running_query_are_listed(streams: Streams, reader: Reader) -> None:
    source = streams.input("in", SCHEMA)
    source.add(rows_of(0))
    seen: list[dict[PartitionId, Instance]] = []
    counted: list[Totals] = []
    jvm: Any = streams.spark._jvm
    registry = jvm.org.apache.spark.sql.redisstate.executor.ExecutorRegistry
    coordinator = StateStoreCoordinator(reader.client, threaded=False)

    def look(batch: DataFrame, _batch_id: int) -> None:
        batch.collect()
        # The executor's next heartbeat, which would come within twenty seconds.
        registry.beat()
        (gen,) = [info.gen for info in reader.queries() if info.name == "listed"]
        seen.append(coordinator.instances(gen))
        # The run that holds the partitions stays registered.
        report = maintain_checkpoint(reader.client, gen, policy=Policy("worker"))
        assert (report.deactivated, report.problems) == (0, [])
        assert coordinator.instances(gen) == seen[-1]
        totals = find_counted(reader.client, [gen])[0].totals
        counted.extend(totals.values())

    streams.spark.conf.set(PROVIDER, REDIS)
    query = (
        source.stream(streams.spark)
        .groupBy("k")
        .count()
        .writeStream.queryName("listed")
        .outputMode("update")
        .option("checkpointLocation", str(streams.checkpoint("listed")))
        .foreachBatch(look)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    (found,) = seen
    assert sorted(id_.partition for id_ in found) == [0, 1]
    host = streams.spark.conf.get("spark.driver.host")
    assert host is not None
    assert set(found.values()) == {Instance(host, "driver", str(query.runId))}
    assert {totals.instance for totals in counted} == set(found.values())
    names = {"opens", "openMs", "loads", "loadMs", "commits", "commitMs"}
    names |= {"rowsWritten", "rowsRemoved", "bytesSent"}
    names |= {"fileReads", "fileReadMs", "fileBytes", "movedBytes", "failedMoves"}
    names |= {"roomWaits", "roomWaitMs"}
    assert [set(totals.counts) for totals in counted] == [names, names]
    assert [totals.counts["commits"] for totals in counted] == [1, 1]
    for totals in counted:
        assert totals.recent is not None
        assert set(totals.recent) | {"openTimes"} <= documented_members()
        assert (totals.recent["commits"], totals.recent["versions"]) == (1, 1)
        assert sum(totals.open_times) >= 1


def test_a_state_reader_leaves_the_instances_of_its_query(
    streams: Streams, reader: Reader, shared_redis_server: RedisServer
) -> None:
    source = streams.input("in", SCHEMA)
    source.add(rows_of(0))
    jvm: Any = streams.spark._jvm
    registry = jvm.org.apache.spark.sql.redisstate.executor.ExecutorRegistry
    coordinator = StateStoreCoordinator(reader.client, threaded=False)
    checkpoint = str(streams.checkpoint("read"))
    streams.spark.conf.set(PROVIDER, REDIS)
    counted = source.stream(streams.spark).groupBy("k").count()
    writer = counted.writeStream.queryName("read").outputMode("update").format("noop")
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        query.processAllAvailable()
        assert streams.spark.read.format("statestore").load(checkpoint).count() > 0
        (gen,) = [info.gen for info in reader.queries() if info.name == "read"]
        with shared_redis_server.client() as client:
            client.delete(*client.scan_iter(f"*{gen}*:i:*", count=1000))
        registry.beat()
        found = coordinator.instances(gen)
        assert sorted(id_.partition for id_ in found) == [0, 1]
        assert {instance.run_id for instance in found.values()} == {str(query.runId)}
    finally:
        query.stop()
