"""`redis_state.transform_with_state`, with Spark's own operator on RocksDB as oracle."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from redis_state.cli.main import main
from redis_state.errors import UsageError
from redis_state.spark.processor.transform_with_state import transform_with_state
from tests.spark.streams import PROVIDER, ROCKSDB, Input, Streams
from tests.support.redis_server import RedisServer

if TYPE_CHECKING:
    from redis_state.spark.processor.transform_with_state import ProcessedDataFrame

pytestmark = pytest.mark.spark

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

OPS = "k string, n int, seq int, op string, v int, ts timestamp"
OUT = "k string, n int, seq int, what string"
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
OPERATOR = "redis_state.transform_with_state"
NO_ROWS = {"4.0": "nothing to compare with: its Python has no row-based transformWithState"}

Given = list[tuple[int, list[tuple[Any, ...]]]]
"""The rows of each batch, in the order in which they came."""


class Machine(StatefulProcessor):
    """Does what its rows say, and tells all that it holds after each of them.

    Args:
        ttl_ms: Of everything; ``None`` is for ever.
        broken: A file; while it exists, a row with the operation ``break`` fails once.
    """

    def __init__(self, ttl_ms: int | None = None, broken: str = "") -> None:
        self.ttl_ms, self.broken = ttl_ms, broken

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._value = handle.getValueState("value", "n int, s string", self.ttl_ms)
        self._items = handle.getListState("items", "v int", self.ttl_ms)
        self._table = handle.getMapState("table", "v int", "n int, s string", self.ttl_ms)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        frame = pd.concat(list(rows)).sort_values("seq")
        for row in frame.itertuples():
            yield self.out(key, row.seq, self.did(row, timerValues))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        text = f"timer {self.shown_time(at)}: {self.held()}"
        # One more in the past, one that is due as well, one for later.
        if at % 7 == 3:
            self._handle.registerTimer(at - 2)
        if at % 7 == 4:
            self._handle.deleteTimer(at + 1)
        if at % 7 == 5:
            self._table.clear()
        yield self.out(key, -1, text)

    def did(self, row: Any, timerValues: Any) -> str:
        v = int(row.v)
        now = max(timerValues.getCurrentWatermarkInMs(), 0)
        match row.op:
            case "update":
                self._value.update((v, None if v % 3 == 0 else f"s{v}"))
            case "clear":
                self._value.clear()
                self._items.clear()
            case "append":
                self._items.appendValue((v,))
            case "put":
                self._items.put([(v,), (v + 1,)])
            case "extend":
                self._items.appendList([(v,), (v,)])
            case "set":
                self._table.updateValue((v % 5,), (v, str(v)))
            case "unset":
                self._table.removeKey((v % 5,))
            case "empty":
                self._table.clear()
            case "timer":
                self._handle.registerTimer(now + (v - 20) * 10_000 + v)
            case "untimer":
                for one in list(self._handle.listTimers())[:1]:
                    self._handle.deleteTimer(one)
            case "break":
                path = Path(self.broken)
                if path.is_file():
                    path.unlink()
                    raise ValueError("no luck with this batch")
        return f"{row.op} {v} at {self.shown_time(now)}: {self.held()}"

    def held(self) -> str:
        value = self._value.get() if self._value.exists() else None
        table = sorted((key[0], tuple(row)) for key, row in self._table.iterator())
        one = self._table.getValue((1,)) if self._table.containsKey((1,)) else None
        timers = sorted(self._handle.listTimers()) if self.has_timers() else []
        return (
            f"{value and tuple(value)} {[v for (v,) in self._items.get()]} {self._items.exists()} "
            f"{table} {one and tuple(one)} {self._table.exists()} "
            f"{[self.shown_time(at) for at in timers]}"
        )

    def has_timers(self) -> bool:
        return True

    def shown_time(self, at_ms: int) -> str:
        return str(at_ms)

    def out(self, key: Any, seq: int, what: str) -> Any:
        n = None if pd.isna(key[1]) else int(key[1])
        return pd.DataFrame(
            {"k": [key[0]], "n": pd.array([n], "Int32"), "seq": [seq], "what": [what]}
        )

    def close(self) -> None:
        pass


class Rows(Machine):
    """`Machine` with rows instead of frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in sorted(rows, key=lambda row: row.seq):
            yield self.out(key, row.seq, self.did(row, timerValues))

    def out(self, key: Any, seq: int, what: str) -> Any:
        return Row(k=key[0], n=key[1], seq=seq, what=what)


