"""Joins whose state expires against a plain computation: rows of a join key leave together."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from redis import Redis

import redis_state
from redis_state.format.entry import parse_entry
from redis_state.keys import store_hash
from tests.spark.lives import EVENTS, manifest_of, shift
from tests.spark.streams import FORMAT, PREFIX, Input, Output, Streams, run_to_end
from tests.support.redis_server import RedisServer
from tools import compatibility

_WRITES = (
    "redis-state refuses it: the state reader of that minor opens the stores of a join for writing"
)
pytestmark = [
    pytest.mark.spark,
    pytest.mark.compatibility(absent=dict.fromkeys(("4.0", "4.1", "4.2"), _WRITES)),
]

TTL_S = 1000
STEP_S = 128
"""Expiries are rounded up to a multiple: a key lives so much longer at most."""

BATCHES = 10
BATCH_MIN = 10
NEAR_MIN = 25
"""Rows of a key join if their times are so near; batches are `BATCH_MIN` apart."""

CLOCK = "z"
"""Key of a row on either side in each batch, so that watermarks advance."""

Batch = tuple[int, str, str]
"""Seconds that pass before it, keys of its left rows and of its right rows."""


def near(left: DataFrame, right: DataFrame, how: str) -> DataFrame:
    """Joins rows of a key whose event times are near."""
    condition = f"""l.k = r.k and r.ts between l.ts - interval {NEAR_MIN} minutes
        and l.ts + interval {NEAR_MIN} minutes"""
    left, right = left.withWatermark("ts", "0 seconds"), right.withWatermark("ts", "0 seconds")
    return left.alias("l").join(right.alias("r"), sf.expr(condition), how)


def any_time(left: DataFrame, right: DataFrame, how: str) -> DataFrame:
    """Joins rows of a key, without any bound."""
    return left.alias("l").join(right.alias("r"), sf.expr("l.k = r.k"), how)


@dataclass
class Row:
    """Row of one side; `batch` is also its event time."""

    value: int
    batch: int
    matched: bool = False


@dataclass
class Plain:
    """The plain computation: state of each join key, and when a row was added to it last."""

    how: str
    is_bound: bool
    left: dict[str, list[Row]] = field(default_factory=dict)
    right: dict[str, list[Row]] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)
    now: int = 0
    emitted: list[str] = field(default_factory=list)

    def batch(self, number: int, batch: Batch) -> list[str]:
        """Returns the rows of a batch, and of the one without data after it."""
        self.emitted = []
        self.now += batch[0]
        for key in [key for key, at in self.added.items() if at + TTL_S <= self.now]:
            self.left.pop(key, None)
            self.right.pop(key, None)
            del self.added[key]
        for at, key in enumerate(batch[1]):
            self._left(key, Row(100 * number + at, number))
        for at, key in enumerate(batch[2]):
            self._right(key, Row(100 * number + at, number))
        if self.is_bound:
            self._evict(number)
        return sorted(self.emitted)

    def _left(self, key: str, row: Row) -> None:
        found = [other for other in self.right.get(key, []) if self._are_near(row, other)]
        for other in found:
            other.matched = row.matched = True
            self._emit(key, row, other)
        # Spark keeps no left row of a semi join that has its match.
        if self.how != "left_semi" or not found:
            self.left.setdefault(key, []).append(row)
            self.added[key] = self.now
        else:
            self._semi(key, row)

    def _right(self, key: str, row: Row) -> None:
        for other in self.left.get(key, []):
            if self._are_near(row, other) and not (self.how == "left_semi" and other.matched):
                self._emit(key, other, row)
                self._semi(key, other)
                other.matched = row.matched = True
        self.right.setdefault(key, []).append(row)
        self.added[key] = self.now

    def _are_near(self, one: Row, other: Row) -> bool:
        return not self.is_bound or abs(one.batch - other.batch) * BATCH_MIN <= NEAR_MIN

    def _emit(self, key: str, left: Row, right: Row | None) -> None:
        if self.how != "left_semi":
            value = None if right is None else right.value
            self.emitted.append(f"Row(k='{key}', lv={left.value}, rv={value})")

    def _semi(self, key: str, left: Row) -> None:
        if self.how == "left_semi":
            self.emitted.append(f"Row(k='{key}', lv={left.value})")

    def _evict(self, number: int) -> None:
        """Removes rows that the watermark has passed: it is the time of this batch."""
        for key, rows in self.left.items():
            for row in rows:
                if self.how == "left_outer" and self._is_over(row, number) and not row.matched:
                    self._emit(key, row, None)
        for side in (self.left, self.right):
            for key, rows in side.items():
                side[key] = [row for row in rows if not self._is_over(row, number)]

    @staticmethod
    def _is_over(row: Row, number: int) -> bool:
        return row.batch * BATCH_MIN + NEAR_MIN < number * BATCH_MIN


class JoinLives:
    """Runs a join batch by batch, with a restart and time in between."""

    def __init__(self, streams: Streams, server: Redis, how: str, *, is_bound: bool) -> None:
        self._streams, self._server, self._how, self._is_bound = streams, server, how, is_bound
        self._inputs: Sequence[Input] = [streams.input(name, EVENTS) for name in ("l", "r")]
        self._taken = 0
        self.output: Output = {}

    def add(self, number: int, batch: Batch) -> None:
        time = f"2024-01-01T{10 + number * BATCH_MIN // 60}:{number * BATCH_MIN % 60:02d}:00.000Z"
        for source, keys in zip(self._inputs, batch[1:], strict=True):
            source.add(
                [{"k": k, "v": 100 * number + at, "ts": time} for at, k in enumerate(str(keys))]
            )

    def batch(self, number: int, batch: Batch) -> list[str]:
        """Returns what the batch and the one without data after it gave out."""
        if batch[0]:
            shift(self._server, batch[0])
        self.add(number, batch)
        return self.again()

    def again(self) -> list[str]:
        """Starts the query until nothing is left to do."""
        self._streams.run(self.frame(), "query", mode="append", output=self.output)
        found = [row for at in sorted(self.output) if at >= self._taken for row in self.output[at]]
        self._taken = max(self.output, default=-1) + 1
        return sorted(found)

    def fail(self) -> list[str]:
        """Runs a batch whose sink fails after its state was committed; returns its rows."""
        collected: list[str] = []

        def sink(batch: DataFrame, _: int) -> None:
            collected.extend(str(row) for row in batch.collect())
            raise RuntimeError("the sink failed")

        writer = self.frame().writeStream.outputMode("append").foreachBatch(sink)
        checkpoint = str(self._streams.checkpoint("query"))
        with pytest.raises(StreamingQueryException, match="the sink failed"):
            run_to_end(
                writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start
            )
        return sorted(collected)

    def frame(self) -> DataFrame:
        left, right = (source.stream(self._streams.spark) for source in self._inputs)
        build = near if self._is_bound else any_time
        columns = ["l.k", "l.v as lv"] + (["r.v as rv"] if self._how != "left_semi" else [])
        return build(left, right, self._how).selectExpr(*columns)


def life(seed: int) -> Iterator[Batch]:
    """Yields batches with different rates of the two sides; it is clear which keys have expired."""
    dice = random.Random(seed)
    now, added = 0, dict[str, int]()
    for _ in range(BATCHES):
        waits = [0, 100, 400, 600, 900, 1150, 1300]
        dice.shuffle(waits)
        wait = next(
            w for w in waits if not any(TTL_S - 20 < now + w - at < TTL_S + STEP_S + 20
                                        for at in added.values())
        )  # fmt: skip
        now += wait
        left = "".join(dice.choices("abcd", k=dice.choice([0, 1, 5])))
        right = "".join(dice.choices("bcde", k=dice.choice([0, 0, 1, 3])))
        yield wait, left + CLOCK, right + CLOCK
        added |= dict.fromkeys(left + right + CLOCK, now)


@pytest.fixture
def server(shared_redis_server: RedisServer) -> Iterator[Redis]:
    with Redis.from_url(shared_redis_server.url) as client:
        client.flushdb()
        yield client


@pytest.fixture(params=["1", "2"])
def checkpoint_format(request: pytest.FixtureRequest, streams: Streams) -> Iterator[str]:
    before = streams.spark.conf.get(FORMAT)
    streams.spark.conf.set(FORMAT, request.param)
    yield request.param
    streams.spark.conf.set(FORMAT, str(before))


@pytest.mark.parametrize(
    ("how", "is_bound"),
    [
        ("inner", False),
        pytest.param("inner", True, marks=pytest.mark.long),
        ("left_outer", True),
        ("left_semi", True),
    ],
)
@pytest.mark.compatibility("time to live", "{how} join, checkpoint format {checkpoint_format}")
@pytest.mark.compatibility(
    "stream-stream join", "{how}, state format 2", column=compatibility.TIME_TO_LIVE
)
@pytest.mark.usefixtures("checkpoint_format")
def test_join_keys_expire(
    streams: Streams, server: Redis, redis_conf: Callable[..., None], how: str, is_bound: bool
) -> None:
    redis_conf({"stateTtl": f"{TTL_S}s"})
    lives = JoinLives(streams, server, how, is_bound=is_bound)
    batches = list(life(seed=len(how) + is_bound))
    plain = Plain(how, is_bound)
    expected = [plain.batch(number, batch) for number, batch in enumerate(batches)]
    assert [lives.batch(number, batch) for number, batch in enumerate(batches)] == expected
    assert any(expected)


@pytest.mark.usefixtures("checkpoint_format")
def test_join_that_runs_again_returns_the_same_rows(
    streams: Streams, server: Redis, redis_conf: Callable[..., None]
) -> None:
    redis_conf({"stateTtl": f"{TTL_S}s"})
    lives = JoinLives(streams, server, "inner", is_bound=False)
    assert lives.batch(0, (0, "ab", "a")) == ["Row(k='a', lv=0, rv=0)"]
    assert lives.batch(1, (700, "", "b")) == ["Row(k='b', lv=1, rv=100)"]
    # The key `a` expires, and `b` was renewed by its right row.
    shift(server, 500)
    lives.add(2, (0, "ab", "ab"))
    expected = [
        "Row(k='a', lv=200, rv=200)",
        "Row(k='b', lv=1, rv=201)",
        "Row(k='b', lv=201, rv=100)",
        "Row(k='b', lv=201, rv=201)",
    ]
    assert lives.fail() == expected
    drop_attempts(server, "right-keyToNumValues", "right-keyWithIndexToValue")
    assert lives.fail() == expected
    drop_attempts(server, "left-keyWithIndexToValue", "right-keyWithIndexToValue")
    assert lives.again() == expected
    assert lives.batch(3, (300, "a", "")) == ["Row(k='a', lv=300, rv=200)"]


def drop_attempts(server: Redis, *stores: str) -> None:
    """Drops the attempts above the opened version of some stores, as if a task had died before."""
    dropped = 0
    hashes = [store_hash(store) for store in stores]
    for meta in server.scan_iter(match="*:m"):
        manifest = manifest_of(server, meta)
        opened, latest = int(manifest[b"o"]), int(manifest[b"l"])
        if latest == opened or not any(one in meta.decode() for one in hashes):
            continue
        gone = [name for name in manifest if name[:2] == b"d:"]
        gone = [name for name in gone if int(name.split(b":")[1]) == latest]
        server.hdel(meta, *gone, "b")
        server.hset(meta, mapping={"l": opened, "lu": manifest[b"ou"]})
        dropped += len(gone)
    assert dropped, "no partition has an attempt"


def test_all_stores_of_a_join_have_one_time_and_leave_no_rows(
    streams: Streams,
    server: Redis,
    redis_conf: Callable[..., None],
    shared_redis_server: RedisServer,
) -> None:
    redis_conf({"stateTtl": f"{TTL_S}s"})
    lives = JoinLives(streams, server, "inner", is_bound=False)
    lives.batch(0, (0, "aab", "abc"))
    lives.batch(1, (600, "a", "c"))
    lives.batch(2, (600, "d", ""))
    times = {parse_entry(entry.decode()).time for entry in newest_entries(server)}
    assert len(times) == 1
    checkpoint = streams.checkpoint("query")
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    counts: Mapping[str, Mapping[str, int]] = {
        "left": {"a": 3, "d": 1},
        "right": {"a": 1, "c": 2},
    }
    with redis_state.connect(shared_redis_server.url) as reader:
        for side, found in counts.items():
            of = reader.query(query).operator(store=f"{side}-keyToNumValues")
            # The driver of a query that has ended confirms its last batch a moment later.
            listed = [tuple(row.values()) for row in of.to_arrow(at="latest").to_pylist()]
            assert {row[0]: row[-1] for row in listed} == found
            rows = reader.query(query).operator(store=f"{side}-keyWithIndexToValue")
            keys = [next(iter(row.values())) for row in rows.to_arrow(at="latest").to_pylist()]
            assert {key: keys.count(key) for key in keys} == found
    for side, found in counts.items():
        read = streams.spark.read.format("statestore").option("path", str(checkpoint))
        frame = read.option("joinSide", side).load().select("key.field0")
        rows_read = [row[0] for row in frame.collect()]
        assert {key: rows_read.count(key) for key in rows_read} == found


def newest_entries(server: Redis) -> Iterator[bytes]:
    """Yields the entry of the newest delta of each partition of each store."""
    for meta in server.scan_iter(match="*:m"):
        manifest = manifest_of(server, meta)
        yield manifest[b"d:%b:%b" % (manifest[b"l"], manifest[b"lu"])]


def test_join_gets_and_loses_a_time_to_live(
    streams: Streams, server: Redis, redis_conf: Callable[..., None]
) -> None:
    lives = JoinLives(streams, server, "inner", is_bound=False)
    lives.batch(0, (0, "ab", ""))
    redis_conf({"stateTtl": f"{TTL_S}s"})
    assert lives.batch(1, (0, "", "a")) == ["Row(k='a', lv=0, rv=100)"]
    assert lives.batch(2, (TTL_S - 200, "", "a")) == ["Row(k='a', lv=0, rv=200)"]
    assert lives.batch(3, (350, "", "ab")) == ["Row(k='a', lv=0, rv=300)"]
    # A shorter one counts for keys that are written from now on, and shortens no other.
    redis_conf({"stateTtl": "100s"})
    assert lives.batch(4, (0, "ac", "")) == [
        "Row(k='a', lv=400, rv=100)",
        "Row(k='a', lv=400, rv=200)",
        "Row(k='a', lv=400, rv=300)",
    ]
    assert lives.batch(5, (200, "", "ac")) == [
        "Row(k='a', lv=0, rv=500)",
        "Row(k='a', lv=400, rv=500)",
    ]
    streams.spark.conf.unset(PREFIX + "stateTtl")
    assert lives.batch(6, (0, "", "ac")) == [
        "Row(k='a', lv=0, rv=600)",
        "Row(k='a', lv=400, rv=600)",
    ]
