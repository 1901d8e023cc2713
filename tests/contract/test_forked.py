"""A process is forked off while stores are open: what its parent opened is not the child's."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redis_state import config
from redis_state.backend.client import Client
from redis_state.errors import ConflictError, UsageError
from redis_state.format import ordered
from redis_state.ids import EMPTY, PartitionId, StateStoreId, StateStoreProviderId, StoreId
from redis_state.protocol import PartitionClient, checkpoint_gen, register_run
from redis_state.spark.worker import WORKER, Warm
from redis_state.store.local.families import family_of
from redis_state.store.provider import StateStoreProvider
from redis_state.store.stores import LoadedStores
from tests.contract.store_support import new_providers
from tests.support.forking import in_child
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

NewProvider = Callable[..., StateStoreProvider]


@pytest.fixture
def new_provider(shared_redis_server: RedisServer) -> Iterator[NewProvider]:
    with new_providers(shared_redis_server.url) as new:
        yield new


def test_open_store_is_refused_in_the_child(new_provider: NewProvider) -> None:
    provider = new_provider()
    first = provider.get_store(0)
    first.put_many({"a": 1, "b": 2})
    first.commit()
    store, reader = provider.get_store(1), provider.get_read_store(1)
    store.put("a", 2)

    calls: list[Callable[[], Any]] = [
        lambda: store.put("a", 3),
        lambda: store.put_many({"a": 3}),
        lambda: store.remove("a"),
        lambda: store.get("a"),
        lambda: list(store.iterator()),
        lambda: store.commit(),
        lambda: reader.get("a"),
        lambda: list(reader.prefix_scan("a")),
        lambda: first.get("a"),
        lambda: provider.get_store(1),
        lambda: provider.get_read_store(1),
        lambda: provider.latest(),
        lambda: provider.do_maintenance(),
    ]

    def child() -> list[str]:
        told = []
        for call in calls:
            with pytest.raises(UsageError) as raised:
                call()
            told.append(str(raised.value))
        # Clean-up code does not ask where it runs.
        store.abort()
        provider.close()
        return told

    assert all("in another process" in one for one in in_child(child))
    assert store.commit() == 2
    assert dict(new_provider().get_read_store(2).iterator()) == {"a": 2, "b": 2}


READS: dict[str, Callable[[Any], Any]] = {
    "get": lambda store: store.get("a"),
    "get_many": lambda store: store.get_many(["a"]),
    "prefetch": lambda store: store.prefetch(["a"]),
    "get_range": lambda store: store.get_range("a", "b"),
    "prefix_scan": lambda store: store.prefix_scan("a"),
    "iterator": lambda store: store.iterator(),
    "metrics": lambda store: store.metrics,
}
WRITES: dict[str, Callable[[Any], Any]] = {
    "put": lambda store: store.put("a", ["c"]),
    "put_many": lambda store: store.put_many({"a": ["c"]}),
    "append": lambda store: store.append("a", "c"),
    "remove": lambda store: store.remove("a"),
    "remove_many": lambda store: store.remove_many(["a"]),
    "commit": lambda store: store.commit(),
}
FAMILIES: dict[str, Callable[[Any, bytes], Any]] = {
    "declare": lambda store, _: store.declare("another", key_schema="{}", value_schema="{}"),
    "drop": lambda store, _: store.drop("rows"),
    "get": lambda store, key: store.get(key),
    "get_many": lambda store, key: store.get_many([key]),
    "prefetch": lambda store, key: store.prefetch([key]),
    "is_here": lambda store, _: store.is_here,
    "rows": lambda store, key: store.rows(key, None),
    "metrics": lambda store, _: store.metrics,
    "put": lambda store, key: store.put(key, b"c"),
    "put_many": lambda store, key: store.put_many({key: b"c"}),
    "append": lambda store, key: store.append(key, b"c"),
    "remove": lambda store, key: store.remove(key),
    "remove_many": lambda store, key: store.remove_many([key]),
    "commit": lambda store, _: store.commit(),
}
ANYWHERE = {"id", "version", "has_committed", "families", "abort", "after_fork"}
"""Members that look at nothing but the object, or clean up."""


def members(store: object) -> set[str]:
    return {name for name in dir(store) if name[0] != "_"} - ANYWHERE


@pytest.mark.parametrize("state", ["opened", "changed", "committed", "for reading"])
def test_each_method_of_a_store_is_refused_in_the_child(
    new_provider: NewProvider, state: str
) -> None:
    provider = new_provider(lists=True)
    store: Any = provider.get_list_store(0)
    store.put("a", ["b"])
    if state != "changed":
        store.commit()
    if state == "opened":
        store = provider.get_list_store(1)
    elif state == "for reading":
        store = provider.get_read_store(1)
    calls = READS if state == "for reading" else READS | WRITES
    assert set(calls) == members(store)
    assert refused_in_child(list(calls.values()), store) == []


def test_each_method_of_a_family_store_is_refused_in_the_child(new_provider: NewProvider) -> None:
    provider = new_provider(families=True)
    store = provider.get_family_store(0)
    key = store.declare("rows", key_schema="{}", value_schema="{}", multi_value=True) + b"a"
    store.append(key, b"b")
    store.commit()
    store = provider.get_family_store(1)
    assert set(FAMILIES) == members(store)
    assert refused_in_child(list(FAMILIES.values()), store, key) == []


def refused_in_child(calls: list[Callable[..., Any]], *given: Any) -> list[int]:
    """Returns the positions of the calls that a child may make."""

    def child() -> list[int]:
        found = []
        for at, call in enumerate(calls):
            try:
                call(*given)
            except UsageError:
                continue
            found.append(at)
        return found

    return list(in_child(child))


def test_repeated_commit_is_accepted_only_with_the_same_rows(
    shared_redis_server: RedisServer,
) -> None:
    client = Client(config.parse({"url": shared_redis_server.url}))
    gen = checkpoint_gen(client, uuid.uuid4().hex, create=True) or ""
    partition = PartitionClient(
        client, StateStoreId("", 0, 0).partition(gen), versions_to_retain=100
    )
    run = partition.acquire(register_run(client, gen, "run", by_driver=True), EMPTY)
    uid, key, family = uuid.uuid4().hex, ordered.PREFIX + b"key", family_of("raw")
    one, other = (
        ordered.write(f"d:1:{uid}", [key], [value], ref=EMPTY.uid, live=1, families=[family])
        for value in (b"1", b"2")
    )
    for _ in range(2):
        partition.commit(run, EMPTY, uid, one.entry, one.fields)
    with pytest.raises(ConflictError, match="under the id of this attempt"):
        partition.commit(run, EMPTY, uid, other.entry, other.fields)
    (segment,) = partition.open("", 1).segments
    assert segment.entry == one.entry
    assert partition.fetch(segment, ["0/0"]) == [one.fields["0/0"]]
    client.close()


def test_the_child_writes_with_a_provider_of_its_own(new_provider: NewProvider) -> None:
    store = new_provider().get_store(0)
    store.put("who", "parent")

    def child() -> int:
        own = new_provider(run="child").get_store(0)
        own.put("who", "child")
        return own.commit()

    assert in_child(child) == 1
    with pytest.raises(ConflictError):
        store.commit()
    assert new_provider().get_read_store(1).get("who") == "child"


def test_no_socket_is_shared(shared_redis_server: RedisServer) -> None:
    client = Client(config.parse({"url": shared_redis_server.url}))

    def mine() -> int:
        return int(client.call("asking who I am", [("CLIENT", "ID")])[0])

    before = mine()
    assert in_child(mine) != before
    assert mine() == before, "the child closes nothing of its parent"
    client.close()


def test_forking_function_keeps_the_workers_cached_state(
    new_provider: NewProvider,
) -> None:
    place = (
        config.parse({"url": "redis://localhost:6379/0"}),
        PartitionId(StoreId("0" * 16, 0, "default"), 0),
    )
    WORKER.warm[place] = Warm(new_provider(), 1)
    try:
        assert in_child(lambda: len(WORKER.warm)) == 0
        assert len(WORKER.warm) == 1
    finally:
        WORKER.warm.clear()


def test_child_waits_for_no_lock_of_the_parent(shared_redis_server: RedisServer) -> None:
    url, name = shared_redis_server.url, uuid.uuid4().hex
    loaded = LoadedStores()
    id_ = StateStoreProviderId(StateStoreId(name, 0, 0), "run")
    store = loaded.get(id_, 0, config=url)
    store.put("a", 1)
    store.commit()
    heartbeat = loaded.coordinator(url).heartbeat
    pool = loaded._servers[config.parse({"url": url})].client._transport._redis.connection_pool  # type: ignore[attr-defined]  # of one server
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        threads = heartbeat._background, loaded.maintenance._background
        with loaded._lock, threads[0]._starting, threads[1]._starting, pool._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()

    def child() -> tuple[bool, int, bool]:
        own = loaded.get(StateStoreProviderId(id_.store_id, "child"), 1, config=url)
        own.put("a", 2)
        version = own.commit()
        loaded.stop()
        return loaded.is_loaded(id_), version, heartbeat.instances == {}

    try:
        assert in_child(child) == (False, 2, True)
    finally:
        done.set()
        thread.join()
    assert loaded.is_loaded(id_)
    assert loaded.get_read_only(id_, 2, config=url).get("a") == 2
    loaded.stop()
