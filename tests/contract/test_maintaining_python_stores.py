"""A worker maintains what Python stores wrote, also while they write, and they read the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.codec import MSGPACK, RAW
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.maintain import MaintenanceReport, Policy, maintain_checkpoint
from redis_state.protocol import checkpoint_gen
from redis_state.store.provider import StateStoreProvider
from tests.support.redis_server import RedisServer

State = dict[Any, Any]
Open = Callable[..., StateStoreProvider]
NAME = "orders: {2026}"
RETAINED = 5
VERSIONS, VERSIONS_MAX = 60, 600


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Client]:
    client = Client(config.parse({"url": redis_server.url}))
    yield client
    client.close()


@pytest.fixture
def open_provider(redis_server: RedisServer, client: Client) -> Open:
    checked = config.parse({"url": redis_server.url, "versions_to_retain": str(RETAINED)})

    def new(partition: int = 0, **options: Any) -> StateStoreProvider:
        id_ = StateStoreProviderId(StateStoreId(NAME, 0, partition), "run-1")
        return StateStoreProvider(id_, config=checked, client=client, **options)

    return new


def gen_of(client: Client) -> str:
    found = checkpoint_gen(client, NAME)
    assert found is not None
    return found


def read(provider: StateStoreProvider, version: int) -> State:
    return dict(provider.get_read_store(version).iterator())


def write(provider: StateStoreProvider, version: int, model: State, chance: random.Random) -> State:
    """The next version, with as many changes as make snapshots due now and then."""
    store, model = provider.get_store(version), dict(model)
    for _ in range(chance.choice((0, 3, 60))):
        key: Any = (chance.choice("abc"), chance.randrange(100))
        if chance.random() < 0.3:
            store.remove(key)
            model.pop(key, None)
        else:
            store.put(key, {"n": version, "pad": "x" * chance.randrange(40)})
            model[key] = store.get(key)
    assert store.commit() == version + 1
    return model


@pytest.mark.parametrize("codec", [MSGPACK, RAW], ids=["msgpack", "raw"])
def test_rows_of_each_codec_are_kept(
    open_provider: Open, redis_server: RedisServer, codec: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def key(number: int) -> Any:
        return b"%04d" % number if codec is RAW else (number, "ü" * (number % 3))

    provider, model = open_provider(codec=codec), {}
    for version in range(8):
        store = provider.get_store(version)
        for number in range(version * 50, version * 50 + 200):
            model[key(number)] = b"v%d" % version
            store.put(key(number), model[key(number)])
        store.remove(key(version))
        del model[key(version)]
        store.commit()
    provider.get_store(8).abort()
    for _ in range(2):
        # The second pass finds its own work in order.
        assert main(["maintain", "--url", redis_server.url, "--once", "--deep"]) == 0
        told = capsys.readouterr().out
        assert "0 problems" in told
        cold = open_provider(codec=codec)
        assert read(cold, 8) == model
        assert list(read(cold, 8)) == sorted(model, key=codec.encode_key)
        assert cold.get_read_store(8).metrics.num_keys == len(model)
        assert cold.get_read_store(8).get(key(100)) == model[key(100)]
    store = open_provider(codec=codec).get_store(8)
    store.put(key(9999), b"new")
    assert store.commit() == 9
    assert read(open_provider(codec=codec), 9) == model | {key(9999): b"new"}


def test_lists_are_kept(open_provider: Open, client: Client) -> None:
    provider = open_provider(lists=True)
    for version in range(6):
        store = provider.get_list_store(version)
        store.append("all", version)
        store.append(f"only {version}", {"n": version})
        store.remove(f"only {version - 2}")
        store.commit()
    provider.get_list_store(6).abort()
    assert maintain_checkpoint(client, gen_of(client), policy=Policy("w")).snapshots == 1
    expected = {"all": list(range(6)), "only 4": [{"n": 4}], "only 5": [{"n": 5}]}
    assert read(open_provider(lists=True), 6) == expected
    store = open_provider(lists=True).get_list_store(6)
    store.append("all", 6)
    store.commit()
    assert read(open_provider(lists=True), 7)["all"] == list(range(7))


def test_emptied_store_stays_empty(open_provider: Open, client: Client) -> None:
    provider = open_provider()
    for version in range(4):
        store = provider.get_store(version)
        if version % 2:
            store.remove("a")
        else:
            store.put("a", 1)
        # With a key that stays no version holds all rows by itself, which would need no snapshot.
        if version == 0:
            store.put("stays", 1)
        elif version == 3:
            store.remove("stays")
        store.commit()
    provider.get_store(4).abort()
    assert maintain_checkpoint(client, gen_of(client), policy=Policy("w")).snapshots == 1
    assert read(open_provider(), 4) == {}
    store = open_provider().get_store(4)
    store.put("b", 2)
    store.commit()
    assert read(open_provider(), 5) == {"b": 2}


@pytest.mark.parametrize("seed", range(3))
def test_workers_concurrent_with_a_writer_change_no_version(
    open_provider: Open, redis_server: RedisServer, client: Client, seed: int
) -> None:
    chance = random.Random(seed)
    provider = open_provider()
    models: list[State] = [{}]
    models.append(write(provider, 0, models[0], chance))
    gen, done = gen_of(client), threading.Event()
    totals = [MaintenanceReport(), MaintenanceReport()]

    def work(number: int) -> None:
        own = Client(config.parse({"url": redis_server.url}))
        while not done.is_set():
            policy = Policy(f"w{number}", deep=True)
            totals[number].add(maintain_checkpoint(own, gen, policy=policy))
        own.close()

    def shares() -> tuple[int, int]:
        """Numbers of snapshots and of dropped segments that the workers made."""
        return sum(one.snapshots for one in totals), sum(one.dropped for one in totals)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    try:
        # How often a worker gets a core beside the writer is chance. So the writer goes on, and
        # leaves the maintenance to the workers, until they have had their share.
        while len(models) <= VERSIONS or (len(models) < VERSIONS_MAX and not all(shares())):
            version = len(models) - 1
            if chance.random() < 0.1:
                provider.close()
                provider = open_provider()
            if version < VERSIONS and chance.random() < 0.3:
                provider.do_maintenance()
            models.append(write(provider, version, models[version], chance))
            at = max(1, version - chance.randrange(RETAINED))
            assert read(open_provider(), at) == models[at]
    finally:
        done.set()
        for worker in workers:
            worker.join()
    assert [problem for total in totals for problem in total.problems] == []
    assert all(shares()), totals
    for version in range(len(models) - 1 - RETAINED, len(models)):
        assert read(open_provider(), version) == models[version]
    with redis_server.client() as raw:
        assert raw.keys(keys.claim(StateStoreId(NAME, 0, 0).partition(gen))) == []
