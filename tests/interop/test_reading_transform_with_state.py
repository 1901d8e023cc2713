"""Python reads the state variables and timers of `transformWithState` as Spark's reader does."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from redis_state.cli.main import main
from redis_state.errors import ConfigError, NotFoundError
from redis_state.live import Reader
from redis_state.reader.operator_state import OperatorState
from tests.spark.streams import PROVIDER, REDIS, Streams
from tests.spark.test_operators import EVENTS, events
from tests.support.exporting import check_round_trip
from tests.support.redis_server import RedisServer
from tests.support.replaying import check_replay
from tests.support.tables import assert_tables_are_items

pytestmark = pytest.mark.spark

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
TOTAL = "n long, mean double, price decimal(20,2), inner struct<a int, b string>, all array<long>"
FAR = 1 << 60
TIMERS = "$eventTimers_keyToTimestamp"


class Variables(StatefulProcessor):
    """Value, list and map state, and two timers a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", TOTAL)
        self._seen = handle.getListState("seen", "v long, k string")
        self._signs = handle.getMapState("signs", "sign string, odd boolean", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        values = sorted(row["v"] for row in rows)
        n = sum(values)
        inner = None if n % 3 == 0 else (len(values), key[0])
        self._total.update((n, n / 2, Decimal(n) / 4, inner, values))
        for value in values:
            self._seen.appendValue((value, key[0] if value > 0 else None))
            self._signs.updateValue(("minus" if value < 0 else "plus", value % 2 == 1), (value,))
        self._handle.registerTimer(FAR + abs(n))
        self._handle.registerTimer(FAR)
        yield Row(k=key[0])


@pytest.fixture(scope="module", params=["unsaferow", "avro"])
def encoding(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def checkpoint(streams: Streams, encoding: str) -> Iterator[tuple[Streams, str]]:
    source = streams.input("in", EVENTS)
    for batch in events(11, rows=12, keys=5)[:3]:
        source.add(batch[0])
    grouped = source.stream(streams.spark).withWatermark("ts", "1 minute").groupBy("k")
    streams.spark.conf.set(ENCODING, encoding)
    streams.spark.conf.set(PROVIDER, REDIS)
    try:
        frame = grouped.transformWithState(
            Variables(), outputStructType="k string", outputMode="Update", timeMode="EventTime"
        )
        ran = streams.run(frame, "q", provider=REDIS)
        yield streams, str(ran.id)
    finally:
        streams.spark.conf.unset(ENCODING)


def rows_of_spark(streams: Streams, **options: Any) -> list[Row]:
    reader = streams.spark.read.format("statestore").options(**options)
    return list(reader.load(str(streams.checkpoint("q"))).collect())


def plain(value: Any) -> Any:
    """Rows of Spark and of the reader alike, as dicts."""
    if isinstance(value, Row):
        value = value.asDict()
    elif hasattr(value, "as_dict"):
        value = value.as_dict()
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return value


def same(found: Iterable[Any], expected: Iterable[Any]) -> None:
    first, second = sorted(map(str, found)), sorted(map(str, expected))
    assert first == second
    assert first


def test_everything_is_read(
    checkpoint: tuple[Streams, str],
    reader: Reader,
    shared_redis_server: RedisServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    streams, id_ = checkpoint
    query = reader.query(id_)
    commits = streams.checkpoint("q") / "commits"
    version = max(int(one.name) for one in commits.iterdir() if one.name.isdigit()) + 1

    def operator(family: str) -> OperatorState:
        return query.operator(0, family=family)

    names = [family.name for family in operator("default").families(version)]
    for name in names:
        if name != "default":
            assert_tables_are_items(operator(name), version=version)
    assert {"total", "seen", "signs", TIMERS} <= set(names)
    # Value state.
    totals = [
        (plain(row.key), plain(row.value)) for row in rows_of_spark(streams, stateVarName="total")
    ]
    same(((plain(k), plain(v)) for k, v in operator("total").items(version)), totals)
    state = operator("total")
    for key, value in totals:
        assert plain(state.get(key, version)) == value
    assert state.get({"k": "nobody"}, version) is None
    # List state.
    elements = [
        (plain(row.key), plain(row.list_element))
        for row in rows_of_spark(streams, stateVarName="seen")
    ]
    found = list(operator("seen").list_items(version))
    same(((plain(k), one) for k, several in found for one in several), elements)
    key = totals[0][0]
    assert operator("seen").get_list(key, version) == [v for k, v in elements if k == key]
    assert operator("seen").get_list({"k": "nobody"}, version) == []
    # Map state.
    entries = [
        ({"key": plain(row.key), "userKey": plain(row.user_map_key)}, plain(row.user_map_value))
        for row in rows_of_spark(streams, stateVarName="signs")
    ]
    same(((plain(k), plain(v)) for k, v in operator("signs").items(version)), entries)
    for key, value in entries:
        assert operator("signs").get(key, version) == value
    # Timers: by key, and in the order of their times.
    timers = [
        {"key": plain(row.key), "expiryTimestampMs": row.expiration_timestamp_ms}
        for row in rows_of_spark(streams, readRegisteredTimers=True)
    ]
    for family in (TIMERS, "$eventTimers_timestampToKey"):
        rows = [plain(key) for key, _ in operator(family).items(version)]
        same((sorted(row.items(), key=str) for row in rows), (sorted(t.items()) for t in timers))
        assert operator(family).get(rows[0], version) is not None
    # What each batch changed.
    for family in ("total", "seen", "signs", TIMERS):
        check_replay(operator(family), version, lists=family == "seen")
    check_round_trip(shared_redis_server.url, query.info.gen, at=version - 1)
    # What does not fit is told.
    with pytest.raises(NotFoundError, match="'total'"):
        operator("absent").get({"k": "k1"}, version)
    with pytest.raises(NotFoundError, match=r"'total'.* Spark's own: '\$.*") as caught:
        operator("default").get({"k": "k1"}, version)
    assert "a family of its own" in str(caught.value)
    assert "'default'" not in str(caught.value).partition("Name one")[2]
    with pytest.raises(ConfigError, match="get_list"):
        operator("seen").get({"k": "k1"}, version)
    with pytest.raises(ConfigError, match="Use get and items"):
        list(operator("total").list_items(version))
    words = ["get", id_, "--url", shared_redis_server.url, "--version", str(version)]
    assert main([*words, "--family", "seen", "k=k1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == [v for k, v in elements if k == {"k": "k1"}]
