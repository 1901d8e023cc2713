"""`readStream` of the data source without a session, driven as Spark drives it."""

from __future__ import annotations

import inspect
import json
import pickle
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming import datasource as limits

from pyspark_redis_state import DefaultSource
from redis_state import StateStoreId, StateStoreProviderId, keys
from redis_state.errors import ConfigError, Kind, NotFoundError, StateError, UsageError
from redis_state.format.header import Tombstone
from redis_state.spark.live import change_stream
from redis_state.spark.worker import WORKER
from redis_state.store.provider import StateStoreProvider
from tests.contract.planting import GEN, Planted, uid
from tests.contract.test_data_source import struct
from tests.support.redis_server import RedisServer

ALL = limits.ReadAllAvailable()
Offset = dict[str, str]
Row = tuple[int, str, Any, Any]


@pytest.fixture(autouse=True)
def no_connection_is_left() -> Iterator[None]:
    yield
    WORKER.close()


@pytest.fixture
def planted(redis_server: RedisServer) -> Planted:
    planted = Planted(redis_server.client())
    planted.register()
    planted.commit(1, [({"carrier": f"c{n}"}, {"count": n, "total": 0.0}) for n in range(20)])
    planted.commit(2, [({"carrier": "c1"}, {"count": 100, "total": 0.0})])
    return planted


class Driven:
    """Drives a stream as Spark does, and keeps its log of offsets.

    Attributes:
        log: The end of each batch, also of one that failed.
        plain: Ask as Spark 4.0 and 4.1 do.
    """

    def __init__(self, server: RedisServer, *, plain: bool = False, **options: str) -> None:
        given = {"url": server.url, "query": "flights", **options}
        self.source = DefaultSource(given)
        self.log: list[str] = []
        self.plain = plain
        self.restart()

    def restart(self) -> None:
        self.reader: Any = self.source.streamReader(self.source.schema())
        if self.plain and self.log:
            last = json.loads(self.log[-1])
            assert self.reader.partitions(last, last) == []

    def start(self) -> Offset:
        """Offset at which the next batch begins."""
        if not self.log:
            found: Offset = json.loads(json.dumps(self.reader.initialOffset()))
            return found
        return json.loads(self.log[-1])  # type: ignore[no-any-return]  # an offset

    def latest(self, limit: limits.ReadLimit = ALL) -> str:
        found = self.reader.latestOffset() if self.plain else None
        return json.dumps(found or self.reader.latestOffset(self.start(), limit))

    def read(self, start: Offset, end: str) -> list[Row]:
        """The rows of a micro-batch, each task with a copy of the reader."""
        found: list[Row] = []
        for part in self.reader.partitions(start, json.loads(end)):
            copy = pickle.loads(pickle.dumps(self.reader))
            for batch in copy.read(pickle.loads(pickle.dumps(part))):
                found += [tuple(row.values()) for row in batch.to_pylist()]
        return found

    def batch(self, limit: limits.ReadLimit = ALL) -> list[Row]:
        """The next micro-batch; nothing if none came."""
        start, end = self.start(), self.latest(limit)
        if self.log and end == self.log[-1]:
            return []
        found = self.read(start, end)
        self.log.append(end)
        return found


def applied(rows: list[Row], known: dict[str, int]) -> None:
    for _, change, key, value in sorted(rows, key=lambda row: row[0]):
        if change == "removed":
            assert value is None
            known.pop(key["carrier"], None)
        else:
            known[key["carrier"]] = value["count"]


