"""State of running queries as DataFrames: the data source and `lookup`, in whole queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

import redis_state
from redis_state.errors import ConfigError, NotFoundError, UsageError
from tests.spark.streams import Input, Output, Streams
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

KEYS = [f"k{n}" for n in range(20)]
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


class Counts:
    """A query that counts each key once a batch."""

    def __init__(self, streams: Streams, url: str) -> None:
        self.source = streams.input("counted", "k string")
        self.frame = self.source.stream(streams.spark).groupBy("k").count()
        self.id = ""
        self._streams = streams
        self._url = url

    def add(self, batches: int = 1) -> None:
        for _ in range(batches):
            self.source.add([{"k": key} for key in KEYS])

    def run(self) -> None:
        """Counts what there is, until a reader sees it."""
        self.id = str(self._streams.run(self.frame, "counts").id)
        files = len(list(self.source.folder.glob("[0-9]*.json")))
        with redis_state.connect(self._url) as reader:
            state = reader.query(self.id).operator(0)
            wait_until(lambda: state.get({"k": "k0"}) == {"count": files}, "the count is confirmed")


@pytest.fixture
def counts(streams: Streams, shared_redis_server: RedisServer) -> Counts:
    made = Counts(streams, shared_redis_server.url)
    made.add()
    made.run()
    return made


@pytest.fixture
def live(spark: SparkSession, counts: Counts, shared_redis_server: RedisServer) -> DataFrame:
    options = {"url": shared_redis_server.url, "query": counts.id}
    return spark.read.format("redis_state").options(**options).load()


@pytest.fixture
def push_down(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(PUSH_DOWN, "true")
    yield
    spark.conf.unset(PUSH_DOWN)


@pytest.mark.compatibility("data source redis_state", "spark.read")
def test_state_is_a_dataframe(
    spark: SparkSession, live: DataFrame, counts: Counts, shared_redis_server: RedisServer
) -> None:
    assert live.schema.simpleString() == "struct<k:string,count:bigint>"
    assert sorted(map(tuple, live.collect())) == sorted((key, 1) for key in KEYS)
    assert live.rdd.getNumPartitions() == 2
    assert live.where("k in ('k3', 'none')").collect() == [("k3", 1)]

    def opened(query: str, **options: str) -> DataFrame:
        given = {"url": shared_redis_server.url, **options}
        return spark.read.format("redis_state").options(**given).load(query)

    with pytest.raises(AnalysisException, match="passwordFile") as caught:
        opened(counts.id, password="geheim")
    assert "geheim" not in str(caught.value)
    with pytest.raises(AnalysisException, match="no such query"):
        opened("none")


@pytest.mark.usefixtures("push_down")
def test_a_frame_that_is_used_more_than_once_has_all_rows(
    spark: SparkSession, live: DataFrame, shared_redis_server: RedisServer, counts: Counts
) -> None:
    """Spark 4.3 plans a source's filters for one use, and keeps the plan for all others."""
    assert live.where("k = 'k3'").count() == 1
    assert (live.count(), len(live.collect())) == (len(KEYS), len(KEYS))
    assert live.where("k = 'k3'").union(live.where("k = 'k4'")).count() == 2
    live.createOrReplaceTempView("live")
    both = "select (select count(*) from live where k = 'k3') a, (select count(*) from live) b"
    assert spark.sql(both).collect() == [(1, len(KEYS))]
    options = {"url": shared_redis_server.url, "keys": '["k3", "k4", "none"]'}
    found = spark.read.format("redis_state").options(**options).load(counts.id)
    assert sorted(found.collect()) == [("k3", 1), ("k4", 1)]
    # Keys are read by one task.
    assert found.rdd.getNumPartitions() == 1


def looked_up(streams: Streams, counts: Counts, source: Input, **options: Any) -> DataFrame:
    rows = source.stream(streams.spark).repartition(4)
    return redis_state.lookup(rows, query=counts.id, on={"key": "k"}, prefix="n_", **options)


