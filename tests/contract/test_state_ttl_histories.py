"""Random histories of a Python store with a time to live against a plain model of its versions."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from redis_state.format.expiry import NEVER
from redis_state.store.provider import StateStoreProvider
from tests.contract.timed_scene import TimedScene
from tests.support.redis_server import RedisServer

KEYS = [f"key {number:02}" for number in range(24)]
TTLS = (None, 3, 10, 40)
STEPS = 60
KEPT = 5


@dataclass
class ModelVersion:
    """A version by the letter of section 15: values and expiries, expired rows included."""

    time: int = 0
    ttl: bool = False
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)

    def visible(self, now: int) -> dict[str, int]:
        return {key: value for key, (value, expiry) in self.rows.items() if expiry > now}


@pytest.fixture
def scene(shared_redis_server: RedisServer) -> Iterator[TimedScene]:
    with shared_redis_server.client() as raw:
        made = TimedScene(shared_redis_server, raw)
        yield made
        made.close()


@pytest.mark.parametrize("seed", range(3))
def test_history_matches_the_model(scene: TimedScene, seed: int) -> None:
    dice = random.Random(seed)
    versions = [ModelVersion()]
    ttl: int | None = dice.choice(TTLS[1:])
    provider = _provider(scene, ttl, writes=False)
    for _ in range(STEPS):
        if dice.random() < 0.15:
            ttl = dice.choice(TTLS) if dice.random() < 0.4 else ttl
            provider = _provider(scene, ttl, writes=len(versions) > 1)
        version = len(versions) - 1
        if version and dice.random() < 0.15:
            # Run again, or rewind by a few versions in another run.
            version = max(0, version - dice.choice([1, 1, 2]))
            provider = _provider(scene, ttl)
        _batch(dice, scene, provider, versions, version, ttl)
        if dice.random() < 0.2:
            provider.do_maintenance()
        newest = len(versions) - 1
        for at in range(max(1, newest - KEPT), newest + 1):
            reader = provider if dice.random() < 0.7 else _provider(scene, ttl, writes=False)
            store = reader.get_read_store(at)
            expected = versions[at].visible(versions[at].time)
            assert dict(store.iterator()) == expected
            assert store.get_many(KEYS) == [expected.get(key) for key in KEYS]
            assert store.metrics.num_keys >= len(expected)
            if not versions[at].ttl:
                assert store.metrics.num_keys == len(expected)


def _provider(scene: TimedScene, ttl: int | None, *, writes: bool = True) -> StateStoreProvider:
    """A provider of a new process; its run may go back to any version."""
    return scene.provider(
        state_ttl=None if ttl is None else f"{ttl}s",
        run=f"run-{uuid.uuid4().hex}",
        by_driver=writes,
        versions_to_retain=KEPT + 3,
    )


def _batch(
    dice: random.Random,
    scene: TimedScene,
    provider: StateStoreProvider,
    versions: list[ModelVersion],
    version: int,
    ttl: int | None,
) -> None:
    below = versions[version]
    again = versions[version + 1] if version + 1 < len(versions) else None
    time = 0
    if ttl is not None and version and again is None:
        time = max(scene_time(versions) + dice.choice([-2, 0, 1, 2, 9]), 1)
        scene.set_time(version, time)
    elif again is not None and version >= scene.newest_opened:
        # Below that version a batch begins anew, with a new time.
        time = again.time
    store = provider.get_store(version)
    changes = {
        key: None if dice.random() < 0.2 else dice.randrange(1000)
        for key in dice.sample(KEYS, dice.choice([0, 1, 3, len(KEYS)]))
    }
    for key, value in changes.items():
        if value is None:
            store.remove(key)
        else:
            store.put(key, value)
    store.commit()
    made = ModelVersion(ttl=ttl is not None)
    if ttl is not None:
        entry_time = scene.time(version + 1)
        if time:
            assert entry_time == max(time, below.time)
        made.time = entry_time
    now = made.time if below.ttl and ttl is not None else below.time
    kept = {key: row for key, row in below.rows.items() if row[1] > now}
    if ttl is None:
        kept = {key: (value, NEVER) for key, (value, _) in kept.items()}
    elif not below.ttl:
        kept = {key: (value, made.time + ttl) for key, (value, _) in kept.items()}
    for key, value in changes.items():
        kept.pop(key, None)
        if value is not None:
            kept[key] = value, NEVER if ttl is None else made.time + ttl
    made.rows = kept
    assert dict(store.iterator()) == made.visible(made.time)
    del versions[version + 1 :]
    versions.append(made)
    entry = scene.segment(version + 1).entry
    assert bool(entry.time) == made.ttl
    assert entry.live >= len(made.visible(made.time))


def scene_time(versions: list[ModelVersion]) -> int:
    return max(version.time for version in versions)
