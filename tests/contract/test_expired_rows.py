"""Rows with a time to live: every way out of a version shows the same rows, without expiries."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

import redis_state
from redis_state import config
from redis_state.backend.client import Client
from redis_state.forks.keep import keep
from redis_state.format.header import Family
from redis_state.format.rows import Value
from redis_state.live import Reader
from redis_state.reader import OperatorState
from redis_state.reader.feed.change_spans import span_rows
from redis_state.reader.lookup.asked_keys import AskedKeys
from redis_state.reader.pinned import pin
from redis_state.reader.state_table import StateTable
from redis_state.reader.tables import arrow
from redis_state.spark.live.change_stream import _ADVICE
from redis_state.spark.live.live_state import LiveState
from tests.contract.export_support import imported, queried
from tests.contract.planting import Planted, family, schema
from tests.support.redis_server import RedisServer

pytest.importorskip("pyarrow")

NUMBER = schema(n="long")
KINDS = {
    "none": family(schema(k="string"), NUMBER),
    "prefix": family(schema(g="string", k="string"), NUMBER, kind="prefix", params=[1]),
    "ts-postfix": family(schema(k="string", __event_time="long"), NUMBER, kind="ts-postfix"),
    "range": family(schema(t="long", k="string"), NUMBER, kind="range", params=[0]),
}
SHAPES = ("deltas", "snapshot 1", "snapshot 2", "snapshot 2, expired rows left out", "two families")
TIMES = {1: 1_000, 2: 1_200, 3: 1_500}
NEVER = None
OTHER = Planted(cast("Any", None), Family(7, "other", "none", (), NUMBER, NUMBER, internal=True))

CHANGES: dict[int, dict[str, tuple[int, int | None] | None]] = {
    1: {
        "a": (1, 1_500),
        "b": (2, 1_100),
        "c": (3, NEVER),
        "d": (4, 1_900),
        "e": (5, 1_300),
        "x": (6, NEVER),
    },
    2: {"e": (5, 1_800), "f": (7, 1_400), "x": None},
    3: {"b": (8, 2_500), "g": (9, 1_600)},
}
"""By version: value and expiry of each changed key."""

VISIBLE = {
    0: {},
    1: {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "x": 6},
    2: {"a": 1, "c": 3, "d": 4, "e": 5, "f": 7},
    3: {"b": 8, "c": 3, "d": 4, "e": 5, "g": 9},
}
HISTORY: dict[str, list[tuple[int, int | None]]] = {
    "a": [(2, None), (0, 1)],
    "b": [(2, 8), (1, None), (0, 2)],
    "c": [(0, 3)],
    "e": [(0, 5)],
    "f": [(2, None), (1, 7)],
    "g": [(2, 9)],
    "x": [(1, None), (0, 6)],
}
EVERY_KEY = "abcdefgxz"


def key_of(planted: Planted, k: str) -> dict[str, Any]:
    every = {"t": ord(k[0]), "g": f"group {ord(k[0]) % 2}", "k": k, "__event_time": 7}
    columns = planted.family.key_schema
    return {name: value for name, value in every.items() if f'"{name}"' in columns}


@dataclass
class Scene:
    """A planted query whose rows expire, and a reader of it."""

    server: RedisServer
    reader: Reader
    planted: Planted
    shape: str
    oldest: int = 0
    rows: dict[int, dict[int, dict[bytes, bytes]]] = field(default_factory=dict)

    def key(self, k: str) -> dict[str, Any]:
        return key_of(self.planted, k)

    def plant(self) -> None:
        planted = self.planted
        planted.register()
        every: dict[int, dict[bytes, bytes]] = {n: {} for n in range(planted.partitions)}
        for version, changes in CHANGES.items():
            by_partition: dict[int, dict[bytes, Value]] = {n: {} for n in every}
            for k, word in changes.items():
                number = planted.partition(self.key(k))
                stored = planted.key(self.key(k))
                value = None if word is None else planted.value({"n": word[0]}, expires=word[1])
                by_partition[number][stored] = value
                if value is None:
                    every[number].pop(stored, None)
                else:
                    every[number][stored] = value
            for number, rows in by_partition.items():
                more = {}
                if planted.others:
                    # A row of a family without a time to live: its last bytes look like an expiry.
                    more = {OTHER.key({"n": number}): OTHER.value({"n": version})}
                planted.delta(number, version, rows | more)
                every[number] |= more
                if self.shape.startswith(f"snapshot {version}"):
                    self._snapshot(number, version, every[number])

    def _snapshot(self, number: int, version: int, rows: dict[bytes, bytes]) -> None:
        limit = TIMES[version].to_bytes(4, "big")
        if "left out" in self.shape:
            rows = {key: value for key, value in rows.items() if value[-4:] > limit}
        self.planted.snapshot(number, version, rows)
        self.oldest = version

    @property
    def versions(self) -> range:
        return range(max(1, self.oldest), 4)

    @property
    def state(self) -> OperatorState:
        return self.reader.query("flights").operator()

    def client(self) -> closing[Client]:
        return closing(Client(config.parse({"url": self.server.url})))


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=KINDS)
def scene(request: pytest.FixtureRequest, shape: str, redis_server: RedisServer) -> Iterator[Scene]:
    own = replace(KINDS[request.param], ttl=True)
    planted = Planted(redis_server.client(), own, 2, times=TIMES)
    if shape == "two families":
        planted.others = [OTHER.family]
    with redis_state.connect(redis_server.url) as reader:
        made = Scene(redis_server, reader, planted, shape)
        made.plant()
        yield made


Rows = dict[str, int]
Way = Callable[[Scene, OperatorState, int], Rows]


def _flat(rows: Any) -> Rows:
    found = {row["k"]: row["n"] for row in rows}
    assert len(found) == len(list(rows))
    return found


def by_get(scene: Scene, state: OperatorState, version: int) -> Rows:
    found = {k: state.get(scene.key(k), version) for k in EVERY_KEY}
    return {k: value["n"] for k, value in found.items() if value is not None}


def by_get_many(scene: Scene, state: OperatorState, version: int) -> Rows:
    keys = [scene.key(k) for k in EVERY_KEY]
    found = zip(EVERY_KEY, state.get_many(keys * 9, version), strict=False)
    return {k: value["n"] for k, value in found if value is not None}


def by_items(_scene: Scene, state: OperatorState, version: int) -> Rows:
    return {key["k"]: value["n"] for key, value in state.items(version)}


def by_scan(_scene: Scene, state: OperatorState, version: int) -> Rows:
    return _flat(list(state.scan(version)))


def by_where(_scene: Scene, state: OperatorState, version: int) -> Rows:
    return _flat(list(state.scan(version, where=lambda row: row["n"] > 0)))


def by_prefix(scene: Scene, state: OperatorState, version: int) -> Rows:
    found: Rows = {}
    first = next(iter(scene.key("a")))
    for value in {scene.key(k)[first]: None for k in EVERY_KEY}:
        found |= _flat(list(state.scan(version, prefix=[value])))
    return found


def by_arrow(_scene: Scene, state: OperatorState, version: int) -> Rows:
    return _flat(state.to_arrow(version).to_pylist())


def by_batches(_scene: Scene, state: OperatorState, version: int) -> Rows:
    return _flat([row for one in state.to_batches(version, rows=2) for row in one.to_pylist()])


def by_pandas(_scene: Scene, state: OperatorState, version: int) -> Rows:
    return _flat(state.to_pandas(version).to_dict("records"))


def by_polars(_scene: Scene, state: OperatorState, version: int) -> Rows:
    return _flat(state.to_polars(version).to_dicts())


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
        assert _flat([row for one in table.batches() for row in one.to_pylist()]) == found
        by_key = [row for one in table.batches(keys=keys) for row in one.to_pylist()]
        assert _flat(by_key) == found
        return found


def by_sql(scene: Scene, _state: OperatorState, version: int) -> Rows:
    pytest.importorskip("duckdb")
    return _flat(scene.reader.sql("select * from flights", at=version - 1).to_pylist())


def by_sql_with_keys(scene: Scene, _state: OperatorState, version: int) -> Rows:
    pytest.importorskip("duckdb")
    columns = list(scene.key("a"))
    where = " and ".join(f"{name} = ?" for name in columns)
    text = " union all ".join([f"select k, n from flights where {where}"] * len(EVERY_KEY))
    asked = [value for k in EVERY_KEY for value in scene.key(k).values()]
    return _flat(scene.reader.sql(text, asked, at=version - 1).to_pylist())


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


@pytest.mark.parametrize("backwards", [False, True])
def test_diff_shows_expired_rows_as_removed(backwards: bool, scene: Scene) -> None:
    for low in range(scene.oldest, 4):
        for high in range(low + 1, 4):
            a, b = (high, low) if backwards else (low, high)
            found = {
                one.key["k"]: (one.before and one.before["n"], one.after and one.after["n"])
                for one in scene.state.diff(a - 1, b - 1)
            }
            assert found == _different(VISIBLE[a], VISIBLE[b])


def _different(before: Rows, after: Rows) -> dict[str, tuple[int | None, int | None]]:
    return {
        k: (before.get(k), after.get(k))
        for k in before.keys() | after.keys()
        if before.get(k) != after.get(k)
    }


def test_history_shows_what_each_version_showed(scene: Scene) -> None:
    for k, expected in HISTORY.items():
        found = [
            (one.batch, one.value and one.value["n"], one.earlier)
            for one in scene.state.history(scene.key(k))
        ]
        oldest = scene.oldest - 1
        wanted = [(batch, value, False) for batch, value in expected if batch > oldest]
        if scene.oldest and k in VISIBLE[scene.oldest]:
            wanted.append((oldest, VISIBLE[scene.oldest][k], True))
        assert found == wanted
        assert [one[:2] for one in found[:1]] == [
            (one.batch, one.value and one.value["n"])
            for one in scene.state.history(scene.key(k), limit=1)
        ]


def test_changes_have_no_expiries(scene: Scene) -> None:
    for batch in scene.state.changes(since=scene.oldest - 1):
        rows = [(key["k"], value and value["n"]) for key, value in batch]
        changes = CHANGES[batch.number + 1]
        assert dict(rows) == {k: word and word[0] for k, word in changes.items()}
        assert len(rows) == len(changes)
    (first, *_) = scene.state.changes(since="start")
    assert first.whole
    assert {key["k"]: value["n"] for key, value in first} == VISIBLE[3]


def test_change_stream_has_no_expiries(scene: Scene) -> None:
    parsed = config.parse({"url": scene.server.url})
    live = LiveState(parsed, "flights", 0, "default", "default", "confirmed")
    with scene.client() as client:
        spans = live.changes(lambda _: client, _ADVICE)
        newest = spans.newest()
        place = live.place(client, scene.planted.gen)
        rows = [
            row
            for span in spans.spans(spans.behind(scene.oldest - 1), newest)
            for row in span_rows(place, span, _ADVICE)
        ]
        for row in rows:
            key, value = place.key(row.family, row.key), place.value(row.after, row.value)
            word = CHANGES[row.batch + 1][key["k"]]
            assert (row.kind, value and value["n"]) == (
                ("removed", None) if word is None else ("put", word[0])
            )
        assert len(rows) == sum(len(CHANGES[n]) for n in range(scene.oldest + 1, 4))
        whole = [
            row for span in spans.spans(None, newest) for row in span_rows(place, span, _ADVICE)
        ]
        found = {
            place.key(row.family, row.key)["k"]: place.value(row.after, row.value)["n"]
            for row in whole
        }
        assert found == VISIBLE[3]


def test_hot_keys_are_found(scene: Scene) -> None:
    hot = scene.state.hot()
    assert hot.updates == sum(len(CHANGES[n]) for n in range(scene.oldest + 1, 4))


def test_kept_versions_are_compared_as_they_show(scene: Scene) -> None:
    names = {}
    for version in scene.versions:
        names[version] = f"v.{version}"
        keep(scene.server.url, "flights", name=names[version], at_batch=version - 1)
    for a, name_a in names.items():
        for b, name_b in names.items():
            wanted = _different(VISIBLE[a], VISIBLE[b])
            found = scene.reader.diff("flights", "flights", at_a=name_a, at_b=name_b)
            rows = {
                one.key["k"]: (one.a and one.a["n"], one.b and one.b["n"])
                for one in found.keys
                if one.family == "default"
            }
            assert rows == wanted
            (store,) = found.stores
            counts = store.only_a, store.only_b, store.changed
            assert counts == (
                sum(pair[1] is None for pair in wanted.values()),
                sum(pair[0] is None for pair in wanted.values()),
                sum(None not in pair for pair in wanted.values()),
            )
            assert store.equal == len(VISIBLE[a].keys() & VISIBLE[b].keys()) - counts[2]
            between = {
                one.key["k"]: (one.before and one.before["n"], one.after and one.after["n"])
                for one in scene.state.diff(name_a, name_b)
            }
            assert between == wanted


def test_export_and_import_keep_expiries(scene: Scene, tmp_path: Path) -> None:
    for version in scene.versions:
        folder = tmp_path / f"of {version}"
        export = scene.reader.export("flights", folder, at=version - 1)
        others = len(scene.planted.others) * scene.planted.partitions
        assert export.rows == len(VISIBLE[version]) + others
        assert {one.time for store in export.stores for one in store.partitions} == {TIMES[version]}
        files = f"'{folder}/data/0-default/default/*.parquet'"
        rows = queried(f"select k, n, octet_length(_value) from {files}")
        assert {k: n for k, n, _ in rows} == VISIBLE[version]
        assert {size for _, _, size in rows} == {1 + 16 + 4}
    scene.planted.client.flushdb()
    imported(scene.server, tmp_path / "of 3")
    assert by_scan(scene, scene.state, 3) == by_get(scene, scene.state, 3) == VISIBLE[3]
    # A later version, which the next batch would write, hides rows that expire by then.
    scene.planted.times = {**TIMES, 4: 1_850}
    for number in range(scene.planted.partitions):
        scene.planted.delta(number, 4, {})
    assert by_scan(scene, scene.state, 4) == {k: VISIBLE[3][k] for k in "bcd"}


@pytest.mark.parametrize("begins", [True, False])
def test_time_to_live_begins_and_ends(begins: bool, redis_server: RedisServer) -> None:
    plain, stamped = KINDS["none"], replace(KINDS["none"], ttl=True)
    before, after = (plain, stamped) if begins else (stamped, plain)
    planted = Planted(redis_server.client(), before, 1)
    planted.register()
    planted.times = {} if begins else {1: 1_000}
    keys = {k: planted.key({"k": k}) for k in "abc"}
    rows = {k: planted.value({"n": n}, expires=1_000 + n) for n, k in enumerate("abc")}
    planted.delta(0, 1, {keys[k]: rows[k] for k in "abc"})
    shown = dict(zip("abc", range(3), strict=True)) if begins else {"b": 1, "c": 2}
    planted.family = after
    planted.times = {2: 2_000} if begins else {1: 1_000}
    kept = {k: planted.value({"n": n}, expires=3_000) for k, n in shown.items()}
    kept["c"] = planted.value({"n": 9}, expires=3_000)
    planted.live.clear()
    planted.delta(0, 2, {keys[k]: value for k, value in kept.items()}, complete=True)
    with redis_state.connect(redis_server.url) as reader:
        state = reader.query("flights").operator()
        assert {key["k"]: value["n"] for key, value in state.items(1)} == shown
        assert {key["k"]: value["n"] for key, value in state.items()} == shown | {"c": 9}
        assert state.get_many([{"k": k} for k in "abc"]) == [
            {"n": 0} if begins else None,
            {"n": 1},
            {"n": 9},
        ]
        assert state.get_many([{"k": k} for k in "abc"], 1) == [
            {"n": 0} if begins else None,
            {"n": 1},
            {"n": 2},
        ]
        (change,) = state.diff(0, 1)
        assert (change.key, change.before, change.after) == ({"k": "c"}, {"n": 2}, {"n": 9})
        (batch,) = state.changes(since=0)
        assert list(batch) == [({"k": "c"}, {"n": 9})]
        assert [one.batch for one in state.history({"k": "b"})] == [0]
        assert [one.batch for one in state.history({"k": "c"})] == [1, 0]
        assert state.hot(batches=1).updates == 1


def test_expired_row_of_a_complete_delta_is_no_change(redis_server: RedisServer) -> None:
    planted = Planted(redis_server.client(), replace(KINDS["none"], ttl=True), 1, times=TIMES)
    planted.register()
    keys = {k: planted.key({"k": k}) for k in "abcd"}
    old = {k: planted.value({"n": 1}, expires=900 if k == "b" else 2_000) for k in "abc"}
    planted.delta(0, 1, {keys[k]: value for k, value in old.items()})
    new = {k: planted.value({"n": 1}, expires=1_150 if k in "bcd" else 2_000) for k in "abcd"}
    planted.delta(0, 2, {keys[k]: value for k, value in new.items()}, complete=True)
    with redis_state.connect(redis_server.url) as reader:
        state = reader.query("flights").operator()
        assert list(state.items()) == [({"k": "a"}, {"n": 1})]
        (batch,) = state.changes(since=0)
        assert list(batch) == [({"k": "c"}, None)]
        assert [(one.key, one.after) for one in state.diff(0, 1)] == [({"k": "c"}, None)]
        assert state.hot(batches=1).updates == 1


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
        assert _flat(state.to_arrow().to_pylist()) == expected
        assert _flat(list(state.scan())) == expected
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