class Timeless(Machine):
    """Processor without a time mode."""

    def has_timers(self) -> bool:
        return False


class Ageing(Machine):
    """Processor by processing time, whose times are not shown: two queries differ in them."""

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        assert expiredTimerInfo.getExpiryTimeInMs() <= timerValues.getCurrentProcessingTimeInMs()
        yield self.out(key, -1, f"timer: {self.held()}")

    def did(self, row: Any, timerValues: Any) -> str:
        now = timerValues.getCurrentProcessingTimeInMs()
        if row.op == "timer":
            self._handle.registerTimer(now + (3_600_000 if row.v % 2 else 1))
            return f"timer: {self.held()}"
        return super().did(row, timerValues)

    def shown_time(self, at_ms: int) -> str:
        return "some time"


KINDS = (
    ["update"] * 3 + ["clear", "append", "append", "put", "extend", "set", "set", "set", "unset"]
    + ["empty", "untimer"] + ["timer"] * 4
)  # fmt: skip


def batches(
    seed: int, *, count: int = 4, rows: int = 14, breaks_at: int = -1, nulls: bool = False
) -> list[list[Any]]:
    """Random operations, whose times rise by ten minutes a batch, with late ones among them.

    Args:
        nulls: Keys have null in the column of numbers, too: with those Spark's frames let a group
            see what another one holds; its rows do not.
    """
    rng = random.Random(seed)
    keys = [("a", 1), ("a", None if nulls else 2), (None, 1), ("b", 1), ("", -1)]

    def row(batch: int, seq: int) -> dict[str, Any]:
        k, n = rng.choice(keys)
        minute = max(0, batch * 10 + rng.randrange(10) - (15 if rng.random() < 0.2 else 0))
        return {
            "k": k, "n": n, "seq": batch * 1000 + seq, "op": rng.choice(KINDS),
            "v": rng.randrange(60), "ts": f"2024-01-01T00:{minute:02d}:00.000Z",
        }  # fmt: skip

    made = [[row(batch, seq) for seq in range(rows)] for batch in range(count)]
    if breaks_at >= 0:
        made[breaks_at].append({**made[breaks_at][-1], "seq": 999_999, "op": "break"})
    return made


class Queries:
    """Runs queries over prepared files, each to the end of what there is."""

    def __init__(self, streams: Streams) -> None:
        self.streams, self.spark = streams, streams.spark
        self.folder = streams.folder

    def frame(self, source: Input) -> DataFrame:
        return source.stream(self.spark).withWatermark("ts", "2 minutes")

    def start(self, frame: DataFrame, name: str, given: Given, *, once: bool = False) -> None:
        def keep(batch: DataFrame, batch_id: int) -> None:
            rows = [tuple(row) for row in batch.collect()]
            given[:] = [one for one in given if one[0] != batch_id]
            given.append((batch_id, rows))

        self.run(frame, name, keep, once=once)

    def run(
        self, frame: DataFrame, name: str, keep: Callable[[DataFrame, int], None],
        *, once: bool = False,
    ) -> None:  # fmt: skip
        self.spark.conf.set(PROVIDER, ROCKSDB)
        self.spark.conf.set(NO_DATA, "false")
        try:
            query = (
                frame.writeStream.outputMode("update")
                .option("checkpointLocation", str(self.streams.checkpoint(name)))
                .foreachBatch(keep)
                .trigger(**({"once": True} if once else {"availableNow": True}))
                .start()
            )
            query.awaitTermination()
        finally:
            self.spark.conf.unset(NO_DATA)

    def ours(
        self, frame: DataFrame, processor: Any, store: str, **options: Any
    ) -> ProcessedDataFrame:
        given: dict[str, Any] = {"time_mode": "EventTime", "partitions": 2} | options
        return transform_with_state(
            frame, processor, store=f"{self.folder} {store}", key=["k", "n"], schema=OUT, **given
        )

    def theirs(self, frame: DataFrame, processor: Any, mode: str = "EventTime") -> DataFrame:
        grouped = frame.groupBy("k", "n")
        with_rows = isinstance(processor, Rows)
        run = grouped.transformWithState if with_rows else grouped.transformWithStateInPandas
        return run(processor, outputStructType=OUT, outputMode="Update", timeMode=mode)


