"""A provider that goes on with the versions that another run's provider has cached."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from redis_state import config as options
from redis_state.backend.client import Client
from redis_state.codec import RAW
from redis_state.errors import UsageError
from redis_state.protocol import RegisteredRun, checkpoint_gen, register_run
from tests.contract.store_support import NewProvider, new_providers
from tests.support.redis_server import RedisServer


@pytest.fixture
def new(shared_redis_server: RedisServer) -> Iterator[NewProvider]:
    with new_providers(shared_redis_server.url) as make:
        yield make


@pytest.fixture
def client(shared_redis_server: RedisServer) -> Iterator[Client]:
    made = Client(options.parse({"url": shared_redis_server.url}))
    yield made
    made.close()


def driver_run(client: Client, name: str) -> RegisteredRun:
    gen = checkpoint_gen(client, name, create=True)
    assert gen is not None
    return register_run(client, gen, uuid.uuid4().hex, by_driver=True)


def test_blocks_cached_by_an_earlier_run_are_not_read_again(
    new: NewProvider, client: Client
) -> None:
    name = uuid.uuid4().hex
    first = new(name=name, client=client)
    store = first.get_store(0)
    for number in range(5000):
        store.put(number, number)
    assert store.commit() == 1
    # The server learns the script.
    first.get_read_store(1)
    run = driver_run(client, name)
    second = new(name=name, run=run.run_id, registered=run, client=client, after=first)
    first.close()
    trips = client.round_trips
    following = second.get_store(1)
    assert [following.get(number) for number in (0, 17, 4999)] == [0, 17, 4999]
    # The id of the checkpoint, and `open`.
    assert client.round_trips == trips + 2
    following.put(17, "new")
    assert following.commit() == 2


def test_replaced_version_is_read_again(new: NewProvider, client: Client) -> None:
    name = uuid.uuid4().hex
    first = new(name=name, client=client)
    store = first.get_store(0)
    store.put("a", 1)
    store.commit()
    run = driver_run(client, name)
    other = new(name=name, run=run.run_id, registered=run).get_store(0)
    other.put("a", 2)
    other.commit()
    run = driver_run(client, name)
    second = new(name=name, run=run.run_id, registered=run, client=client, after=first)
    assert second.get_store(1).get("a") == 2


def test_provider_of_another_store_is_refused(new: NewProvider, client: Client) -> None:
    name = uuid.uuid4().hex
    first = new(name=name, client=client)
    with pytest.raises(UsageError, match="of another partition"):
        new(name=name, partition=1, client=client, after=first)
    with pytest.raises(UsageError, match="another codec"):
        new(name=name, codec=RAW, client=client, after=first)
    with pytest.raises(UsageError, match="another client"):
        new(name=name, after=first)


def test_many_look_ups_read_blocks_in_one_request(new: NewProvider, client: Client) -> None:
    name = uuid.uuid4().hex
    store = new(name=name, client=client).get_store(0)
    keys = [f"key {number}" * 10 for number in range(50_000)]
    for key in keys:
        store.put(key, len(key))
    store.commit()
    cold = new(name=name, client=client).get_read_store(1)
    trips = client.round_trips
    assert all(cold.get(key) == len(key) for key in keys[::10])
    assert client.round_trips - trips < 100
