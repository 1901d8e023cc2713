"""Random histories of a Python store with a time to live, as readers outside of it see them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

import redis_state
from redis_state.errors import StateError
from redis_state.reader import OperatorState
from redis_state.store.provider import StateStoreProvider
from tests.contract.expiring_scene import different
from tests.contract.test_state_ttl_histories import (
    KEPT,
    KEYS,
    TTLS,
    ModelVersion,
    _batch,
    _provider,
)
from tests.contract.timed_scene import TimedScene
from tests.support.redis_server import RedisServer

STEPS = 40


@pytest.fixture
def scene(shared_redis_server: RedisServer) -> Iterator[TimedScene]:
    with shared_redis_server.client() as raw:
        made = TimedScene(shared_redis_server, raw)
        yield made
        made.close()


@pytest.mark.parametrize("seed", range(4))
def test_readers_see_what_the_model_says(scene: TimedScene, seed: int) -> None:
    dice = random.Random(seed)
    versions = [ModelVersion()]
    ttl: int | None = dice.choice(TTLS[1:])
    provider = _provider(scene, ttl, writes=False)
    checked: set[str] = set()
    with redis_state.connect(scene.server.url) as reader:
        for _ in range(STEPS):
            if dice.random() < 0.1:
                ttl = dice.choice(TTLS)
                provider = _provider(scene, ttl, writes=len(versions) > 1)
            version = len(versions) - 1
            if version and dice.random() < 0.15:
                version = max(0, version - dice.choice([1, 2]))
                provider = _provider(scene, ttl)
            _batch(dice, scene, provider, versions, version, ttl)
            if dice.random() < 0.2:
                provider.do_maintenance()
            _confirm(provider, len(versions) - 1)
            state = reader.query(scene.name).operator(0)
            _check_versions(state, versions)
            checked |= _check_changes(dice, state, versions)
    assert checked == {"diff", "history", "changes"}


def _confirm(provider: StateStoreProvider, version: int) -> None:
    """Opens a version, as the batch after it does."""
    provider.get_store(version).abort()


def _check_versions(state: OperatorState, versions: list[ModelVersion]) -> None:
    newest = len(versions) - 1
    for at in range(max(1, newest - KEPT), newest + 1):
        expected = _shown(versions[at])
        assert dict(state.items(at)) == expected
        assert state.get_many(KEYS, at) == [expected.get(key) for key in KEYS]
        assert state.count(at) == len(expected)
        assert state.to_arrow(at).num_rows == len(expected)


def _check_changes(
    dice: random.Random, state: OperatorState, versions: list[ModelVersion]
) -> set[str]:
    """Checks what is in reach of the deltas; returns which reads were."""
    done = set()
    newest = len(versions) - 1
    low = max(0, newest - dice.randrange(1, KEPT + 1))
    try:
        changes = {one.key: (one.before, one.after) for one in state.diff(low - 1, newest - 1)}
    except StateError:
        pass
    else:
        done.add("diff")
        assert changes == different(_shown(versions[low]), _shown(versions[newest]))
        known = _shown(versions[low])
        for batch in state.changes(since=low - 1):
            done.add("changes")
            version = versions[batch.number + 1]
            for key, value in batch:
                if value is None:
                    known.pop(key, None)
                else:
                    known[key] = value
            # A feed does not report that rows expire, so a follower has at least the shown ones.
            assert known.items() >= _shown(version).items()
    key = dice.choice(KEYS)
    for newer, older in pairwise(state.history(key)):
        done.add("history")
        for at in range(older.batch + 1, newer.batch + 1):
            assert _shown(versions[at]).get(key) == older.value
        assert _shown(versions[newer.batch + 1]).get(key) == newer.value
    return done


def _shown(version: ModelVersion) -> dict[str, int]:
    return version.visible(version.time)