class Kept:
    """Values that each run of a batch has read."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, set[Any]]] = []
        self.fails = False

    def __call__(self, batch: DataFrame, number: int) -> None:
        rows = batch.collect()
        assert len(rows) == len(KEYS)
        self.runs.append((number, {row["n_count"] for row in rows}))
        if self.fails:
            raise ValueError("the sink is away")


def count(batch: DataFrame, _: int) -> None:
    batch.collect()


def run(streams: Streams, frame: DataFrame, keep: Kept) -> StreamingQuery:
    writer = frame.writeStream.foreachBatch(keep).trigger(availableNow=True)
    return writer.option("checkpointLocation", str(streams.checkpoint("reads"))).start()


@pytest.mark.compatibility("redis_state.lookup", "DataFrame")
def test_a_dataframe_gets_the_columns_of_its_keys(
    spark: SparkSession, counts: Counts, live: DataFrame
) -> None:
    rows = [("k1", 1), ("k1", 2), ("none", 3), (None, 4)]
    frame = spark.createDataFrame(rows, "k string, n int").repartition(2)
    found = redis_state.lookup(frame, query=counts.id, on="k")
    assert found.schema.simpleString() == "struct<k:string,n:int,count:bigint>"
    joined = frame.join(live, "k", "left").select("k", "n", "count")
    order = [sf.col("n")]
    assert found.sort(order).collect() == joined.sort(order).collect()
    inner = redis_state.lookup(
        frame, query=counts.id, on=["k"], how="inner", columns={"count": "seen"}
    )
    assert sorted(map(tuple, inner.collect())) == [("k1", 1, 1), ("k1", 2, 1)]
    odd = frame.selectExpr("k as `k.x`", "n", "n as `a``b`")
    twice = redis_state.lookup(odd, query=counts.id, on={"k.x": "k"}, prefix="n.")
    assert twice.columns == ["k.x", "n", "a`b", "n.count"]
    assert [row[3] for row in twice.sort("n").collect()] == [1, 1, None, None]
    again = redis_state.lookup(twice, query=counts.id, on={"k.x": "k"}, columns={"count": "m"})
    assert again.where("m = `n.count`").count() == 2
    none = frame.where("n > 7")
    assert redis_state.lookup(none, query=counts.id, on="k").collect() == []
    longer = frame.selectExpr("n as k", "k as count")
    with pytest.raises(UsageError, match="'k' is of type int, and key column 'k' of type string"):
        redis_state.lookup(longer, query=counts.id, on="k", prefix="x")
    for wrong, words in (
        ({"on": "m"}, "'m'"),
        ({"on": {"n": "l"}}, "key columns l"),
        ({"on": "k", "columns": ["x"]}, "'x'"),
        ({"on": "k", "columns": {"count": "n"}}, "two columns would be named 'n'"),
        ({"on": "k", "how": "outer"}, "'outer'"),
        ({"on": []}, "no column"),
    ):
        with pytest.raises(UsageError, match=words):
            redis_state.lookup(frame, query=counts.id, **wrong)
    with pytest.raises(NotFoundError):
        redis_state.lookup(frame, query="none", on="k")


def test_texts_and_variants_come_as_asked_for(
    spark: SparkSession, streams: Streams, shared_redis_server: RedisServer
) -> None:
    source = streams.input("hostile", "k string")
    source.add([{"k": "4100"}, {"k": "41ff"}])
    key = sf.expr("cast(unhex(k) as string)")
    frame = source.stream(spark).select(
        key.alias("k"), key.alias("t"), sf.expr("""parse_json('{"a": 1}')""").alias("v")
    )
    kept = frame.groupBy("k").agg(sf.first("t"), sf.first("v"))
    query = streams.run(kept, "hostile")
    rows = spark.createDataFrame([("41ff",), ("41fe",), ("4100",)], "h string")
    rows = rows.withColumn("k", sf.expr("cast(unhex(h) as string)"))
    asked: dict[str, Any] = {"query": str(query.id), "on": "k", "url": shared_redis_server.url,
        "columns": {"first": "t", "first.2": "v"}}  # fmt: skip
    with pytest.raises(PySparkException, match=r"REDIS_UNREADABLE.*text='replace'"):
        redis_state.lookup(rows, **asked).drop("k").collect()
    found = redis_state.lookup(rows, **asked, text="replace", variant="binary").drop("k")
    assert found.schema["v"].dataType.simpleString() == "struct<value:binary,metadata:binary>"
    texts = {row.h: row.t for row in found.collect()}
    assert texts == {"41ff": "A\ufffd", "41fe": None, "4100": "A\0"}
    read = redis_state.lookup(rows, **{**asked, "columns": {"first.2": "v"}}).drop("k")
    assert {row.h: row.v for row in read.collect()}["41ff"] == '{"a":1}'
    with pytest.raises(ConfigError, match="text="):
        redis_state.lookup(rows, **{**asked, "text": "lenient"})


@pytest.mark.compatibility("redis_state.lookup", "stream, one version a batch")
def test_a_batch_of_a_stream_reads_one_version(streams: Streams, counts: Counts) -> None:
    source = streams.input("read", "key string")
    keep = Kept()
    for _ in range(8):
        source.add([{"key": key} for key in KEYS])
    counts.add(8)
    beside = counts.frame.writeStream.outputMode("update").trigger(availableNow=True)
    beside = beside.foreachBatch(count)
    checkpoint = str(streams.checkpoint("counts"))
    counting = beside.option("checkpointLocation", checkpoint).start()
    run(streams, looked_up(streams, counts, source), keep).awaitTermination()
    counting.awaitTermination()
    counts.run()
    source.add([{"key": key} for key in KEYS])
    run(streams, looked_up(streams, counts, source), keep).awaitTermination()
    assert [number for number, _ in keep.runs] == list(range(9))
    assert all(len(found) == 1 for _, found in keep.runs), keep.runs
    assert keep.runs[-1][1] == {9}


@pytest.mark.compatibility("redis_state.lookup", "stream, a batch that is run again")
def test_a_batch_that_is_run_again_reads_the_same_version(streams: Streams, counts: Counts) -> None:
    source = streams.input("read", "key string")
    source.add([{"key": key} for key in KEYS])
    keep = Kept()
    keep.fails = True
    frame = looked_up(streams, counts, source)
    with pytest.raises(StreamingQueryException, match="the sink is away"):
        run(streams, frame, keep).awaitTermination()
    counts.add()
    counts.run()
    keep.fails = False
    run(streams, frame, keep).awaitTermination()
    source.add([{"key": key} for key in KEYS])
    run(streams, frame, keep).awaitTermination()
    assert keep.runs == [(0, {1}), (0, {1}), (1, {2})]


def test_a_watermark_stays(streams: Streams, counts: Counts) -> None:
    source = streams.input("timed", "key string, at timestamp")
    for hour in range(3):
        source.add([{"key": "k1", "at": f"2024-01-01T0{hour}:00:00.000Z"}])
    rows = source.stream(streams.spark).withWatermark("at", "1 minute")
    found = redis_state.lookup(rows, query=counts.id, on={"key": "k"}, prefix="n_")
    sums = found.groupBy(sf.window("at", "10 minutes")).agg(sf.sum("n_count").alias("n"))
    output: Output = {}
    streams.run(sums.select("window.start", "n"), "sums", mode="append", output=output)
    given = [row for batch in output.values() for row in batch]
    assert given == [f"Row(start=datetime.datetime(2024, 1, 1, {hour}, 0), n=1)" for hour in (0, 1)]