@pytest.fixture
def queries(streams: Streams) -> Queries:
    return Queries(streams)


def by_batch(given: Given) -> dict[int, list[str]]:
    return {number: sorted(map(str, rows)) for number, rows in given}


def by_key(given: Given) -> dict[Any, list[Any]]:
    """Output of each key, in its order."""
    found: dict[Any, list[Any]] = {}
    for _, rows in given:
        for k, n, *rest in rows:
            found.setdefault((k, n), []).append(rest)
    return found


def same(theirs: Given, ours: Given) -> None:
    one, other = by_batch(theirs), by_batch(ours)
    for number in one | other:
        missing = set(one.get(number, [])) - set(other.get(number, []))
        foreign = set(other.get(number, [])) - set(one.get(number, []))
        assert (sorted(missing), sorted(foreign)) == ([], []), f"in batch {number}"
    assert other == one
    assert by_key(ours) == by_key(theirs)


@pytest.mark.compatibility(OPERATOR, "value, list and map state, event-time timers, a crash")
@pytest.mark.parametrize("partitions", [pytest.param(5, marks=pytest.mark.long), 1])
def test_all_state_kinds_and_event_timers_equal_sparks(queries: Queries, partitions: int) -> None:
    """Ours fails once in the middle and is started anew; Spark's runs through."""
    made = batches(40 + partitions, breaks_at=2)
    broken = queries.folder / "broken"
    source = queries.streams.input("in", OPS)
    theirs: Given = []
    ours: Given = []
    for batch in made[:3]:
        source.add(batch)
    frame = queries.frame(source)
    queries.start(queries.theirs(frame, Machine()), "theirs", theirs)
    broken.touch()
    failing = queries.ours(frame, Machine(broken=str(broken)), "s", partitions=partitions)
    with pytest.raises(StreamingQueryException, match="no luck with this batch"):
        queries.start(failing, "ours", ours)
    assert [number for number, _ in ours] == [0, 1]
    # The same DataFrame, then one of a new call.
    queries.start(failing, "ours", ours)
    assert [number for number, _ in ours] == [0, 1, 2]
    for batch in made[3:]:
        source.add(batch)
    queries.start(queries.theirs(queries.frame(source), Machine()), "theirs", theirs)
    anew = queries.ours(queries.frame(source), Machine(), "s", partitions=None)
    queries.start(anew, "ours", ours)
    same(theirs, ours)
    assert sum("timer" in str(row[3][:6]) and row[2] < 0 for _, rows in ours for row in rows) > 5
    rows_in = sum(map(len, made))
    assert sum(row[2] >= 0 for _, rows in ours for row in rows) < rows_in, "no row was late"


@pytest.mark.compatibility(OPERATOR, "rows instead of frames", absent=NO_ROWS)
@pytest.mark.parametrize("ours_with", [Rows, Machine])
def test_row_processor_with_null_keys_equals_sparks(queries: Queries, ours_with: Any) -> None:
    source = queries.streams.input("in", OPS)
    for batch in batches(51, count=3, nulls=True):
        source.add(batch)
    theirs: Given = []
    ours: Given = []
    form = "rows" if ours_with is Rows else "pandas"
    queries.start(queries.theirs(queries.frame(source), Rows()), "theirs", theirs)
    queries.start(queries.ours(queries.frame(source), ours_with(), "s", rows=form), "ours", ours)
    same(theirs, ours)


