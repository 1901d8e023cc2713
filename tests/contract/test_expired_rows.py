"""Rows with a time to live: every way out of a version shows the same rows, without expiries."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

import redis_state
from redis_state.format.rows import Value
from redis_state.reader import OperatorState
from redis_state.reader.lookup.asked_keys import AskedKeys
from redis_state.reader.pinned import pin
from redis_state.reader.state_table import StateTable
from redis_state.reader.tables import arrow
from tests.contract.planting import Planted
from tests.support.redis_server import RedisServer

pytest.importorskip("pyarrow")
from tests.contract.expiring_scene import (
    EVERY_KEY,
    KINDS,
    TIMES,
    VISIBLE,
    Rows,
    Scene,
    by_get,
    by_scan,
    flat,
    key_of,
    scene,
    shape,
)

__all__ = ["scene", "shape"]


def by_get_many(scene: Scene, state: OperatorState, version: int) -> Rows:
    keys = [scene.key(k) for k in EVERY_KEY]
    found = zip(EVERY_KEY, state.get_many(keys * 9, version), strict=False)
    return {k: value["n"] for k, value in found if value is not None}


def by_items(_scene: Scene, state: OperatorState, version: int) -> Rows:
    return {key["k"]: value["n"] for key, value in state.items(version)}


def by_where(_scene: Scene, state: OperatorState, version: int) -> Rows:
    return flat(list(state.scan(version, where=lambda row: row["n"] > 0)))


def by_prefix(scene: Scene, state: OperatorState, version: int) -> Rows:
    found: Rows = {}
    first = next(iter(scene.key("a")))
    for value in {scene.key(k)[first]: None for k in EVERY_KEY}:
        found |= flat(list(state.scan(version, prefix=[value])))
    return found


def by_arrow(_scene: Scene, state: OperatorState, version: int) -> Rows:
    return flat(state.to_arrow(version).to_pylist())


def by_batches(_scene: Scene, state: OperatorState, version: int) -> Rows:
    return flat([row for one in state.to_batches(version, rows=2) for row in one.to_pylist()])


def by_pandas(_scene: Scene, state: OperatorState, version: int) -> Rows:
    return flat(state.to_pandas(version).to_dict("records"))


def by_polars(_scene: Scene, state: OperatorState, version: int) -> Rows:
    return flat(state.to_polars(version).to_dicts())


def by_view(scene: Scene, state: OperatorState, version: int) -> Rows:
    view = state.view(version)
    found = by_get(scene, view, None)  # type: ignore[arg-type]  # a view has one version
    assert by_scan(scene, view, None) == found  # type: ignore[arg-type]
    assert view.count() == len(found)
    return found


def by_table(scene: Scene, _state: OperatorState, version: int) -> Rows:
    """The table of SQL, DataFrames and `lookup`."""
    with scene.client() as client:
        pinned = pin(scene.reader.query("flights").view(0, version), 0, "default")
        table = StateTable(client, pinned, 0, "default", "default")
        keys = [scene.key(k) for k in EVERY_KEY]
        (numbers,), there = table.look_up(AskedKeys(keys), ["n"])
        pairs = zip(EVERY_KEY, numbers.to_pylist(), there.to_pylist(), strict=True)
        found = {k: number for k, number, is_there in pairs if is_there}
        assert flat([row for one in table.batches() for row in one.to_pylist()]) == found
        by_key = [row for one in table.batches(keys=keys) for row in one.to_pylist()]
        assert flat(by_key) == found
        return found


def by_sql(scene: Scene, _state: OperatorState, version: int) -> Rows:
    pytest.importorskip("duckdb")
    return flat(scene.reader.sql("select * from flights", at=version - 1).to_pylist())


def by_sql_with_keys(scene: Scene, _state: OperatorState, version: int) -> Rows:
    pytest.importorskip("duckdb")
    columns = list(scene.key("a"))
    where = " and ".join(f"{name} = ?" for name in columns)
    text = " union all ".join([f"select k, n from flights where {where}"] * len(EVERY_KEY))
    asked = [value for k in EVERY_KEY for value in scene.key(k).values()]
    return flat(scene.reader.sql(text, asked, at=version - 1).to_pylist())


Way = Callable[[Scene, OperatorState, int], Rows]

WAYS: list[Way] = [
    by_get,
    by_get_many,
    by_items,
    by_scan,
    by_where,
    by_prefix,
    by_arrow,
    by_batches,
    by_pandas,
    by_polars,
    by_view,
    by_table,
    by_sql,
    by_sql_with_keys,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_expired_rows_are_absent(way: Way, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_ARRAY_ROWS_MIN", 1)
    # The same reader: cached blocks are shared by versions of different times.
    for version in [*scene.versions, *reversed(scene.versions)]:
        assert way(scene, scene.state, version) == VISIBLE[version]


def test_counts_leave_out_expired_rows(scene: Scene) -> None:
    for version in scene.versions:
        assert scene.state.count(version) == len(VISIBLE[version])
    status = scene.reader.query("flights").status()
    (store,) = status.stores
    # Manifests count expired rows until they are left out.
    assert len(VISIBLE[3]) <= status.rows <= len(VISIBLE[3]) + 2
    assert store.internal_rows == len(scene.planted.others) * scene.planted.partitions
    assert status.problems == []


def test_rows_of_another_family_stay_as_they_are(scene: Scene) -> None:
    if not scene.planted.others:
        return
    other = scene.reader.query("flights").operator(family="other")
    rows = {key["n"]: value["n"] for key, value in other.items()}
    assert rows == dict.fromkeys(range(scene.planted.partitions), 3)
    assert other.get({"n": 0}) == {"n": 3}
    assert other.to_arrow().num_rows == len(rows)


def test_live_view_follows_the_time_of_each_version(scene: Scene) -> None:
    planted = scene.planted
    live = scene.reader.query("flights").live_view(interval_s=0.000_001)
    state = live.operator(0)
    assert by_get(scene, state, None) == VISIBLE[3]  # type: ignore[arg-type]
    for number in range(planted.partitions):
        planted.times = {**TIMES, 4: 1_850}
        planted.delta(number, 4, {})
    left = {k: VISIBLE[3][k] for k in "bcd"}
    assert by_get(scene, state, None) == left  # type: ignore[arg-type]
    assert by_scan(scene, state, None) == left  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["none", "prefix", "ts-postfix"])
@pytest.mark.parametrize("seed", range(6))
def test_arrays_have_the_rows_of_a_scan(
    kind: str, seed: int, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "_ARRAY_ROWS_MIN", 1)
    rng = random.Random(seed)
    buckets = rng.choice([None, 1, 8])
    planted = Planted(
        redis_server.client(), replace(KINDS[kind], ttl=True), 1, buckets=buckets, times=TIMES
    )
    planted.register()
    every: dict[bytes, bytes] = {}
    names: dict[bytes, tuple[str, int, int]] = {}
    for version, time_s in TIMES.items():
        changes: dict[bytes, Value] = {}
        for _ in range(400 if version == 1 else 60):
            k, n = f"{rng.randrange(500):05}", rng.randrange(1 << 40)
            expires = rng.choice([time_s, time_s + 1, 1_350, 1_500, 1_501, 0xFFFF_FFFF])
            key = planted.key(key_of(planted, k))
            changes[key] = planted.value({"n": n}, expires=expires)
            names[key] = k, n, expires
        for key in rng.sample(sorted(every), min(len(every), 20)):
            changes[key] = None
        planted.delta(0, version, changes)
        for key, value in changes.items():
            if value is None:
                every.pop(key, None)
            else:
                assert isinstance(value, bytes)
                every[key] = value
        if version == 1 and rng.random() < 0.5:
            planted.snapshot(0, 1, every)
    expected = {
        k: n for key, (k, n, expires) in names.items() if key in every and expires > TIMES[3]
    }
    with redis_state.connect(redis_server.url) as reader:
        state = reader.query("flights").operator()
        assert flat(state.to_arrow().to_pylist()) == expected
        assert flat(list(state.scan())) == expected
        assert state.count() == len(expected)


def test_rows_of_one_width_are_not_read_one_by_one(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redis_state.rows import row_matrix

    planted = Planted(redis_server.client(), replace(KINDS["none"], ttl=True), 1, times={1: 1_000})
    planted.register()
    rows: dict[bytes, Value] = {
        planted.key({"k": f"{n:05}"}): planted.value({"n": n}, expires=1_000 + n % 2)
        for n in range(20_000)
    }
    planted.snapshot(0, 1, rows)
    planted.delta(0, 1, {})
    monkeypatch.setattr(row_matrix.RowMatrix, "pairs", None)
    monkeypatch.setattr(arrow._Maker, "batch", None)
    with redis_state.connect(redis_server.url) as reader:
        assert reader.query(planted.name).operator().to_arrow().num_rows == 10_000
