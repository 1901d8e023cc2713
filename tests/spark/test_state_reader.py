"""Spark's state reader, `format("statestore")`: the rows that it gives for RocksDB's provider."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, GroupedData, Row, SparkSession
from pyspark.sql import functions as sf

from tests.spark.streams import PROVIDER, REDIS, ROCKSDB, Streams
from tests.spark.test_join_format_4 import begin_as
from tests.spark.test_operators import EVENTS, FORMAT_3, UNKNOWN_4, events, two_inputs
from tests.spark.test_transform_with_state import OUT, Everything, started

pytestmark = pytest.mark.spark

CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
JOIN_STORES = [
    f"{side}-{store}"
    for side in ("left", "right")
    for store in ("keyToNumValues", "keyWithIndexToValue")
]

JOIN_FAMILIES = [
    f"{side}-{family}"
    for side in ("left", "right")
    for family in ("keyWithTsToValues", "tsWithKey")
]
FORMAT_4_ENABLED = "spark.sql.streaming.join.stateFormatV4.enabled"
FORMAT_4 = pytest.mark.compatibility(refused={"4.0": UNKNOWN_4, "4.1": UNKNOWN_4})
_UNWRITTEN = "it writes such schemas in its own tests only"
FORMAT_1 = pytest.mark.compatibility(
    refused={
        "4.1": ("phase planning failed with an internal error", _UNWRITTEN),
        "4.2": ("Unsupported schema writer version", _UNWRITTEN),
        "4.3": ("Unsupported schema writer version", _UNWRITTEN),
    }
)
JOIN_FORMATS = [
    pytest.param(1, marks=FORMAT_1),
    2,
    pytest.param(3, marks=[FORMAT_3, pytest.mark.long]),
]
BATCHES = 4
Build = Callable[[Sequence[DataFrame]], DataFrame]
Options = dict[str, Any]


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Sets an option of the session for some time."""
    before = spark.conf.getAll.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


class Both:
    """Checkpoints of queries that ran over the same input on both providers."""

    def __init__(self, streams: Streams) -> None:
        self.spark = streams.spark
        self._streams = streams
        self._made: set[str] = set()

    def run(
        self,
        name: str,
        build: Build,
        batches: list[Any],
        mode: str = "update",
        join_format: int = 2,
    ) -> None:
        """Runs a query, restarted half way, unless it ran before.

        Args:
            join_format: A state format of joins that the session asks for.
        """
        if name in self._made:
            return
        inputs = [self._streams.input(f"{name}{i}", EVENTS) for i in range(len(batches[0]))]
        for part in (batches[:2], batches[2:]):
            for batch in part:
                for source, rows in zip(inputs, batch, strict=True):
                    source.add(rows)
            for provider in (ROCKSDB, REDIS):
                if provider == REDIS and join_format > 2 and part == batches[:2]:
                    begun, checkpoint = (self._checkpoint(name, p) for p in (ROCKSDB, REDIS))
                    begin_as(begun, checkpoint, str(join_format))
                frame = build([source.stream(self.spark) for source in inputs])
                self._streams.run(frame, _label(name, provider), mode=mode, provider=provider)
        self._made.add(name)

    def read(
        self, name: str, provider: str, columns: Sequence[str] = ("*",), **options: Any
    ) -> list[Row]:
        """The rows of a state, in the order in which the reader gives them."""
        # The provider has to come from the checkpoint.
        self.spark.conf.set(PROVIDER, REDIS)
        reader = self.spark.read.format("statestore").options(**options)
        return reader.load(str(self._checkpoint(name, provider))).selectExpr(*columns).collect()

    def same(self, name: str, **options: Any) -> list[str]:
        """The sorted rows, which both providers have to give."""
        rocksdb, redis = (
            sorted(str(row) for row in self.read(name, provider, **options))
            for provider in (ROCKSDB, REDIS)
        )
        assert redis == rocksdb
        return redis

    def metadata(self, name: str, provider: str) -> list[str]:
        reader = self.spark.read.format("state-metadata")
        rows = reader.load(str(self._checkpoint(name, provider))).collect()
        return sorted(str(row) for row in rows)

    def _checkpoint(self, name: str, provider: str) -> Path:
        return self._streams.checkpoint(_label(name, provider))


