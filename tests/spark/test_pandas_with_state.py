"""`apply_in_pandas_with_state` against Spark's native call, and what the native call cannot do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.streaming.state import GroupState as SparkGroupState
from pyspark.sql.streaming.state import GroupStateTimeout as Timeout

import redis_state
from redis_state import GroupState, StateObject
from redis_state.errors import ConfigError, FormatError
from tests.spark.streams import HDFS, PROVIDER, REDIS, Output, Streams
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

EVENTS = "k string, v long, ts timestamp"
OUTPUT = "k string, total long, calls long, why string, watermark long"
NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
Frames = Iterator[pd.DataFrame]
Group = Callable[[GroupedData], DataFrame]


def event(minute: int, key: str, value: int) -> dict[str, Any]:
    return {"k": key, "v": value, "ts": f"2024-01-01T10:{minute:02d}:00.000Z"}


BATCHES = [
    [event(0, "a", 1), event(1, "b", 2), event(1, "a", 3), event(0, "c", 7)],
    [event(5, "a", 4), event(6, "d", 10)],
    [event(20, "b", 5), event(21, "e", 1)],
    [event(40, "a", 6), event(41, "f", 2)],
    [event(41, "f", 2)],
]


@pytest.fixture(autouse=True)
def _batches_with_data_only(streams: Streams) -> Iterator[None]:
    """Switches off empty batches, which time-outs by the clock would start for ever."""
    conf = streams.spark.conf
    conf.set(NO_DATA_BATCHES, "false")
    yield
    conf.unset(NO_DATA_BATCHES)


def same_steps(timeout: str, *, as_object: bool) -> Callable[..., Frames]:
    """One function for both calls; closures travel by value, workers cannot import this module."""

    def step(key: tuple[str], frames: Frames, state: Any) -> Frames:
        def out(total: int, calls: int, why: str) -> pd.DataFrame:
            watermark, before = state.getCurrentWatermarkMs(), state.oldTimeoutTimestamp
            if timeout == "ProcessingTimeTimeout":
                before = before > 0  # the time itself differs from run to run
            why = f"{why} (time-out {before})"
            row = {"k": key[0], "total": total, "calls": calls, "why": why, "watermark": watermark}
            return pd.DataFrame([row])

        old = state.getOption
        known = old if old is None or not as_object else (old["total"], old["calls"])
        total, calls = known or (0, 0)
        if state.hasTimedOut:
            state.remove()
            yield out(total, calls, "timed out")
            return
        total += sum(int(frame["v"].sum()) for frame in frames)
        if total % 10 == 0:
            if state.exists:
                state.remove()
            yield out(total, calls, "removed")
            return
        state.update({"total": total, "calls": calls + 1} if as_object else (total, calls + 1))
        assert state.exists
        if timeout == "EventTimeTimeout":
            state.setTimeoutTimestamp(max(state.getCurrentWatermarkMs(), 1) + 600_000)
        elif timeout == "ProcessingTimeTimeout":
            state.setTimeoutDuration(1)
            assert state.getCurrentProcessingTimeMs() > 0
        yield out(total, calls + 1, "went on")

    return step


def run_both(
    streams: Streams, timeout: str, mode: str, rows: list[list[dict[str, Any]]]
) -> tuple[Output, Output]:
    def native(grouped: GroupedData) -> DataFrame:
        step = same_steps(timeout, as_object=False)
        schema = "total long, calls long"
        return grouped.applyInPandasWithState(step, OUTPUT, schema, mode, timeout)

    def wrapped(grouped: GroupedData) -> DataFrame:
        step = same_steps(timeout, as_object=True)
        return redis_state.apply_in_pandas_with_state(
            grouped, step, OUTPUT, state=dict, output_mode=mode, timeout=timeout
        )

    outputs: list[Output] = []
    for name, call in (("native", native), ("wrapped", wrapped)):
        source = streams.input(name, EVENTS)
        streams.spark.conf.set(PROVIDER, REDIS)
        output: Output = {}
        for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            for batch in half:
                source.add(batch)
            grouped = source.stream(streams.spark).withWatermark("ts", "1 minute").groupBy("k")
            streams.run(call(grouped), name, mode=mode, output=output)
        outputs.append(output)
    return outputs[0], outputs[1]


@pytest.mark.parametrize(
    ("timeout", "mode"),
    [
        (Timeout.NoTimeout, "update"),
        (Timeout.EventTimeTimeout, "update"),
        (Timeout.EventTimeTimeout, "append"),
        (Timeout.ProcessingTimeTimeout, "update"),
    ],
)
def test_wrapped_call_equals_sparks_call(streams: Streams, timeout: str, mode: str) -> None:
    native, wrapped = run_both(streams, timeout, mode, BATCHES)
    assert wrapped == native
    text = str(native)
    assert "went on" in text
    assert "removed" in text
    assert ("timed out" in text) == (timeout != Timeout.NoTimeout)


def sessions(cls: Any) -> Callable[[GroupedData], DataFrame]:
    """Keeps the values of each key in an object with the fields `user` and `values`."""
    name = "user" if "user" in (getattr(cls, "cls", cls)).__dataclass_fields__ else "owner"
    made = getattr(cls, "cls", cls)

    def step(key: tuple[str], frames: Frames, state: GroupState[Any]) -> Frames:
        session = state.get if state.exists else made(**{name: key[0]})
        for frame in frames:
            session.values.extend(frame["v"])
        state.update(session)
        yield pd.DataFrame({"k": [key[0]], "total": [sum(session.values)], "text": [str(session)]})

    def call(grouped: GroupedData) -> DataFrame:
        return redis_state.apply_in_pandas_with_state(
            grouped, step, "k string, total long, text string", state=cls, output_mode="update"
        )

    return call


def first_class() -> type:
    @dataclass
    class Session:
        user: str
        values: list[int] = field(default_factory=list)

    return Session


def grown_class() -> type:
    @dataclass
    class Session:
        user: str
        values: list[int] = field(default_factory=list)
        tier: str = "free"

    return Session


def renamed_class() -> StateObject[Any]:
    @dataclass
    class Session:
        owner: str
        values: list[int] = field(default_factory=list)
        tier: str = "free"

    def migrate(body: dict[str, Any], version: int) -> dict[str, Any]:
        assert version == 1
        return {**{k: v for k, v in body.items() if k != "user"}, "owner": body["user"]}

    return StateObject(Session, version=2, migrate=migrate)


class Query:
    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.source = streams.input("events", EVENTS)
        self.output: Output = {}

    def run(self, cls: Any, *batches: list[dict[str, Any]]) -> str:
        for batch in batches:
            self.source.add(batch)
        self.streams.spark.conf.set(PROVIDER, REDIS)
        frame = sessions(cls)(self.source.stream(self.streams.spark).groupBy("k"))
        return str(self.streams.run(frame, "query", output=self.output).id)

    def last(self) -> str:
        return "\n".join(self.output[max(self.output)])


def test_class_gains_fields_on_one_checkpoint(streams: Streams) -> None:
    query = Query(streams)
    query.run(first_class(), [event(0, "a", 1)], [event(0, "b", 2)])
    query.run(grown_class(), [event(0, "a", 3), event(0, "c", 4)])
    assert "user='a', values=[1, 3], tier='free'" in query.last()
    query.run(renamed_class(), [event(0, "a", 5), event(0, "b", 6), event(0, "d", 7)])
    assert "owner='a', values=[1, 3, 5], tier='free'" in query.last()
    assert "owner='b', values=[2, 6], tier='free'" in query.last()
    with pytest.raises(StreamingQueryException, match="newer than 1 of Session"):
        query.run(grown_class(), [event(0, "a", 8)])
    query.run(renamed_class())
    assert "values=[1, 3, 5, 8]" in query.last()


def test_objects_are_read_live(streams: Streams, shared_redis_server: RedisServer) -> None:
    query = Query(streams)
    id_ = query.run(first_class(), [event(0, "a", 1), event(0, "b", 2)], [event(0, "a", 3)])
    cls: Any = first_class()
    with redis_state.connect(shared_redis_server.url) as reader:
        rows = reader.query(id_).operator(0)
        objects = redis_state.state_objects(rows, cls)
        wait_until(lambda: objects.get({"k": "a"}) == cls("a", [1, 3]), "the last batch")
        assert objects.get({"k": "a"}, version=1) == cls("a", [1])
        assert objects.get({"k": "nobody"}) is None
        found = {key["k"]: value for key, value in objects.items(version=2)}
        assert found == {"a": cls("a", [1, 3]), "b": cls("b", [2])}
        grown: Any = grown_class()
        assert redis_state.state_objects(rows, grown).get(["b"], 2) == grown("b", [2], "free")
        with pytest.raises(FormatError, match="was stored as a dict"):
            redis_state.state_objects(rows, list).get(["b"], 2)


def test_timeout_without_a_state_has_no_object(
    streams: Streams, shared_redis_server: RedisServer
) -> None:
    def step(key: tuple[str], frames: Frames, state: GroupState[int]) -> Frames:
        if key[0] == "with":
            state.update(sum(int(frame["v"].sum()) for frame in frames))
        state.setTimeoutDuration(3_600_000)
        yield pd.DataFrame({"k": [key[0]]})

    source = streams.input("events", EVENTS)
    source.add([event(0, "with", 1), event(0, "without", 2)])
    streams.spark.conf.set(PROVIDER, REDIS)
    frame = redis_state.apply_in_pandas_with_state(
        source.stream(streams.spark).groupBy("k"),
        step,
        "k string",
        state=int,
        output_mode="update",
        timeout=Timeout.ProcessingTimeTimeout,
    )
    id_ = str(streams.run(frame, "query").id)
    with redis_state.connect(shared_redis_server.url) as reader:
        rows = reader.query(id_).operator(0)
        assert rows.get(["without"], 1) is not None
        objects = redis_state.state_objects(rows, int)
        assert objects.get(["without"], 1) is None
        assert list(objects.items(1)) == [({"k": "with"}, 1)]


def test_rows_of_another_operator_are_not_read_as_objects(
    streams: Streams, shared_redis_server: RedisServer
) -> None:
    source = streams.input("events", EVENTS)
    source.add([event(0, "a", 1)])
    query = streams.run(source.stream(streams.spark).groupBy("k").count(), "query")
    with redis_state.connect(shared_redis_server.url) as reader:
        objects = redis_state.state_objects(reader.query(str(query.id)).operator(0), int)
        with pytest.raises(ConfigError, match="the state has the columns count"):
            objects.get(["a"], 1)


def test_a_refused_object_changes_nothing(streams: Streams) -> None:
    def step(bad: bool) -> Callable[..., Frames]:
        def run(key: tuple[str], frames: Frames, state: GroupState[Any]) -> Frames:
            total = sum(int(frame["v"].sum()) for frame in frames) + (state.getOption or 0)
            state.update(total if not bad or key[0] != "b" else complex(0, 1))
            yield pd.DataFrame({"k": [key[0]], "total": [total]})

        return run

    def run(bad: bool) -> None:
        streams.spark.conf.set(PROVIDER, REDIS)
        frame = redis_state.apply_in_pandas_with_state(
            source.stream(streams.spark).groupBy("k"),
            step(bad),
            "k string, total long",
            state=object,
            output_mode="update",
        )
        streams.run(frame, "query", output=output)

    source = streams.input("events", EVENTS)
    output: Output = {}
    source.add([event(0, "a", 1), event(0, "b", 2)])
    run(bad=False)
    source.add([event(0, "a", 10), event(0, "b", 20)])
    with pytest.raises(StreamingQueryException, match="object is a complex"):
        run(bad=True)
    run(bad=False)
    assert output[1] == ["Row(k='a', total=11)", "Row(k='b', total=22)"]


@pytest.mark.parametrize("provider", [HDFS, HDFS.replace("HDFSBacked", "RocksDB")])
def test_a_session_without_our_provider_is_refused(streams: Streams, provider: str) -> None:
    streams.spark.conf.set(PROVIDER, provider)
    grouped = streams.input("none", EVENTS).stream(streams.spark).groupBy("k")
    with pytest.raises(ConfigError, match=r"StateStoreProvider.*redis_state\.configure"):
        sessions(first_class())(grouped)


def test_wrapper_has_the_members_of_sparks_class() -> None:
    public = {name for name in dir(SparkGroupState) if not name.startswith("_")}
    internal = {"json"}  # what Spark's worker sends back; it asks its own object
    assert public - internal <= set(dir(GroupState))
