"""Checkpoint format 2: Spark names state versions by unique ids, which its commit log holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupStateTimeout

import redis_state
from redis_state import keys
from redis_state.ids import PartitionId, StoreId
from redis_state.live import Reader
from tests.spark import test_operators as operators
from tests.spark import test_transform_with_state as transform
from tests.spark.streams import FORMAT, HDFS, REDIS, Output, Streams
from tests.spark.test_checkpoints import NAME, Job, batch, counted, expected, failure
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark


@contextmanager
def format_of(spark: SparkSession, number: str) -> Iterator[None]:
    before = spark.conf.get(FORMAT)
    spark.conf.set(FORMAT, number)
    try:
        yield
    finally:
        spark.conf.set(FORMAT, str(before))


def logged_ids(checkpoint: Path, batch_id: int) -> dict[str, list[list[str]]]:
    """Ids of the stores in a batch's commit log, by operator and partition."""
    lines = (checkpoint / "commits" / str(batch_id)).read_text().splitlines()
    found: dict[str, list[list[str]]] = json.loads(lines[1]).get("stateUniqueIds") or {}
    return found


class ById(Streams):
    """HDFSBacked has no format 2; every other query gets it, and logs an id for each state."""

    def run(
        self,
        frame: DataFrame,
        name: str,
        *,
        mode: str = "update",
        provider: str = REDIS,
        output: Output | None = None,
    ) -> StreamingQuery:
        with format_of(self.spark, "1" if provider == HDFS else "2"):
            query = super().run(frame, name, mode=mode, provider=provider, output=output)
        if provider == REDIS:
            logged = logged_ids(self.checkpoint(name), last_batch(self.checkpoint(name)))
            assert logged
            assert all(uid for one in logged.values() for ids in one for uid in ids)
        return query


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Iterator[Streams]:
    with format_of(spark, "2"):
        yield ById(spark, tmp_path)


@pytest.fixture
def job(streams: Streams) -> Job:
    return Job(streams)


@pytest.fixture
def reader(shared_redis_server: RedisServer) -> Iterator[Reader]:
    with redis_state.connect(shared_redis_server.url) as reader:
        yield reader


Case = Callable[[Streams], None]
EVENT_TIME = GroupStateTimeout.EventTimeTimeout
CASES: dict[str, Case] = {
    "aggregation, update mode": lambda s: operators.test_aggregation(s, "update"),
    "aggregation, complete mode": lambda s: operators.test_aggregation(s, "complete"),
    "windowed aggregation": operators.test_windowed_aggregation_in_append_mode,
    "global aggregation": operators.test_global_aggregation,
    "dropDuplicates": operators.test_deduplication,
    "dropDuplicatesWithinWatermark": operators.test_deduplication_within_watermark,
    "join, full_outer": lambda s: operators.test_stream_stream_join(s, "full_outer"),
    "join, state format 3 asked for (4.3 takes 2)": lambda s: (
        operators.test_stream_stream_join_with_column_families(s, s.spark, "3", "full_outer")
    ),
    "session windows": operators.test_session_windows,
    "limit": operators.test_limit,
    "applyInPandasWithState": lambda s: operators.test_apply_in_pandas_with_state(s, EVENT_TIME),
    "several operators": operators.test_several_operators_in_one_query,
    "transformWithStateInPandas": transform.test_every_kind_of_state_and_event_timers_equal_rocksdb,
    "transformWithState, TTL": transform.test_time_to_live_and_processing_timers_equal_rocksdb,
    "transformWithState, initial state": transform.test_rows_with_an_initial_state_equal_rocksdb,
    "transformWithState, chained": transform.test_chained_stateful_operator_equals_rocksdb,
}


ONE_PARTITION = pytest.mark.compatibility(
    refused={"4.0": ("ChekpointInfo length: 1", "its format 2 asserts more than one partition")}
)
REFUSED = {
    "global aggregation": ONE_PARTITION,
    "limit": ONE_PARTITION,
    "join, state format 3 asked for (4.3 takes 2)": operators.FORMAT_3,
    "transformWithState, initial state": transform.ROWS,
}


