"""A run that no driver registered is one process's, whatever id it was given."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.coordinator import StateStoreCoordinator
from redis_state.errors import ConflictError
from redis_state.ids import StateStoreId, StateStoreProviderId, is_uid
from redis_state.protocol import is_run, own_run, register_run
from redis_state.store.stores import LoadedStores
from tests.contract.store_support import new_providers
from tests.support.forking import in_child
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
def new_provider(shared_redis_server: RedisServer) -> Iterator[Callable[..., Any]]:
    with new_providers(shared_redis_server.url) as new:
        yield new


@pytest.mark.parametrize("run", ["run-1", "r" * 64])
def test_processes_with_one_run_id_do_not_replace_each_other(
    new_provider: Callable[..., Any], run: str
) -> None:
    provider = new_provider(run=run)
    first = provider.get_store(0)
    first.put("who", "nobody")
    first.commit()
    late = provider.get_store(1)
    late.put("who", "parent")

    def other_process() -> int:
        store = new_provider(run=run).get_store(1)
        store.put("who", "child")
        version: int = store.commit()
        return version

    assert in_child(other_process) == 2
    with pytest.raises(ConflictError, match="run holds the partition"):
        late.commit()
    assert new_provider(run="reader").get_read_store(2).get("who") == "child"
    with pytest.raises(ConflictError):
        provider.get_store(2).put("who", "parent")


def test_each_process_has_its_own_run_id() -> None:
    store = StateStoreId(uuid.uuid4().hex, 0, 0)
    mine = StateStoreProviderId(store)
    assert mine == StateStoreProviderId(store)
    assert own_run(mine.run_id) == mine.run_id
    given, own = in_child(lambda: (mine.run_id, StateStoreProviderId(store).run_id))
    assert given == mine.run_id != own


@pytest.mark.parametrize("given", ["run-1", "a.b", "x" * 51, "x" * 64])
def test_own_run_is_matched_by_its_given_id(given: str) -> None:
    mine, others = own_run(given), in_child(lambda: own_run(given))
    assert is_uid(mine)
    assert mine != others
    assert own_run(given) == mine
    assert is_run(mine, given)
    assert is_run(others, given)
    assert not is_run(mine, "another")
    assert not is_run(mine, given[:-1])


def test_instance_is_found_by_the_given_run_id(
    shared_redis_server: RedisServer,
) -> None:
    url = shared_redis_server.url
    id_ = StateStoreProviderId(StateStoreId(uuid.uuid4().hex, 0, 0), "run-7")
    loaded = LoadedStores(threaded=False)
    store = loaded.get(id_, 0, config=url)
    store.put("a", 1)
    store.commit()
    loaded.coordinator(url).heartbeat.tick()
    elsewhere = StateStoreCoordinator(url, threaded=False)
    orders = elsewhere.reference(id_.store_id.checkpoint)
    found = orders.get_location(id_)
    assert found is not None
    assert orders.verify_if_instance_active(id_, found.executor_id)
    assert orders.deactivate_instances("run-7") == 1
    loaded.coordinator(url).heartbeat.beat()
    assert not loaded.is_loaded(id_)
    elsewhere.stop()
    loaded.stop()


def test_a_query_keeps_the_time_of_its_first_run(shared_redis_server: RedisServer) -> None:
    client = Client(config.parse({"url": shared_redis_server.url}))
    gen = uuid.uuid4().hex
    for run, created, name in (("run-1", "1000", "then"), ("run-2", "2000", "now")):
        fields = {"created": created, "name": name}
        register_run(client, gen, run, by_driver=True, fields=fields)
    (found,) = client.call("looking", [("HMGET", keys.query(gen), "created", "name")])
    client.close()
    assert found == [b"1000", b"now"]
