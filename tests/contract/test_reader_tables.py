"""Tables and scans of a planted query: names, choices, bounds; and the age of what is read."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from redis_state import config, keys
from redis_state.clock import wall_ms
from redis_state.errors import ConfigError, FormatError, Kind, StateError
from redis_state.live import Reader
from redis_state.reader.lookup.key_search import KEYS_AT_ONCE
from tests.contract.planting import GEN, Planted, family, schema
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer
from tests.support.tables import assert_tables_are_items

UA, AA = {"carrier": "UA"}, {"carrier": "AA"}
ONE, TWO = {"count": 1, "total": 0.5}, {"count": 2, "total": 1.5}


def test_duplicate_column_names_are_distinguished(
    redis_server: RedisServer, reader: Reader
) -> None:
    layout = family(
        schema(k="string", n="long"), schema(k="string", n="integer", **{"value.k": "long"})
    )
    planted = Planted(redis_server.client(), layout)
    planted.register()
    planted.commit(1, [({"k": "a", "n": 1}, {"k": "b", "n": 2, "value.k": 3})])
    state = reader.query("flights").operator()
    expected = {"k": "a", "n": 1, "value.k": "b", "value.n": 2, "value.k.2": 3}
    assert state.to_arrow().to_pylist() == list(state.scan()) == [expected]
    assert list(state.scan(where={"value.n": 2}, columns=["value.k"])) == [{"value.k": "b"}]
    assert list(state.scan(where={"value.n": 1})) == []
    assert state.get(["a", 1]) == {"k": "b", "n": 2, "value.k": 3}


def test_empty_state_reads_as_an_empty_table(planted: Planted, reader: Reader) -> None:
    planted.register()
    state = reader.query("flights").operator()
    for _ in range(2):
        assert assert_tables_are_items(state) == 0
        assert state.to_arrow().column_names == ["carrier", "count", "total"]
        assert state.get_many([UA]) == [None]
        assert state.get_many([]) == []
        planted.commit(1, [])
    assert list(state.to_batches()) == []


def test_invalid_scan_arguments_are_named(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE)])
    state = reader.query("flights").operator()
    wrong: list[dict[str, Any]] = [
        {"columns": ["career"]},
        {"where": {"career": "UA"}},
        {"prefix": {"count": 1}},
        {"prefix": ["UA", 1]},
    ]
    for given in wrong:
        with pytest.raises(ConfigError, match="carrier"):
            list(state.scan(**given))
        with pytest.raises(ConfigError, match="carrier"):
            state.to_arrow(**given)
    with pytest.raises(ConfigError, match="rows=1"):
        list(state.to_batches(rows=0))
    with pytest.raises(TypeError):
        state.get(UA, ta="latest")  # type: ignore[call-arg]  # what is tested


@pytest.mark.parametrize(
    ("package", "extra", "call"),
    [
        ("pyarrow", "arrow", "to_arrow"),
        ("numpy", "arrow", "to_arrow"),
        ("pandas", "pandas", "to_pandas"),
        ("polars", "polars", "to_polars"),
    ],
)
def test_missing_package_is_named_with_its_extra(
    planted: Planted,
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    extra: str,
    call: str,
) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE)])
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"package {package} .*redis-state\[{extra}\]"):
        getattr(reader.query("flights").operator(), call)()


def test_a_damaged_row_is_named_not_read(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, TWO)])
    number = planted.partition(AA)
    for partition in range(planted.partitions):
        damaged = {planted.key(AA): planted.value(TWO)[:-4]} if partition == number else {}
        planted.delta(partition, 2, damaged)
    with pytest.raises(FormatError, match="not whole words"):
        reader.query("flights").operator().to_arrow()


def test_many_keys_are_read_in_bounded_pieces(planted: Planted, reader: Reader) -> None:
    planted.partitions = 3
    planted.register()
    rows = [({"carrier": f"c{n}"}, {"count": n, "total": 0.0}) for n in range(2 * KEYS_AT_ONCE)]
    planted.commit(1, [(dict(key), dict(value)) for key, value in rows])
    state = reader.query("flights").operator()
    state.get(UA)
    planted.client.config_resetstat()
    before = reader.client.round_trips
    found = state.get_many([*(key for key, _ in rows), UA, UA, {"carrier": "c0"}])
    assert found == [*(value for _, value in rows), None, None, rows[0][1]]
    # One to open, one for each piece; that no other partition has the absent key is known by now.
    assert reader.client.round_trips - before <= 2 + len(found) // KEYS_AT_ONCE
    assert state.get({"carrier": "none"}) is None
    assert reader.client.round_trips - before <= 4 + len(found) // KEYS_AT_ONCE


def test_key_in_its_likely_partition_does_not_vouch_for_others(
    planted: Planted, reader: Reader
) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE)])
    elsewhere = (planted.partition(AA) + 1) % planted.partitions
    for number in range(planted.partitions):
        rows = {planted.key(AA): planted.value(TWO)} if number == elsewhere else {}
        planted.delta(number, 2, rows)
    state = reader.query("flights").operator()
    for _ in range(100):
        assert state.get(UA) == ONE
    assert state.get_many([UA] * 100) == [ONE] * 100
    assert state.get(AA) == TWO


def seen(planted: Planted, seconds: float) -> None:
    planted.client.hset(keys.query(GEN), "seen", str(wall_ms() - round(seconds * 1000)))


def written(planted: Planted, partition: int, seconds: float) -> None:
    at = str(wall_ms() - round(seconds * 1000))
    planted.client.hset(keys.meta(planted.id(partition)), "t", at)


def test_query_without_a_sign_of_life_is_stale(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE)])
    state = reader.query("flights").operator()
    with pytest.raises(StateError, match="is unknown") as error:
        state.get(UA, max_age=300)
    assert error.value.kind == Kind.STALE
    written(planted, 2, 1_000)
    with pytest.raises(StateError, match="1000 s ago"):
        state.get(UA, max_age=300)
    assert state.get(UA, max_age=2_000) == ONE
    # The driver lives, and has had no rows for a while.
    seen(planted, 60)
    assert state.get(UA, max_age=300) == ONE
    assert state.get_many([UA], max_age=300, at="latest") == [ONE]
    assert state.view(max_age=300).get(UA) == ONE
    assert state.count(max_age=300) == 1
    planted.client.hset(keys.query(GEN), "seen", "yesterday")
    with pytest.raises(FormatError):
        state.get(UA, max_age=300)


def test_view_becomes_stale_with_time(planted: Planted, redis_server: RedisServer) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE)])
    seen(planted, 60)
    clock = ManualClock()
    wanted = config.parse({"url": redis_server.url})
    with Reader(wanted, clock=clock) as reader:
        view = reader.query("flights").view(max_age=300)
        clock.now_s += 200
        assert view.operator().get(UA) == ONE
        clock.now_s += 100
        with pytest.raises(StateError) as error:
            view.operator().get(UA)
        assert error.value.kind == Kind.STALE
