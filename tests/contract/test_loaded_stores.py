"""The providers that a process keeps: loaded, reported, maintained, unloaded."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.codec import RAW
from redis_state.errors import ConfigError, ConflictError, UsageError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.maintain.purge import purge
from redis_state.protocol import is_run
from redis_state.protocol.instances import TOTALS_TTL_MS, CheckpointCounts, find_counted
from redis_state.store.provider import StateStoreProvider
from redis_state.store.stores import LoadedStores
from tests.support.redis_server import RedisServer


def _id(*, run: str = "run-1", name: str = "", partition: int = 0) -> StateStoreProviderId:
    return StateStoreProviderId(StateStoreId(name or uuid.uuid4().hex, 0, partition), run)


@pytest.fixture
def stores() -> Iterator[LoadedStores]:
    loaded = LoadedStores(threaded=False, loaded_max=3)
    yield loaded
    loaded.stop()


def _beat(stores: LoadedStores, url: str) -> None:
    heartbeat = stores.coordinator(url).heartbeat
    heartbeat.tick()
    heartbeat.beat()


def test_a_provider_is_kept_until_it_is_unloaded(
    stores: LoadedStores, shared_redis_server: RedisServer
) -> None:
    url, id_ = shared_redis_server.url, _id()
    stores.get(id_, 0, config=url).commit()
    store = stores.get(id_, 1, config=url)
    store.put("a", 1)
    store.commit()
    assert stores.is_loaded(id_)
    assert not stores.is_loaded(_id())
    trips = store.metrics.custom["round_trips"]
    following = stores.get(id_, 2, config=url)
    # What the commit left here is the version: opening it is one script, and reading it nothing.
    assert following.get("a") == 1
    assert following.metrics.custom["round_trips"] == trips + 1
    stores.unload(id_)
    assert not stores.is_loaded(id_)
    following.put("b", 2)
    assert following.commit() == 3
    assert dict(stores.get_read_only(id_, 3, config=url).iterator()) == {"a": 1, "b": 2}


def test_surplus_providers_are_unloaded(
    stores: LoadedStores, shared_redis_server: RedisServer
) -> None:
    ids = [_id() for _ in range(4)]
    for id_ in ids[:3]:
        stores.get(id_, 0, config=shared_redis_server.url)
    stores.get(ids[0], 0, config=shared_redis_server.url)
    stores.get(ids[3], 0, config=shared_redis_server.url)
    assert [stores.is_loaded(id_) for id_ in ids] == [True, False, True, True]


def test_serving_process_reports_its_partition(
    stores: LoadedStores, shared_redis_server: RedisServer
) -> None:
    url, id_ = shared_redis_server.url, _id()
    reference = stores.coordinator(url).reference(id_.store_id.checkpoint)
    store = stores.get(id_, 0, config=url)
    _beat(stores, url)
    assert reference.get_location(id_) is None, "nobody knows the checkpoint yet"
    store.put("a", 1)
    store.commit()
    _beat(stores, url)
    found = reference.get_location(id_)
    assert found is not None
    assert is_run(found.run_id, id_.run_id)
    stores.unload(id_)
    _beat(stores, url)
    assert reference.get_location(id_) is None


def test_older_instance_unloads(stores: LoadedStores, shared_redis_server: RedisServer) -> None:
    url, name = shared_redis_server.url, uuid.uuid4().hex
    old, new = _id(run="old", name=name), _id(run="new", name=name)
    store = stores.get(old, 0, config=url)
    store.put("a", 1)
    store.commit()
    _beat(stores, url)
    other = LoadedStores(threaded=False)
    taken = other.get(new, 1, config=url)
    taken.put("a", 2)
    taken.commit()
    _beat(other, url)
    _beat(stores, url)
    assert not stores.is_loaded(old)
    assert other.is_loaded(new)
    other.stop()


def test_refused_commit_unloads_the_provider(
    stores: LoadedStores, shared_redis_server: RedisServer
) -> None:
    url, name = shared_redis_server.url, uuid.uuid4().hex
    old, new = _id(run="old", name=name), _id(run="new", name=name)
    first = stores.get(old, 0, config=url)
    first.put("a", 1)
    first.commit()
    late = stores.get(old, 1, config=url)
    late.put("a", 2)
    taken = stores.get(new, 1, config=url)
    taken.put("a", 3)
    with pytest.raises(ConflictError):
        late.commit()
    assert not stores.is_loaded(old)
    assert taken.commit() == 2


def test_different_codec_is_refused(stores: LoadedStores, shared_redis_server: RedisServer) -> None:
    url, id_ = shared_redis_server.url, _id()
    store = stores.get(id_, 0, config=url)
    store.put("a", 1)
    store.commit()
    with pytest.raises(UsageError, match="another codec"):
        stores.get(id_, 1, config=url, codec=RAW)


def test_threads_start_with_the_first_store_and_end_with_stop(
    shared_redis_server: RedisServer,
) -> None:
    stores = LoadedStores()
    assert not stores.maintenance.is_running
    stores.get(_id(), 0, config=shared_redis_server.url)
    assert stores.maintenance.is_running
    stores.stop()
    assert not stores.maintenance.is_running


def test_a_failing_provider_is_unloaded_and_the_others_are_maintained(
    stores: LoadedStores, shared_redis_server: RedisServer
) -> None:
    url, broken, sound = shared_redis_server.url, _id(), _id()
    for id_ in (broken, sound):
        for version in range(6):
            store = stores.get(id_, version, config=url)
            store.put(version, "x" * 100)
            store.commit()
        stores.get(id_, 6, config=url)
    with shared_redis_server.client() as raw:
        gen = raw.hget(keys.names(), keys.name_field(broken.store_id.checkpoint))
        raw.set(keys.meta(broken.store_id.partition(gen.decode())), "no hash")
    assert stores.maintenance.run_pass() == 1
    assert not stores.is_loaded(broken)
    assert stores.get(sound, 6, config=url).metrics.custom["snapshot_bytes"] > 0


def test_silent_server_does_not_hold_the_maintenance_of_another(
    shared_redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    stores = LoadedStores(threaded=False)
    with RedisServer() as other, contextlib.ExitStack() as stack:
        stack.callback(stores.stop)
        given: dict[str, Any] = {"url": other.url, "deadline": 1, "socket_timeout": 0.2}
        silent, fine = [_id() for _ in range(4)], _id()
        for id_ in silent:
            store = stores.get(id_, 0, **given)
            store.put("a", 1)
            store.commit()
        stores.get(fine, 0, url=shared_redis_server.url)
        other.stop()
        began_s = time.monotonic()
        assert stores.maintenance.run_pass() == 1
        assert time.monotonic() - began_s < 3
        assert set(stores.loaded()) == {*silent, fine}
    assert caplog.text.count("does not answer") == 1


@pytest.mark.parametrize(
    "server",
    [
        lambda url: {"config": url},
        lambda url: {"config": {"url": url, "deadline": 10}},
        lambda url: {"config": {"url": url}, "deadline": 10},
        lambda url: {"url": url, "deadline": 10},
        lambda url: {"config": config.parse({"url": url, "deadline": "10s"})},
    ],
)
def test_server_is_accepted_in_each_documented_form(
    stores: LoadedStores, shared_redis_server: RedisServer, server: Callable[[str], dict[str, Any]]
) -> None:
    given, id_ = server(shared_redis_server.url), _id()
    store = stores.get(id_, 0, **given)
    store.put("a", 1)
    assert store.commit() == 1
    assert stores.get_read_only(id_, 1, **given).get("a") == 1
    assert stores.coordinator(**given).reference("x").instances() == {}
    with contextlib.closing(StateStoreProvider(_id(), **given)) as provider:
        assert provider.get_read_store(0).get("a") is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "option 'url'; it is missing"),
        ({"config": {"urll": "x"}}, "Did you mean 'url'?"),
        ({"url": "redis://a", "config": {"url": "redis://b"}}, "both name a server"),
        ({"url": "redis://a", "dedline": 3}, "Did you mean 'deadline'?"),
        (
            {"config": config.parse({"url": "redis://a"}), "deadline": 3},
            "'deadline' is given together",
        ),
    ],
)
def test_malformed_server_arguments_raise_config(
    stores: LoadedStores, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        stores.get(_id(), 0, **given)
    assert said in str(caught.value)


def test_loaded_providers_are_listed(
    stores: LoadedStores, shared_redis_server: RedisServer
) -> None:
    name = uuid.uuid4().hex
    first, second = _id(name=name), _id(name=name, partition=1)
    url = shared_redis_server.url
    store = stores.get(first, 0, url=url)
    stores.get(second, 0, url=url)
    assert stores.loaded() == [first, second]
    assert repr(stores) == "LoadedStores(2 loaded)"
    store.put("secret", "value")
    of = f"checkpoint {name!r} operator 0 partition 0 store 'default'"
    assert repr(store) == f"PartitionStore({of}, version=0, state='updating')"
    store.commit()
    read = stores.get_read_only(first, 1, url=url)
    assert repr(read) == f"PartitionReadStore({of}, version=1)"
    assert repr(stores.coordinator(url)) == f"StateStoreCoordinator(url={url!r})"
    stores.stop()
    assert stores.loaded() == []


def test_changed_maintenance_interval_takes_effect_at_once(
    shared_redis_server: RedisServer,
) -> None:
    stores = LoadedStores()
    done = threading.Event()
    stores.get(_id(), 0, url=shared_redis_server.url)
    stores.maintenance.run_pass = done.set  # type: ignore[method-assign, assignment]  # notes it
    try:
        stores.maintain_every(timedelta(seconds=1))
        assert done.wait(10), "the thread that waited for a minute waits no longer"
        for wrong in ("5", 0.1, "2d", True):
            with pytest.raises(ConfigError, match="option 'interval'"):
                stores.maintain_every(wrong)
    finally:
        stores.stop()


def test_heartbeat_publishes_the_totals_of_a_store(
    stores: LoadedStores, shared_redis_server: RedisServer
) -> None:
    url, id_ = shared_redis_server.url, _id()
    store = stores.get(id_, 0, config=url)
    store.put("a", 1)
    store.commit()
    stores.get(id_, 1, config=url).commit()
    _beat(stores, url)
    reference = stores.coordinator(url).reference(id_.store_id.checkpoint)
    (partition,) = reference.instances()
    with contextlib.closing(Client(config.parse({"url": url}))) as client:
        found = find_counted(client, [partition.store.gen])[0].totals
        (totals,) = found.values()
        assert list(found) == [(0, 0, "default")]
        assert totals.instance == reference.get_location(id_)
        assert (totals.counts["opens"], totals.counts["commits"]) == (2, 2)
        assert (totals.counts["rowsWritten"], totals.counts["rowsRemoved"]) == (1, 0)
        assert totals.counts["bytesSent"] > 0
        key = keys.totals(partition.store.gen)
        (left_ms,) = client.call("look", [("PTTL", key)])
        assert 0 < left_ms <= TOTALS_TTL_MS
        purge(client, partition.store.gen)
        assert client.call("look", [("EXISTS", key)]) == [0]


@pytest.mark.parametrize(
    ("place", "text"),
    [("0:x:default", b'{"host":"a","executor":"1","run":"r"}'), ("0:1:default", b"[]")],
)
def test_damaged_totals_are_left_out(
    shared_redis_server: RedisServer, place: str, text: bytes
) -> None:
    gen = uuid.uuid4().hex
    with contextlib.closing(Client(config.parse({"url": shared_redis_server.url}))) as client:
        client.call("plant", [("HSET", keys.totals(gen), place, text)])
        assert find_counted(client, [gen]) == [CheckpointCounts({}, {})]
        client.call("clean up", [("UNLINK", keys.totals(gen))])