SHORT = (
    "windowed aggregation",
    "join, full_outer",
    "applyInPandasWithState",
    "several operators",
    "transformWithStateInPandas",
)


def marks_of(case: str) -> list[pytest.MarkDecorator]:
    marks = [REFUSED[case]] if case in REFUSED else []
    return marks if case in SHORT else [*marks, pytest.mark.long]


@pytest.mark.parametrize("case", [pytest.param(case, marks=marks_of(case)) for case in CASES])
@pytest.mark.compatibility("checkpoint format 2", "{case}")
def test_every_operator_gives_the_output_of_format_1(streams: Streams, case: str) -> None:
    CASES[case](streams)


def partition_ids(reader: Reader, query_id: str) -> list[PartitionId]:
    gen = reader.query(query_id).info.gen
    (info,) = reader.query(query_id).operators()
    return [PartitionId(StoreId(gen, 0, "default", ""), n) for n in range(info.partitions)]


def attempts(reader: Reader, id_: PartitionId) -> dict[int, set[str]]:
    """The attempts that a partition's manifest names, by version."""
    (names,) = reader.client.call("looking at a manifest", [("HKEYS", keys.meta(id_))])
    found: dict[int, set[str]] = {}
    for name in names:
        kind, _, rest = name.decode().partition(":")
        if kind == "d":
            version, _, uid = rest.partition(":")
            found.setdefault(int(version), set()).add(uid)
    return found


def query_id(checkpoint: Path) -> str:
    found: str = json.loads((checkpoint / "metadata").read_text())["id"]
    return found


def by_ids(reader: Reader, checkpoint: Path, batch_id: int) -> list[str]:
    """The state after a batch as the query gave it out, read by the ids of the commit log."""
    uids = [ids[0] for ids in logged_ids(checkpoint, batch_id)["0"]]
    state = reader.query(query_id(checkpoint)).operator()
    return sorted(
        f"Row(k='{key['k']}', sum(v)={value['sum']}, count(1)={value['count']})"
        for key, value in state.items(version=batch_id + 1, uids=uids)
    )


def test_restart_from_an_older_batch(job: Job, reader: Reader) -> None:
    job.feed(6)
    job.run()
    checkpoint = job.streams.checkpoint(NAME)
    abandoned = logged_ids(checkpoint, 3)
    job.rewind_to(2)
    job.run()
    job.check()
    assert logged_ids(checkpoint, 3) != abandoned
    job.feed(2)
    job.run()
    job.check()
    for path in (checkpoint / "commits").glob("[0-9]*"):
        assert by_ids(reader, checkpoint, int(path.name)) == job.output[int(path.name)]


def last_batch(checkpoint: Path) -> int:
    return max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))


def run_in_format_1(streams: Streams, job: Job) -> None:
    frame = counted(job.source, streams.spark)
    with format_of(streams.spark, "1"):
        Streams.run(streams, frame, NAME, mode="complete", output=job.output)


def test_live_checkpoint_switches_to_format_2(streams: Streams, job: Job) -> None:
    job.feed(3)
    run_in_format_1(streams, job)
    checkpoint = streams.checkpoint(NAME)
    assert not logged_ids(checkpoint, 2)
    if follows_the_log(streams.spark):
        # The option does nothing for a checkpoint that exists: what its newest commit is counts.
        commit = checkpoint / "commits" / "2"
        commit.write_text(commit.read_text().replace("v1", "v2", 1))
        (checkpoint / "commits" / ".2.crc").unlink()
    for _ in range(2):
        job.feed(2)
        job.run()
        job.check()
    assert logged_ids(checkpoint, 3)["0"]
    # Back to a batch of the time before, and on with ids.
    abandoned = logged_ids(checkpoint, 3)
    job.rewind_to(2)
    job.run()
    job.check()
    assert logged_ids(checkpoint, 3) not in ({}, abandoned)
    for batch_id, batches in ((1, 2), (last_batch(checkpoint), 7)):
        rows = streams.spark.read.format("statestore").option("batchId", batch_id)
        found = rows.load(str(checkpoint)).select("value.*").collect()
        assert sum(row[1] for row in found) == 12 * batches


