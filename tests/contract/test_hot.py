"""Keys that change most: exact counts over kept deltas, and the bound where memory is short."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from redis_state.cli.main import main
from redis_state.errors import ConfigError, NotFoundError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.live import Reader
from redis_state.reader.feed.heavy_hitters import Frequent
from redis_state.store.provider import StateStoreProvider
from tests.contract.planting import Planted
from tests.support.redis_server import RedisServer

UA, AA, DL = ({"carrier": name} for name in ("UA", "AA", "DL"))
ONE = {"count": 1, "total": 0.5}


def test_updates_of_confirmed_batches_are_counted_exactly(planted: Planted, reader: Reader) -> None:
    planted.partitions = 2
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.commit(2, [(UA, ONE), (DL, ONE)])
    planted.commit(3, [(UA, ONE), (AA, None)])
    planted.commit(4, [(DL, ONE)], confirmed=False)
    state = reader.query("flights").operator()
    found = state.hot()
    assert (found.first, found.last, found.batches, found.updates, found.error) == (0, 2, 3, 6, 0)
    counts = {one.key["carrier"]: one.updates for one in found.keys}
    assert counts == {"UA": 3, "AA": 2, "DL": 1}
    assert [one.updates for one in found.keys] == [3, 2, 1]
    assert found.keys[0].share == 0.5
    assert sum(one.bytes for one in found.keys) == found.bytes > 0
    last = state.hot(batches=1, limit=1, by="bytes")
    assert (last.first, last.last, last.keys[0].key["carrier"]) == (2, 2, "UA")


def test_hot_keys_count_only_kept_batches_of_a_python_store(
    redis_server: RedisServer, reader: Reader
) -> None:
    id_ = StateStoreProviderId(StateStoreId("job", 0, 0), "run")
    provider = StateStoreProvider(id_, url=redis_server.url, versions_to_retain=2)
    rng = random.Random(7)
    written: list[set[int]] = []
    for version in range(20):
        store = provider.get_store(version)
        written.append({int(rng.paretovariate(0.5)) % 50 for _ in range(20)})
        for key in written[-1]:
            store.put(key, "x" * 30)
        store.commit()
        provider.do_maintenance()
    provider.get_store(20)
    provider.do_maintenance()
    found = reader.query("job").operator().hot(batches=100, limit=100)
    assert 0 < found.batches < 20
    expected = Counter(key for keys in written[found.first : found.last + 1] for key in keys)
    assert {one.key: one.updates for one in found.keys} == expected
    provider.close()


def test_empty_state_has_no_hot_keys(planted: Planted, reader: Reader) -> None:
    planted.register()
    found = reader.query("flights").operator().hot()
    assert (found.batches, found.keys, found.updates) == (0, (), 0)


@pytest.mark.parametrize("wrong", [{"batches": 0}, {"limit": -1}, {"by": "age"}, {"batches": 1.5}])
def test_wrong_arguments_are_refused(
    planted: Planted, reader: Reader, wrong: dict[str, object]
) -> None:
    planted.register()
    with pytest.raises(ConfigError):
        reader.query("flights").operator().hot(**wrong)  # type: ignore[arg-type]  # on purpose


def test_unknown_family_raises_not_found(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE)])
    with pytest.raises(NotFoundError):
        reader.query("flights").operator(family="nothing").hot()


def test_hot_command_prints_hot_keys(
    planted: Planted, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.commit(2, [(UA, ONE)])
    command = ["hot", "flights", "--url", redis_server.url]
    assert main([*command, "--limit", "1", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["key"], row["updates"], row["batches"], row["error"]) == (UA, 2, 2, 0)
    assert main([*command, "--format", "table"]) == 0
    assert "66.67 %" in capsys.readouterr().out


def test_error_bound_holds_with_more_keys_than_counters() -> None:
    rng = random.Random(11)
    counted: Frequent[int] = Frequent(64)
    exact: Counter[int] = Counter()
    for _ in range(20_000):
        key = int(rng.paretovariate(0.7))
        counted.add(key, 1, 10)
        exact[key] += 1
    # Each time that it makes room, at least half of the counters lose as much as the error grows.
    assert 0 < counted.error <= 20_000 / 32
    found = dict(counted.top(64))
    assert len(found) <= 64
    for key, count in exact.items():
        said = found[key].weight if key in found else 0
        assert said <= count <= said + counted.error
    assert [key for key, _ in counted.top(3)] == [key for key, _ in exact.most_common(3)]
