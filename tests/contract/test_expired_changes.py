"""Rows with a time to live: what versions differ in, and what each batch changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import redis_state
from redis_state import config
from redis_state.errors import FormatError
from redis_state.forks.keep import keep
from redis_state.format.header import Tombstone
from redis_state.format.rows import Value
from redis_state.live import Reader
from redis_state.reader import OperatorState
from redis_state.reader.feed.change_spans import span_rows
from redis_state.reader.tables import arrow
from redis_state.spark.live.change_stream import _ADVICE
from redis_state.spark.live.live_state import LiveState
from tests.contract.planting import Planted
from tests.support.redis_server import RedisServer

pytest.importorskip("pyarrow")
from tests.contract.expiring_scene import (
    CHANGES,
    HISTORY,
    KINDS,
    TIMES,
    VISIBLE,
    Scene,
    different,
    scene,
    shape,
)

__all__ = ["scene", "shape"]


@pytest.mark.parametrize("backwards", [False, True])
def test_diff_shows_expired_rows_as_removed(backwards: bool, scene: Scene) -> None:
    for low in range(scene.oldest, 4):
        for high in range(low + 1, 4):
            a, b = (high, low) if backwards else (low, high)
            found = {
                one.key["k"]: (one.before and one.before["n"], one.after and one.after["n"])
                for one in scene.state.diff(a - 1, b - 1)
            }
            assert found == different(VISIBLE[a], VISIBLE[b])


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
            wanted = different(VISIBLE[a], VISIBLE[b])
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


DAMAGED: dict[str, Callable[[Reader, OperatorState, Planted], Any]] = {
    "get": lambda _r, state, _p: state.get({"k": "a"}),
    "get_many": lambda _r, state, _p: state.get_many([{"k": "a"}] * 50),
    "items": lambda _r, state, _p: list(state.items()),
    "count": lambda _r, state, _p: state.count(),
    "to_arrow": lambda _r, state, _p: state.to_arrow(),
    "sql": lambda reader, _s, _p: reader.sql("select * from flights"),
    "diff": lambda _r, state, _p: list(state.diff(0, 1)),
    "history": lambda _r, state, _p: state.history({"k": "a"}),
    "whole": lambda _r, state, _p: [list(one) for one in state.changes(since="start")],
    "export": lambda reader, _s, planted: reader.export("flights", planted.name),
}


@pytest.mark.parametrize("damage", ["no time", "no expiry"])
@pytest.mark.parametrize("way", DAMAGED)
def test_row_whose_end_is_unknown_is_damage(
    damage: str,
    way: str,
    redis_server: RedisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arrow, "_ARRAY_ROWS_MIN", 1)
    monkeypatch.chdir(tmp_path)
    times = {1: 1_000} if damage == "no time" else TIMES
    planted = Planted(redis_server.client(), replace(KINDS["none"], ttl=True), 1, times=times)
    planted.register()
    value = planted.value({"n": 1}, expires=1_100)
    a, b = planted.key({"k": "a"}), planted.key({"k": "b"})
    planted.delta(0, 1, {a: value if damage == "no time" else b"\0\1\2", b: value})
    planted.delta(0, 2, {b: value})
    with redis_state.connect(redis_server.url) as reader, pytest.raises(FormatError):
        DAMAGED[way](reader, reader.query("flights").operator(), planted)


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


@pytest.mark.parametrize("how", ["puts", "removed range", "new id"])
def test_versions_of_one_time_are_compared_by_what_they_show(
    how: str, redis_server: RedisServer
) -> None:
    """A batch within the same second; with a new id, the family was dropped and made again."""
    whole = how != "puts"
    times = {1: 1_000, 2: 1_200, 3: 1_200}
    planted = Planted(redis_server.client(), replace(KINDS["none"], ttl=True), 1, times=times)
    planted.register()

    def put(version: int, **rows: tuple[int, int]) -> None:
        stored: dict[bytes, Value] = {
            planted.key({"k": k}): planted.value({"n": n}, expires=expires)
            for k, (n, expires) in rows.items()
        }
        ranges = [Tombstone(0)] if how == "removed range" and version == 3 else []
        complete = how == "new id" and version == 3
        planted.delta(0, version, stored, complete=complete, tombstones=ranges)

    put(1, a=(1, 1_100), b=(2, 1_150), c=(3, 2_000), d=(4, 2_000), e=(5, 1_150))
    put(2, x=(6, 2_000))
    if how == "new id":
        planted.family = replace(planted.family, id=1)
    if whole:
        put(3, a=(9, 2_000), c=(3, 2_500), d=(8, 2_000), x=(6, 2_000))
    else:
        put(3, a=(9, 2_000), c=(3, 2_500), d=(8, 2_000))
    expected = {"a": (None, 9), "d": (4, 8)}
    for version in (2, 3):
        keep(redis_server.url, "flights", name=f"v.{version}", at_batch=version - 1)
    with redis_state.connect(redis_server.url) as reader:
        state = reader.query("flights").operator()
        for a, b in ((1, 2), ("v.2", "v.3"), ("v.3", "v.2")):
            found = {
                one.key["k"]: (one.before and one.before["n"], one.after and one.after["n"])
                for one in state.diff(a, b)
            }
            backwards = {k: pair[::-1] for k, pair in expected.items()}
            assert found == (backwards if a == "v.3" else expected)
        counts = reader.diff("flights", "flights", at_a="v.2", at_b="v.3").stores[0]
        assert (counts.only_a, counts.only_b, counts.changed, counts.equal) == (0, 1, 1, 2)
        (batch,) = state.changes(since=1)
        changed = {key["k"]: value and value["n"] for key, value in batch}
        assert changed == ({"a": 9, "d": 8} if whole else {"a": 9, "c": 3, "d": 8})


def test_expired_rows_of_a_dropped_family_are_no_changes(redis_server: RedisServer) -> None:
    planted = Planted(redis_server.client(), replace(KINDS["none"], ttl=True), 1, times=TIMES)
    planted.register()
    rows: dict[bytes, Value] = {
        planted.key({"k": k}): planted.value({"n": 1}, expires=expires)
        for k, expires in {"a": 900, "b": 2_000}.items()
    }
    planted.delta(0, 1, rows)
    planted.family = replace(planted.family, id=1, name="other")
    planted.delta(0, 2, {}, complete=True)
    with redis_state.connect(redis_server.url) as reader:
        state = reader.query("flights").operator()
        assert [one.key for one in state.diff(0, 1)] == [{"k": "b"}]
        (batch,) = state.changes(since=0)
        assert list(batch) == [({"k": "b"}, None)]


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