def follows_the_log(spark: SparkSession) -> bool:
    """True if Spark reads a checkpoint's format from its commit log, as since 4.3."""
    return tuple(map(int, spark.version.split(".")[:2])) >= (4, 3)


def test_switch_back_to_format_1_is_refused(streams: Streams, job: Job) -> None:
    job.feed(2)
    job.run()
    job.feed(1)
    if follows_the_log(streams.spark):
        run_in_format_1(streams, job)
        assert logged_ids(streams.checkpoint(NAME), 2)["0"]
    else:
        message = failure(lambda: run_in_format_1(streams, job))
        assert "[REDIS_CONFIG]" in message
        assert f"Set {FORMAT} to 2" in message
    job.feed(1)
    job.run()
    job.check()


def test_attempts_are_kept_until_spark_logs_one(streams: Streams, reader: Reader) -> None:
    """Each batch runs its stateful tasks three times; the query goes on with one of each."""
    source = streams.input("events", "k string, v long")
    for number in range(5):
        source.add(batch(number))
    seen: dict[int, list[list[str]]] = {}

    def three_times(frame: DataFrame, batch_id: int) -> None:
        seen[batch_id] = [sorted(str(row) for row in frame.collect()) for _ in range(3)]

    frame = counted(source, streams.spark)
    query = (
        frame.writeStream.outputMode("complete")
        .option("checkpointLocation", str(streams.checkpoint(NAME)))
        .foreachBatch(three_times)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    checkpoint = streams.checkpoint(NAME)
    for batch_id, outputs in seen.items():
        assert outputs == [expected(streams.spark, batch_id + 1)] * 3
    ids = partition_ids(reader, query_id(checkpoint))
    logged = {batch_id: logged_ids(checkpoint, batch_id)["0"] for batch_id in range(5)}
    for id_ in ids:
        there = attempts(reader, id_)
        # The driver opens what was logged of the last batch; retention may have taken the others.
        assert 1 <= len(there[5]) <= 3
        for batch_id, chosen in logged.items():
            assert chosen[id_.partition][0] in there[batch_id + 1]
    state = reader.query(query_id(checkpoint)).operator()
    last = [ids[0] for ids in logged[4]]
    assert sum(value["count"] for _, value in state.items(version=5, uids=last)) == 5 * 12

    def opened() -> list[str]:
        return [
            one.pin.uid for one in reader.query(query_id(checkpoint)).open(0, "default", None)[1]
        ]

    wait_until(lambda: opened() == last, "the attempts that were logged")


def test_sparks_reader_and_ours_read_the_logged_version(
    streams: Streams, job: Job, reader: Reader
) -> None:
    job.feed(4)
    job.run()
    checkpoint = streams.checkpoint(NAME)
    state = reader.query(query_id(checkpoint)).operator()
    for batch_id in range(4):
        with format_of(streams.spark, "1"):
            spark_reader = streams.spark.read.format("statestore").option("batchId", batch_id)
            rows = spark_reader.load(str(checkpoint)).select("key.k", "value.*").collect()
        uids = [ids[0] for ids in logged_ids(checkpoint, batch_id)["0"]]
        ours = {key["k"]: value for key, value in state.items(version=batch_id + 1, uids=uids)}
        assert {row[0]: row[2] for row in rows} == {k: v["count"] for k, v in ours.items()}
        assert sum(row[2] for row in rows) == 12 * (batch_id + 1)
    # Live, without ids: what the driver confirmed of its last batch.
    wait_until(lambda: sum(value["count"] for _, value in state.items()) == 12 * 4, "batch 3")
    job.feed(1)
    job.run()
    job.check()
