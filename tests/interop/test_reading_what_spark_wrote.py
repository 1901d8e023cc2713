"""Python reads the state that Spark wrote, by column names, at the versions that Spark names."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import redis_state
from redis_state.errors import FormatError, StateError
from redis_state.live import Reader
from redis_state.reader import Query
from tests.spark.streams import Streams
from tests.support.exporting import check_round_trip
from tests.support.redis_server import RedisServer
from tests.support.replaying import check_replay
from tests.support.tables import assert_tables_are_items
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

SCHEMA = "k string, v long, ts timestamp"
BATCHES = 3
SIGNING_KEY = "spark.sql.streaming.stateStore.redis.signingKeyFile"
START = datetime(2024, 1, 1, 10, tzinfo=timezone.utc)


def rows_of(batch: int) -> list[dict[str, Any]]:
    """Keys that are new, that change and that stay; one is null."""
    keys = ["a", "b", "ü", None, f"only{batch}"] + [f"k{n}" for n in range(batch * 10, 300)]
    return [
        {
            "k": key,
            "v": index + batch,
            "ts": (START + timedelta(minutes=batch)).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        }
        for index, key in enumerate(keys)
    ]


def run(streams: Streams, reader: Reader, build: Any, *, mode: str = "update") -> Query:
    source = streams.input("in", SCHEMA)
    for batch in range(BATCHES):
        source.add(rows_of(batch))
    frame: DataFrame = build(source.stream(streams.spark))
    return reader.query(str(streams.run(frame, "q", mode=mode).id))


def sums(batches: int) -> dict[str | None, tuple[int, int]]:
    found: dict[str | None, tuple[int, int]] = {}
    for batch in range(batches):
        for row in rows_of(batch):
            total, count = found.get(row["k"], (0, 0))
            found[row["k"]] = total + row["v"], count + 1
    return found


def test_aggregation_is_read_by_key(
    streams: Streams, reader: Reader, shared_redis_server: RedisServer
) -> None:
    query = run(
        streams,
        reader,
        lambda df: df.groupBy("k").agg(sf.sum("v").alias("total"), sf.count("*").alias("n")),
    )
    (info,) = query.operators()
    assert (info.operator, info.store, info.partitions) == (0, "default", 2)
    assert dict(query.info.partitions) == {(0, "default"): 2}
    state = query.operator(0)
    for version in range(1, BATCHES + 1):
        expected = sums(version)
        found = {key["k"]: tuple(value.values()) for key, value in state.items(version=version)}
        assert found == expected
    for key, value in sums(BATCHES).items():
        assert tuple((state.get({"k": key}, version=BATCHES) or {}).values()) == value
    assert state.get({"k": "none such"}) is None
    assert assert_tables_are_items(state, version=BATCHES) == len(sums(BATCHES))
    keys = [{"k": key} for key in (*sums(BATCHES), "none such")]
    found_many = state.get_many(keys, at=BATCHES - 1)
    assert [one and tuple(one.values()) for one in found_many] == [*sums(BATCHES).values(), None]
    with pytest.raises(StateError):
        state.get({"k": "a"}, version=BATCHES + 5)
    check_replay(state, BATCHES)
    export = check_round_trip(shared_redis_server.url, query.info.gen, at=BATCHES - 1)
    assert export.rows == len(sums(BATCHES))


def test_without_a_version_the_confirmed_one_is_read(streams: Streams, reader: Reader) -> None:
    query = run(streams, reader, lambda df: df.groupBy("k").agg(sf.sum("v"), sf.count("*")))

    def found() -> dict[Any, tuple[Any, ...]]:
        return {key["k"]: tuple(value.values()) for key, value in query.operator().items()}

    # No batch followed the last one, so the driver confirms it, soon after the query's end.
    wait_until(lambda: found() == sums(BATCHES), "the last batch")


def test_three_round_trips_to_the_first_value(streams: Streams, reader: Reader) -> None:
    query_id = run(streams, reader, lambda df: df.groupBy("k").count()).info.id
    before = reader.client.round_trips
    found = reader.query(query_id).operator(0).get({"k": "ü"})
    # One more while the driver confirms the last batch, one partition after the other.
    assert reader.client.round_trips - before in (3, 4)
    assert found in ({"count": BATCHES - 1}, {"count": BATCHES}), "confirmed by then or not"


def test_signed_state_needs_its_key(
    streams: Streams, reader: Reader, shared_redis_server: RedisServer, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("7" * 64)
    streams.spark.conf.set(SIGNING_KEY, str(secret))
    try:
        query = run(streams, reader, lambda df: df.groupBy("k").count())
    finally:
        streams.spark.conf.unset(SIGNING_KEY)
    with pytest.raises(FormatError, match="signingKeyFile"):
        list(query.operator(0).items(version=BATCHES))
    with redis_state.connect(shared_redis_server.url, signing_key_file=str(secret)) as with_key:
        state = with_key.query(query.info.id).operator(0)
        counts = {key["k"]: value["count"] for key, value in state.items(version=BATCHES)}
        assert counts == {key: n for key, (_, n) in sums(BATCHES).items()}
        assert state.get({"k": "ü"}, version=BATCHES) == {"count": counts["ü"]}
    url, key = shared_redis_server.url, str(secret)
    check_round_trip(url, query.info.gen, at=BATCHES - 1, signing_key_file=key)


def test_a_window_is_a_key_column_with_parts(
    streams: Streams, reader: Reader, shared_redis_server: RedisServer
) -> None:
    def build(df: DataFrame) -> DataFrame:
        return df.groupBy(sf.window("ts", "1 minute"), "k").count()

    query = run(streams, reader, build)
    state = query.operator()
    rows = {(key["k"], tuple(key["window"])): value for key, value in state.items(version=BATCHES)}
    assert len(rows) == sum(len(rows_of(batch)) for batch in range(BATCHES))
    window = {"start": START, "end": START + timedelta(minutes=1)}
    assert state.get({"window": window, "k": "a"}, version=BATCHES) == {"count": 1}
    assert state.get({"window": window, "k": "only1"}, version=BATCHES) is None
    assert assert_tables_are_items(state, version=BATCHES) == len(rows)
    first = state.scan(version=BATCHES, prefix={"window": window})
    assert {row["k"] for row in first} == {row["k"] for row in rows_of(0)}
    check_round_trip(shared_redis_server.url, query.info.gen, at=BATCHES - 1)


def test_deduplication_state_is_read(streams: Streams, reader: Reader) -> None:
    state = run(streams, reader, lambda df: df.dropDuplicates(["k"]), mode="append").operator()
    assert {key["k"] for key, _ in state.items(version=BATCHES)} == set(sums(BATCHES))
    assert state.get({"k": "only1"}, version=1) is None
    assert state.get({"k": "only1"}, version=BATCHES) is not None
    assert assert_tables_are_items(state, version=BATCHES) == len(sums(BATCHES))


def test_session_windows_lie_under_a_prefix(
    streams: Streams, reader: Reader, shared_redis_server: RedisServer
) -> None:
    def build(df: DataFrame) -> DataFrame:
        watermarked = df.withWatermark("ts", "1 hour")
        return watermarked.groupBy(sf.session_window("ts", "10 seconds"), "k").count()

    query = run(streams, reader, build, mode="append")
    (info,) = query.operators()
    assert info.families[0].kind == "prefix"
    rows = list(query.operator().items(version=BATCHES))
    assert len(rows) == sum(len(rows_of(batch)) for batch in range(BATCHES))
    key, value = rows[0]
    assert query.operator().get(key, version=BATCHES) == value
    check_replay(query.operator(), BATCHES)
    assert assert_tables_are_items(query.operator(), version=BATCHES) == len(rows)
    check_round_trip(shared_redis_server.url, query.info.gen, at=BATCHES - 1)


def test_a_join_has_several_stores(
    streams: Streams, reader: Reader, shared_redis_server: RedisServer
) -> None:
    right = streams.input("right", SCHEMA)
    right.add(rows_of(0))

    def build(left: DataFrame) -> DataFrame:
        other = right.stream(streams.spark).select("k", sf.col("v").alias("w"))
        return left.join(other, "k")

    query = run(streams, reader, build, mode="append")
    rows: dict[str, int] = {}
    for info in query.operators():
        state = query.operator(info.operator, info.store)
        # The input that ends first still has every later version, without changes.
        found = list(state.items(version=BATCHES))
        rows[info.store] = len(found)
        # The shuffle goes by the join key, which is only a part of the key of some stores.
        for key, value in found[:20]:
            assert state.get(key, version=BATCHES) == value
        check_replay(state, BATCHES)
        some = [key for key, _ in found]
        assert state.get_many(some, version=BATCHES) == [value for _, value in found]
        assert assert_tables_are_items(state, version=BATCHES) == len(found)
    keyed = {key for key in sums(BATCHES) if key is not None}
    rows_left = sum(row["k"] is not None for batch in range(BATCHES) for row in rows_of(batch))
    assert rows["left-keyToNumValues"] == len(keyed)
    assert rows["left-keyWithIndexToValue"] == rows_left
    assert rows["right-keyToNumValues"] == sum(row["k"] is not None for row in rows_of(0))
    export = check_round_trip(shared_redis_server.url, query.info.gen, at=BATCHES - 1)
    assert {one.store: one.rows for one in export.stores} == rows