def test_stream_yields_the_whole_state_then_changes(
    redis_server: RedisServer, planted: Planted
) -> None:
    stream = Driven(redis_server, since="start")
    kind = "batch:bigint,change:string,key:struct<carrier:string>,value:struct<count:bigint,"
    assert stream.source.schema().simpleString() == f"struct<{kind}total:double>>"
    first = stream.batch()
    assert {row[:2] for row in first} == {(1, "initial")}
    assert sorted(row[3]["count"] for row in first) == sorted([0, *range(2, 20), 100])
    assert stream.batch() == []
    planted.commit(3, [({"carrier": "c2"}, None), ({"carrier": "new"}, {"count": 7, "total": 1})])
    planted.commit(4, [({"carrier": "c3"}, {"count": 1, "total": 1})])
    assert sorted(stream.batch(), key=str) == [
        (2, "put", {"carrier": "new"}, {"count": 7, "total": 1.0}),
        (2, "removed", {"carrier": "c2"}, None),
        (3, "put", {"carrier": "c3"}, {"count": 1, "total": 1.0}),
    ]
    assert stream.batch() == []


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_replayed_stream_equals_the_state_over_restarts(
    redis_server: RedisServer, seed: int, plain: bool
) -> None:
    dice = random.Random(seed)
    planted = Planted(redis_server.client(), partitions=3)
    planted.register()
    rows: dict[str, int] = {}
    known: dict[str, int] = {}
    stream: Driven | None = None
    seen: list[tuple[int, str]] = []
    for version in range(1, 25):
        names = [f"c{n}" for n in dice.sample(range(40), dice.randrange(1, 12))]
        changes: list[Any] = []
        for name in names:
            gone = name in rows and dice.random() < 0.4
            value = None if gone else {"count": dice.randrange(100), "total": 0.0}
            changes.append(({"carrier": name}, value))
            rows.pop(name, None)
            rows |= {} if value is None else {name: value["count"]}  # type: ignore[dict-item]  # no float
        planted.commit(version, changes)
        if stream is None:
            stream = Driven(redis_server, plain=plain, since="start")
        if dice.random() < 0.5:
            continue
        start, end = stream.start(), stream.latest()
        if stream.log and end == stream.log[-1]:
            continue
        found = stream.read(start, end)
        stream.log.append(end)
        if dice.random() < 0.5:
            # The batch failed; the query starts again, and repeats it.
            stream.restart()
            before = json.loads(stream.log[-2]) if len(stream.log) > 1 else None
            again = stream.read(before or stream.reader.initialOffset(), end)
            assert sorted(again, key=str) == sorted(found, key=str)
        seen += [(row[0], row[2]["carrier"]) for row in found]
        applied(found, known)
    assert stream is not None
    rest = stream.batch()
    seen += [(row[0], row[2]["carrier"]) for row in rest]
    applied(rest, known)
    assert known == rows
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("plain", [False, True])
def test_restarted_first_batch_keeps_its_start(
    redis_server: RedisServer, planted: Planted, plain: bool
) -> None:
    stream = Driven(redis_server, plain=plain, since="latest")
    stream.start()
    planted.commit(3, [({"carrier": "c3"}, {"count": 3, "total": 0})])
    end = stream.latest()
    first = stream.read(stream.start(), end)
    assert [row[0] for row in first] == [2]
    # It fails; the query starts again when the state has gone on.
    planted.commit(4, [({"carrier": "c4"}, {"count": 4, "total": 0})])
    stream.restart()
    assert stream.read(stream.start(), end) == first
    stream.log.append(end)
    assert [row[0] for row in stream.batch()] == [3]


def test_an_empty_first_batch_keeps_where_the_stream_began(
    redis_server: RedisServer, planted: Planted
) -> None:
    stream = Driven(redis_server, plain=True, since="latest")
    assert stream.batch() == []
    assert len(stream.log) == 1
    planted.commit(3, [({"carrier": "c3"}, {"count": 3, "total": 0})])
    # `Trigger.AvailableNow` of Spark 4.1 tells a source that starts again nothing before it asks.
    stream.plain = False
    stream.restart()
    end = json.dumps(stream.reader.latestOffset())
    assert [row[0] for row in stream.read(json.loads(stream.log[-1]), end)] == [2]