@pytest.mark.compatibility(OPERATOR, "no time mode")
def test_processor_without_a_time_mode_equals_sparks(queries: Queries) -> None:
    source = queries.streams.input("in", OPS)
    for batch in batches(52, count=3):
        source.add([row for row in batch if "timer" not in row["op"]])
    theirs: Given = []
    ours: Given = []
    queries.start(queries.theirs(source.stream(queries.spark), Timeless(), "None"), "t", theirs)
    plain = queries.ours(source.stream(queries.spark), Timeless(), "s", time_mode="None")
    queries.start(plain, "ours", ours)
    same(theirs, ours)


@pytest.mark.compatibility(OPERATOR, "time to live, processing-time timers")
@pytest.mark.parametrize("ttl_ms", [1, pytest.param(3_600_000, marks=pytest.mark.long)])
def test_time_to_live_and_processing_timers_equal_sparks(queries: Queries, ttl_ms: int) -> None:
    """A row that lives a millisecond is gone by the next batch; one that lives an hour remains."""
    outputs: list[Given] = []
    for which in ("theirs", "ours"):
        source = queries.streams.input(which, OPS)
        given: Given = []
        for number, batch in enumerate(batches(53, count=2 if ttl_ms == 1 else 3)):
            source.add([row for row in batch if row["op"] != "untimer"])
            frame, processor = source.stream(queries.spark), Ageing(ttl_ms)
            if which == "theirs":
                made = queries.theirs(frame, processor, "ProcessingTime")
            else:
                made = queries.ours(frame, processor, "s", time_mode="ProcessingTime")
            queries.start(made, which, given, once=True)
            assert len(given) == number + 1
        outputs.append(given)
    same(*outputs)
    assert any(row[2] < 0 for _, rows in outputs[1] for row in rows), "no timer fired"


def test_batch_evaluated_twice_gives_the_same_output(queries: Queries) -> None:
    source = queries.streams.input("in", OPS)
    for batch in batches(54, count=3):
        source.add(batch)
    once: Given = []
    twice: Given = []
    queries.start(queries.ours(queries.frame(source), Machine(), "one"), "one", once)

    def keep(batch: DataFrame, batch_id: int) -> None:
        assert batch.count() == batch.persist().count()
        twice.append((batch_id, [tuple(row) for row in batch.collect()]))
        batch.unpersist()

    frame = queries.ours(queries.frame(source), Machine(), "two")
    queries.run(frame, "two", keep)
    same(once, twice)


@pytest.mark.compatibility(OPERATOR, "two in one query")
def test_chained_and_parallel_processors_give_their_own_output(queries: Queries) -> None:
    source = queries.streams.input("in", OPS)
    for batch in batches(55, count=2):
        source.add(batch)
    alone: Given = []
    queries.start(queries.ours(queries.frame(source), Machine(), "s0"), "alone", alone)
    pair: Given = []
    one = queries.ours(queries.frame(source), Machine(), "s1")
    two = queries.ours(queries.frame(source), Machine(), "s2", partitions=3)
    queries.start(one.repartition(2).union(two.repartition(2)), "pair", pair)
    doubled = [(number, rows + rows) for number, rows in alone]
    assert by_batch(pair) == by_batch(doubled)


def refused(queries: Queries, frame: DataFrame, name: str, found: str) -> None:
    with pytest.raises(StreamingQueryException, match=found):
        queries.start(frame, name, [])