def _label(name: str, provider: str) -> str:
    return name + provider.rsplit(".", 1)[-1]


@pytest.fixture(scope="module")
def both(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    # Spark 4.2 asks for the switch of join format 4 when it reads, too.
    with setting(spark, CHANGELOG, "true"), setting(spark, FORMAT_4_ENABLED, "true"):
        yield Both(Streams(spark, tmp_path_factory.mktemp("state-reader")))


@pytest.fixture
def aggregation(both: Both) -> str:
    def build(inputs: Sequence[DataFrame]) -> DataFrame:
        late = inputs[0].withWatermark("ts", "5 minutes")
        return late.groupBy(sf.window("ts", "10 minutes"), "k").agg(sf.sum("v"))

    both.run("aggregation", build, events(41), mode="append")
    return "aggregation"


@pytest.fixture
def processor(both: Both) -> str:
    """All kinds of state variables and event-time timers, with a deduplication behind."""

    def build(inputs: Sequence[DataFrame]) -> DataFrame:
        grouped = inputs[0].withWatermark("ts", "1 minute").groupBy("k")
        states = grouped.transformWithStateInPandas(
            Everything(), outputStructType=OUT, outputMode="Update", timeMode="EventTime"
        )
        return states.dropDuplicates(["k", "n"])

    both.run("processor", build, events(42, rows=16, keys=5))
    return "processor"


@pytest.fixture
def after_a_start(both: Both) -> str:
    """Runs a query with an initial state, by rows if that Spark's Python has them."""
    in_pandas = not hasattr(GroupedData, "transformWithState")

    def build(inputs: Sequence[DataFrame]) -> DataFrame:
        return started(inputs[0], in_pandas=in_pandas)

    both.run("started", build, events(43, rows=16, keys=5))
    return "started"


def join(both: Both, version: int) -> str:
    name = f"join{version}"

    def build(inputs: Sequence[DataFrame]) -> DataFrame:
        left = inputs[0].withWatermark("ts", "5 minutes")
        right = inputs[1].withWatermark("ts", "5 minutes")
        near = sf.expr("a.k = b.k AND a.ts BETWEEN b.ts - INTERVAL 8 MINUTES AND b.ts")
        # Format 1 keeps nothing that an outer join needs.
        how = "inner" if version == 1 else "leftOuter"
        return left.alias("a").join(right.alias("b"), near, how).select("a.*", "b.v")

    with setting(both.spark, JOIN_FORMAT, str(version)):
        both.run(name, build, two_inputs(44), mode="append", join_format=version)
    return name


def net(rows: Sequence[Row], *, lists: bool = False) -> dict[tuple[Any, ...], Any]:
    """Net change of each key in each batch; a list holds its elements since an update."""
    changes: dict[tuple[Any, ...], Any] = {}
    for row in rows:
        value = next(
            (row[c] for c in ("value", "list_element", "user_map_value") if c in row), None
        )
        user_key = str(row["user_map_key"]) if "user_map_key" in row else ""
        at = (row["batch_id"], row["partition_id"], str(row["key"]), user_key)
        if row["change_type"] == "append":
            assert lists
            kind, known = changes.get(at, ("append", []))
            changes[at] = (kind if kind == "update" else "append", [*known, value])
        elif row["change_type"] == "update":
            changes[at] = ("update", [value] if lists else value)
        else:
            changes[at] = ("delete", None)
    return changes


def lists_after(rows: Sequence[Row], batch: int) -> dict[tuple[int, str], list[Row]]:
    """Lists after their changes up to a batch."""
    found: dict[tuple[int, str], list[Row]] = {}
    changes = sorted(net(rows, lists=True).items(), key=lambda change: change[0][0])
    for (at, partition, key, _), (kind, value) in changes:
        if at <= batch:
            known = found.pop((partition, key), []) if kind == "append" else []
            found[partition, key] = known + (value or [])
    return {key: value for key, value in found.items() if value}


def same_changes(both: Both, name: str, *, lists: bool = False, **options: Any) -> list[Row]:
    """Both providers' changes are the same in effect; ours have each key once a version."""
    options = {"readChangeFeed": True, "changeStartBatchId": 0, **options}
    redis = both.read(name, REDIS, **options)
    # Of a list that was put anew the feed of 4.1 and 4.2 has the first element alone with RocksDB.
    if not (lists and both.spark.version.startswith(("4.1.", "4.2."))):
        rocksdb = net(both.read(name, ROCKSDB, **options), lists=lists)
        assert net(redis, lists=lists) == rocksdb
        assert lists or len(redis) == len(rocksdb)
    assert redis
    return redis


@pytest.mark.compatibility("state reader", "batchId, path")
def test_latest_state_and_every_batch_equal_rocksdb(both: Both, aggregation: str) -> None:
    latest = both.same(aggregation)
    assert latest
    each = [both.same(aggregation, batchId=batch) for batch in range(BATCHES)]
    assert len({str(rows) for rows in each}) == BATCHES


def test_batch_that_was_not_run_is_refused_alike(both: Both, aggregation: str) -> None:
    for provider in (ROCKSDB, REDIS):
        with pytest.raises(PySparkException, match="BATCH_UNAVAILABLE"):
            both.read(aggregation, provider, batchId=99)


@pytest.mark.parametrize("partition", [0, 1])
@pytest.mark.compatibility("state reader", "snapshotStartBatchId, snapshotPartitionId")
def test_read_from_a_snapshot_equals_rocksdb(both: Both, aggregation: str, partition: int) -> None:
    whole = both.read(aggregation, ROCKSDB, batchId=3)
    wanted = sorted(str(row) for row in whole if row["partition_id"] == partition)
    options: Options = {"snapshotStartBatchId": 1, "snapshotPartitionId": partition, "batchId": 3}
    assert sorted(str(row) for row in both.read(aggregation, REDIS, **options)) == wanted


@pytest.mark.parametrize(("start", "end"), [(0, None), (1, 2), (3, 3)])
@pytest.mark.compatibility("state reader", "readChangeFeed, changeStartBatchId, changeEndBatchId")
def test_change_feed_equals_rocksdb(
    both: Both, aggregation: str, start: int, end: int | None
) -> None:
    options: Options = {} if end is None else {"changeEndBatchId": end}
    rows = same_changes(both, aggregation, changeStartBatchId=start, **options)
    kinds = {row["change_type"] for row in rows}
    assert "update" in kinds
    assert (start, end) != (0, None) or "delete" in kinds, "nothing was evicted"


@pytest.mark.compatibility("state reader", "operatorId")
def test_second_operator_equals_rocksdb(both: Both, processor: str) -> None:
    operators = {row.split(", ")[0] for row in both.metadata(processor, REDIS)}
    assert len(operators) == 2
    assert both.same(processor, operatorId=0)


@pytest.mark.parametrize("version", [*JOIN_FORMATS, pytest.param(4, marks=FORMAT_4)])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.compatibility("state reader", "joinSide, join state format {version}")
def test_side_of_a_join_equals_rocksdb(both: Both, version: int, side: str) -> None:
    name = join(both, version)
    # Of format 4 the reader takes the event time from bytes behind the key with RocksDB.
    columns = ["key.field0", "value", "partition_id"] if version == 4 else ["*"]
    for batch in range(BATCHES):
        both.same(name, columns=columns, joinSide=side, batchId=batch)
    assert both.same(name, columns=columns, joinSide=side)


@pytest.mark.parametrize("side", ["left", "right"])
@FORMAT_4
def test_keys_of_join_format_4_have_their_event_time(both: Both, side: str) -> None:
    rows = both.read(join(both, 4), REDIS, joinSide=side)
    assert rows
    for row in rows:
        assert row["key"]["__event_time"] == row["value"]["ts"].timestamp() * 1_000_000


@pytest.mark.parametrize("version", JOIN_FORMATS)
@pytest.mark.parametrize("store", JOIN_STORES)
@pytest.mark.compatibility("state reader", "storeName, join state format {version}")
def test_store_of_a_join_equals_rocksdb(both: Both, version: int, store: str) -> None:
    name = join(both, version)
    assert both.same(name, storeName=store)
    same_changes(both, name, storeName=store)


@pytest.mark.parametrize("family", JOIN_FAMILIES)
@FORMAT_4
@pytest.mark.compatibility("state reader", "stateVarName, join state format 4")
def test_family_of_a_join_equals_rocksdb(both: Both, family: str) -> None:
    name = join(both, 4)
    assert both.same(name, stateVarName=family)
    assert both.read(name, REDIS, stateVarName=family, readChangeFeed=True, changeStartBatchId=0)


@pytest.mark.compatibility("state reader", "stateVarName")
def test_state_variables_equal_rocksdb(both: Both, processor: str) -> None:
    for variable in ("total", "seen", "bySign"):
        options: Options = {"operatorId": 1, "stateVarName": variable}
        for batch in range(BATCHES):
            both.same(processor, batchId=batch, **options)
        assert both.same(processor, **options)


@pytest.mark.parametrize("flatten", [True, False])
@pytest.mark.compatibility("state reader", "flattenCollectionTypes={flatten}")
def test_collections_equal_rocksdb(both: Both, processor: str, flatten: bool) -> None:
    options: Options = {"operatorId": 1, "flattenCollectionTypes": flatten}
    lists = both.same(processor, stateVarName="seen", **options)
    assert ("list_element" in lists[0]) == flatten
    maps = both.same(processor, stateVarName="bySign", **options)
    assert ("user_map_key" in maps[0]) == flatten


@pytest.mark.compatibility("state reader", "readRegisteredTimers")
def test_timers_equal_rocksdb(both: Both, processor: str) -> None:
    for batch in range(BATCHES):
        both.same(processor, operatorId=1, readRegisteredTimers=True, batchId=batch)
    assert both.same(processor, operatorId=1, readRegisteredTimers=True)


@pytest.mark.parametrize("variable", ["total", "seen", "bySign"])
@pytest.mark.compatibility("state reader", "readChangeFeed of a state variable")
def test_changes_of_state_variables_equal_rocksdb(
    both: Both, processor: str, variable: str
) -> None:
    lists = variable == "seen"
    options: Options = {"operatorId": 1, "stateVarName": variable}
    rows = same_changes(both, processor, lists=lists, **options)
    assert ("append" in {row["change_type"] for row in rows}) == lists
    for batch in range(BATCHES) if lists else ():
        wanted: dict[tuple[int, str], list[Row]] = {}
        for row in both.read(processor, ROCKSDB, batchId=batch, **options):
            at = row["partition_id"], str(row["key"])
            wanted.setdefault(at, []).append(row["list_element"])
        assert lists_after(rows, batch) == wanted


@pytest.mark.compatibility("state reader", "initial state of transformWithState")
def test_initial_state_equals_rocksdb(both: Both, after_a_start: str) -> None:
    for batch in range(BATCHES):
        assert both.same(after_a_start, stateVarName="total", batchId=batch)
    same_changes(both, after_a_start, stateVarName="total")


@pytest.mark.compatibility("state reader", "state-metadata")
def test_metadata_equals_rocksdb(both: Both, aggregation: str, processor: str) -> None:
    for name in (aggregation, processor):
        assert both.metadata(name, REDIS) == both.metadata(name, ROCKSDB)


@pytest.mark.compatibility("state reader", "beside the running query")
def test_state_is_read_beside_the_running_query(streams: Streams) -> None:
    """Every batch is read while the query waits for the next one, which it then commits."""
    spark = streams.spark
    source = streams.input("beside", EVENTS)
    given_out: dict[int, dict[str, int]] = {}

    def keep(batch: DataFrame, batch_id: int) -> None:
        given_out[batch_id] = {row[0]: row[1] for row in batch.collect()}

    def state(**options: Any) -> dict[str, int]:
        rows = spark.read.format("statestore").options(**options)
        found = rows.load(str(streams.checkpoint("beside"))).select("key.*", "value.*").collect()
        return {row[0]: row[1] for row in found}

    spark.conf.set(PROVIDER, REDIS)
    query = (
        source.stream(spark)
        .groupBy("k")
        .count()
        .writeStream.outputMode("complete")
        .option("checkpointLocation", str(streams.checkpoint("beside")))
        .foreachBatch(keep)
        .start()
    )
    try:
        for number, batch in enumerate(events(45)):
            source.add(batch[0])
            query.processAllAvailable()
            assert query.isActive
            assert state() == given_out[number]
            assert state(batchId=0) == given_out[0]
    finally:
        query.stop()
    assert len(given_out) == BATCHES
    assert query.exception() is None
    assert state() == given_out[BATCHES - 1]