def test_batch_limit_splits_the_stream(redis_server: RedisServer, planted: Planted) -> None:
    stream = Driven(redis_server, since="0", maxBatchesPerTrigger="2")
    for version in range(3, 8):
        planted.commit(version, [({"carrier": "c1"}, {"count": version, "total": 0})])
    limit = stream.reader.getDefaultReadLimit()
    stream.reader.prepareForTriggerAvailableNow()
    planted.commit(8, [({"carrier": "c1"}, {"count": 8, "total": 0})])
    numbers = [sorted({row[0] for row in stream.batch(limit)}) for _ in range(4)]
    assert numbers == [[1, 2], [3, 4], [5, 6], []]
    stream.restart()
    assert [row[0] for row in stream.batch(ALL)] == [7]
    assert stream.reader.getDefaultReadLimit() == limits.ReadMaxFiles(2)
    assert len(inspect.signature(stream.reader.latestOffset).parameters) == 2


def test_a_stream_that_waits_sends_one_command(redis_server: RedisServer, planted: Planted) -> None:
    stream = Driven(redis_server, since="latest")
    for _ in range(3):
        stream.batch()
    client = redis_server.client()
    before = client.info("commandstats")
    stream.batch()
    after = client.info("commandstats")
    sent = {
        name: one["calls"] - before.get(name, {"calls": 0})["calls"] for name, one in after.items()
    }
    assert {name: calls for name, calls in sent.items() if calls and "info" not in name} == {
        "cmdstat_hmget": 1
    }
    # Only one of the partitions has gone on: the batch is not there yet.
    planted.delta(1, 3, {})
    assert stream.batch() == []
    planted.commit(3, [({"carrier": "c9"}, {"count": 9, "total": 0})])
    assert [row[2] for row in stream.batch()] == [{"carrier": "c9"}]


def test_token_of_changes_is_a_valid_start(redis_server: RedisServer, planted: Planted) -> None:
    import redis_state

    with redis_state.connect(redis_server.url) as reader:
        (batch,) = reader.query("flights").operator().changes(since=0)
    planted.commit(3, [({"carrier": "c3"}, {"count": 3, "total": 0})])
    stream = Driven(redis_server, since=batch.token)
    assert [row[0] for row in stream.batch()] == [2]


def test_stream_that_cannot_continue_raises_with_the_restart_steps(
    redis_server: RedisServer, planted: Planted
) -> None:
    stream = Driven(redis_server, since="latest")
    stream.batch()
    for version in (3, 4):
        planted.commit(version, [({"carrier": "c3"}, {"count": version, "total": 0})])
    end = stream.latest()
    for number in range(planted.partitions):
        planted.drop(number, f"d:3:{uid(3)}")
    with pytest.raises(
        StateError, match=r"new checkpointLocation and since=start.*since=2"
    ) as caught:
        stream.read(stream.start(), end)
    assert caught.value.kind is Kind.VERSION_EXPIRED
    with pytest.raises(StateError, match="VERSION_EXPIRED"):
        stream.latest()
    # The query goes back, and its newest batch is one that the stream has not seen.
    client = redis_server.client()
    for number in range(planted.partitions):
        client.hset(keys.meta(planted.id(number)), mapping={"e": "2", "o": "1", "ou": uid(1)})
    with pytest.raises(StateError, match=r"went back below batch 1.*abandoned batches") as caught:
        stream.latest()
    assert caught.value.kind is Kind.STATE_LOST