def test_unsupported_use_is_refused_at_run_time(
    queries: Queries, shared_redis_server: RedisServer
) -> None:
    url = shared_redis_server.url
    source = queries.streams.input("in", OPS)
    for batch in batches(56, count=2):
        source.add(batch)
    frame = queries.frame(source)
    first = queries.ours(frame, Machine(), "s")
    queries.start(first, "first", [])
    refused(queries, first, "second", "the store belongs to the query .* another checkpoint")
    # Over one and the same DataFrame Spark 4.3 unites partition by partition, and all is well.
    other = queries.frame(source)
    union = queries.ours(frame, Machine(), "s1").union(queries.ours(other, Machine(), "s2"))
    refused(queries, union, "union", "union or coalesce after transform_with_state")
    merged = queries.ours(frame, Machine(), "s3", partitions=3).coalesce(1)
    refused(queries, merged, "merged", "union or coalesce after transform_with_state")
    source.add(batches(57, count=1)[0])
    refused(queries, queries.ours(frame, Machine(), "s", partitions=3), "first",
            "the store has 2 partitions, not 3")  # fmt: skip
    # A later call disturbs nobody; once it has started, it goes on.
    older, newer = queries.ours(frame, Machine(), "s"), queries.ours(frame, Machine(), "s")
    given: Given = []
    queries.start(older, "first", given)
    source.add(batches(58, count=1)[0])
    queries.start(newer, "first", given)
    assert [number for number, _ in given] == [2, 3]
    source.add(batches(59, count=1)[0])
    refused(queries, older, "first", "the query was started again since")

    frames: list[DataFrame] = []

    def with_the_one_before(batch: DataFrame, _batch_id: int) -> None:
        frames.append(batch)
        frames[-2:][0].collect()

    with pytest.raises(StreamingQueryException, match="the DataFrame belongs to batch 0"):
        queries.run(queries.ours(frame, Machine(), "s6"), "kept", with_the_one_before)

    def in_a_group(batch: DataFrame, _batch_id: int) -> None:
        queries.spark.sparkContext.setJobGroup("mine", "my rows")
        batch.collect()

    with pytest.raises(StreamingQueryException, match="the job group is not the one that Spark"):
        queries.run(queries.ours(frame, Machine(), "s5"), "in a group", in_a_group)

    def first_row(batch: DataFrame, _batch_id: int) -> None:
        batch.limit(1).collect()

    limited = queries.ours(frame, Machine(), "s4", partitions=3)
    with pytest.raises(StreamingQueryException, match="A limit after transform_with_state"):
        queries.run(limited, "limited", first_row)

    def first_row_of_batch_1(batch: DataFrame, batch_id: int) -> None:
        (batch.limit(1) if batch_id == 1 else batch).collect()

    limited = queries.ours(frame, Machine(), "s7", partitions=3)
    with pytest.raises(StreamingQueryException, match="A limit after") as told:
        queries.run(limited, "limited later", first_row_of_batch_1)
    way = re.search(r"`redis-state (rewind --gen \w+ --checkpoint FOLDER [^`]+)`", str(told.value))
    assert way is not None
    folder = str(queries.streams.checkpoint("limited later"))
    words = [folder if word == "FOLDER" else word for word in way[1].split()]
    assert main([*words, "--url", url, "--force"]) == 0
    given = []
    queries.start(queries.ours(frame, Machine(), "s7", partitions=3), "limited later", given)
    assert [number for number, _ in given] == [1, 2]


def test_unsupported_arguments_are_refused_at_the_call(queries: Queries) -> None:
    source = queries.streams.input("in", OPS)
    plain = source.stream(queries.spark)
    timed = queries.frame(source)
    nested = timed.withColumn("k", sf.array("k"))
    for frame, options, found in (
        (plain, {}, "the DataFrame has no watermark"),
        (timed.withColumn("late", sf.col("ts")), {}, "have a watermark each"),
        (nested, {}, "the key column 'k' is of type array<string>"),
        (timed, {"time_mode": "Sometime"}, "time_mode is 'Sometime'"),
        (timed, {"rows": "dicts"}, "rows is 'dicts'"),
        (timed, {"partitions": 0}, "0 partitions were requested"),
        (timed, {"first_batch_id": -1}, "first_batch_id is not a whole number"),
    ):
        with pytest.raises(UsageError, match=found):
            queries.ours(frame, Machine(), "s", **options)
    keys: list[Any] = ["nobody", []]
    for key in keys:
        with pytest.raises(UsageError, match=r"nobody|no key column|key"):
            transform_with_state(timed, Machine(), store="s", key=key, schema=OUT)
