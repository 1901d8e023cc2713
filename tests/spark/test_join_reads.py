"""Live reads of joins that keep their state in column families: state formats 3 and 4."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import redis_state
from redis_state.errors import NotFoundError
from redis_state.reader.query import Query
from tests.spark.streams import REDIS, ROCKSDB, Streams
from tests.spark.test_join_format_4 import begin_as
from tests.spark.test_operators import EVENTS, JOIN_FORMAT, UNKNOWN_3, UNKNOWN_4, joined
from tests.spark.test_state_reader import FORMAT_4_ENABLED, setting
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

FAMILIES = {
    3: {"keyToNumValues": True, "keyWithIndexToValue": False},
    4: {"keyWithTsToValues": False, "tsWithKey": True},
}
FORMATS = [
    pytest.param(3, marks=pytest.mark.compatibility(refused={"4.0": UNKNOWN_3})),
    pytest.param(4, marks=pytest.mark.compatibility(refused={"4.0": UNKNOWN_4, "4.1": UNKNOWN_4})),
]
# Of one key two rows come at one time, and one at another.
LEFT = [("a", 1, 1), ("a", 2, 1), ("a", 3, 2), ("b", 4, 1)]
RIGHT = [("a", 5, 2), ("c", 6, 1)]


def _events(rows: list[tuple[str, int, int]]) -> list[dict[str, Any]]:
    return [{"k": k, "v": v, "ts": f"2024-01-01T10:0{m}:00.000Z"} for k, v, m in rows]


def _micros(minute: int) -> int:
    return (1_704_103_200 + 60 * minute) * 1_000_000


def _run(streams: Streams, state_format: int) -> str:
    """Id of a join of two batches on our provider."""
    query_id = ""
    spark = streams.spark
    with (
        setting(spark, JOIN_FORMAT, str(state_format)),
        setting(spark, FORMAT_4_ENABLED, "true"),
    ):
        inputs = [streams.input(name, EVENTS) for name in ("left", "right")]
        for source, rows in zip(inputs, (LEFT, RIGHT), strict=True):
            source.add(_events(rows[:2]))
            source.add(_events(rows[2:]))
        for provider, name in ((ROCKSDB, "theirs"), (REDIS, "ours")):
            if provider == REDIS:
                begin_as(
                    streams.checkpoint("theirs"), streams.checkpoint("ours"), str(state_format)
                )
            frame = joined([source.stream(spark) for source in inputs], "inner")
            query_id = streams.run(frame, name, mode="append", provider=provider).id
    return query_id


def _families_named(state_format: int) -> dict[str, bool]:
    return {
        f"{side}-{family}": internal
        for side in ("left", "right")
        for family, internal in FAMILIES[state_format].items()
    }


@pytest.mark.parametrize("state_format", FORMATS)
def test_operators_list_the_families_of_a_join(
    streams: Streams, shared_redis_server: RedisServer, state_format: int
) -> None:
    query_id = _run(streams, state_format)
    with redis_state.connect(shared_redis_server.url) as reader:
        query = reader.query(query_id)
        wait_until(lambda: len(query.operators()[0].families) > 1, "a batch to be confirmed")
        (info,) = query.operators()
        assert info.name == "symmetricHashJoin"
        listed = {one.name: one.internal for one in info.families}
        assert listed == _families_named(state_format)
        of_default = query.operator(0)
        for call in (of_default.items, of_default.scan, of_default.to_arrow, of_default.count):
            with pytest.raises(NotFoundError, match="left-key"):
                _drained(call())
        with pytest.raises(NotFoundError, match="left-key"):
            of_default.get({"field0": "a"})
        last = next(
            name for name, internal in listed.items() if name.startswith("left") and not internal
        )
        wait_until(
            lambda: any(row["field0"] == "b" for row in query.operator(0, family=last).scan()),
            "the batches to be confirmed",
        )
        for name in listed:
            _check_reads(query, name)
        if state_format == 4:
            _check_format_4(query)
        else:
            _check_format_3(query)


def _drained(found: Any) -> Any:
    return list(found) if hasattr(found, "__next__") else found


def _check_reads(query: Query, family: str) -> None:
    """All ways to read a family give the same rows."""
    state = query.operator(0, family=family)
    lists = state.family().multi_value
    rows = list(state.scan())
    table = state.to_arrow()
    assert isinstance(table, pa.Table)
    assert rows
    assert table.num_rows == len(rows)
    assert table.column("field0").to_pylist() == [row["field0"] for row in rows]
    keyed: dict[str, Any] = {
        str(key): value for key, value in (state.list_items() if lists else state.items())
    }
    assert state.count() in (len(keyed), len(rows))
    for key, value in state.list_items() if lists else state.items():
        assert (state.get_list(key) if lists else state.get(key)) == value


def _check_format_4(query: Query) -> None:
    state = query.operator(0, family="left-keyWithTsToValues")
    found = {
        (key["field0"], key["__event_time"]): sorted(row["v"] for row in rows)
        for key, rows in state.list_items()
    }
    assert found == {("a", _micros(1)): [1, 2], ("a", _micros(2)): [3], ("b", _micros(1)): [4]}
    assert [row["v"] for row in state.get_list({"field0": "b", "__event_time": _micros(1)})] == [4]
    assert sorted(row["v"] for row in state.scan(prefix="a")) == [1, 2, 3]
    times = query.operator(0, family="right-tsWithKey")
    assert [(row["__event_time"], row["field0"]) for row in times.scan()] == [
        (_micros(1), "c"),
        (_micros(2), "a"),
    ]


def _check_format_3(query: Query) -> None:
    numbers = query.operator(0, family="left-keyToNumValues")
    assert {key["field0"]: value["value"] for key, value in numbers.items()} == {"a": 3, "b": 1}
    values = query.operator(0, family="right-keyWithIndexToValue")
    assert values.get({"field0": "c", "index": 0})["v"] == 6