def test_a_state_that_is_dropped_ends_the_stream(
    redis_server: RedisServer, planted: Planted
) -> None:
    stream = Driven(redis_server, since="latest")
    stream.batch()
    client = redis_server.client()
    for number in range(planted.partitions):
        client.hset(keys.meta(planted.id(number)), "f", f"purged:{GEN}")
    with pytest.raises(StateError, match="purged"):
        stream.latest()
    client.delete(*[keys.meta(planted.id(number)) for number in range(planted.partitions)])
    with pytest.raises(StateError, match="STATE_LOST"):
        stream.latest()
    client.flushdb()
    with pytest.raises(NotFoundError):
        stream.latest()
    # It comes back on another checkpoint.
    other = Planted(client, gen="f" * 32)
    other.register()
    other.commit(1, [({"carrier": "c1"}, {"count": 1, "total": 0.0})])
    stream.restart()
    with pytest.raises(ConfigError, match=r"another checkpoint.*new checkpointLocation"):
        stream.latest()


def test_columns_can_be_chosen(redis_server: RedisServer, planted: Planted) -> None:
    stream = Driven(redis_server, since="latest")
    stream.start()
    planted.commit(3, [({"carrier": "c3"}, {"count": 3, "total": 0.5}), ({"carrier": "c4"}, None)])
    end = stream.latest()
    parts = stream.reader.partitions(stream.start(), json.loads(end))

    def of(kind: str) -> list[Any]:
        made = stream.source.streamReader(struct(kind))
        tables = [pa.Table.from_batches([one]) for part in parts for one in made.read(part)]
        return sorted((tuple(row.values()) for one in tables for row in one.to_pylist()), key=str)

    assert of("change string, batch integer") == [("put", 2), ("removed", 2)]
    with pytest.raises(UsageError, match=r"no column 'carrier'.*batch, change, key, value"):
        of("carrier string")
    with pytest.raises(UsageError, match="'key'"):
        of("key integer")


def test_removed_ranges_are_streamed_as_removals(
    redis_server: RedisServer, planted: Planted
) -> None:
    stream = Driven(redis_server, since="start")
    known: dict[str, int] = {}
    applied(stream.batch(), known)
    for number in range(planted.partitions):
        planted.delta(number, 3, {}, tombstones=[Tombstone(0, None, None)])
    applied(stream.batch(), known)
    assert known == {}


def test_python_store_is_streamed(redis_server: RedisServer) -> None:
    id_ = StateStoreProviderId(StateStoreId("orders", 0, 0), "run")
    provider = StateStoreProvider(id_, config=redis_server.url)
    version = 0
    for changes in ({"a": 1, "b": {"n": 2}}, {"a": None}):
        store = provider.get_store(version)
        for key, value in changes.items():
            store.remove(key) if value is None else store.put(key, value)
        version = store.commit()
    provider.get_store(version).abort()
    provider.close()
    stream = Driven(redis_server, query="orders", since="0")
    assert stream.batch() == [(1, "removed", '"a"', None)]
    whole = Driven(redis_server, query="orders", since="start")
    assert whole.batch() == [(1, "initial", '"b"', '{"n": 2}')]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, 'since", "start"'),
        ({"since": "start", "at": "1"}, "'at' is for spark.read"),
        ({"since": "start", "maxBatchesPerTrigger": "0"}, "not a whole number above 0"),
        ({"since": "rs1-x"}, "not a token"),
    ],
)
def test_wrong_option_is_named(
    redis_server: RedisServer,
    planted: Planted,  # noqa: ARG001  # makes the state
    options: dict[str, str],
    words: str,
) -> None:
    with pytest.raises(ConfigError, match=words):
        Driven(redis_server, plain=False, **options).start()


def test_since_on_a_batch_read_is_refused(redis_server: RedisServer, planted: Planted) -> None:  # noqa: ARG001  # makes the state
    made = DefaultSource({"url": redis_server.url, "query": "flights", "since": "start"})
    with pytest.raises(ConfigError, match=r"spark\.readStream"):
        made.reader(made.schema())


def test_batch_limit_on_an_older_spark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_stream, "has_limits", lambda: False)
    options = {"since": "start", "maxbatchespertrigger": "3"}
    with pytest.raises(ConfigError, match=r"Spark 4\.2"):
        change_stream.stream_options(options)
