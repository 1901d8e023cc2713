"""Bad input that the Python store refuses before anything reaches Redis."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.codec import RAW
from redis_state.errors import (
    CommitOutcomeUnknownError,
    ConfigError,
    ConflictError,
    FormatError,
    Kind,
    LimitError,
    StateError,
    UnavailableError,
    UsageError,
)
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.protocol import RegisteredRun, checkpoint_gen, register_run
from redis_state.store.provider import StateStoreProvider
from tests.contract.store_support import NewProvider, new_providers
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer

NAMES = ["}", "{", "a}:b", ":", "nul\0nul", "x" * 4096, "ключ 鍵 🔑", " ", "-", "{rs:}:n", "*?[a]"]


@pytest.fixture
def new_provider(shared_redis_server: RedisServer) -> Iterator[NewProvider]:
    with new_providers(shared_redis_server.url) as new:
        yield new


class Odd:
    """Nothing that has an encoding."""


@pytest.mark.parametrize("key", [Odd(), {1, 2}, datetime(2024, 1, 1), (1, Odd()), 1 << 64, 1j])
def test_key_without_encoding_raises_usage(redis_server: RedisServer, key: Any) -> None:
    with new_providers(redis_server.url) as new:
        store = new().get_store(0)
        for call in (lambda: store.put(key, 1), lambda: store.get(key), lambda: store.remove(key)):
            with pytest.raises(UsageError, match="encoding a key"):
                call()
    with redis_server.client() as raw:
        assert raw.dbsize() == 0


@pytest.mark.parametrize("value", [Odd(), {1, 2}, [1, [Odd()]], {"a": 1j}, 1 << 64, "\ud800"])
def test_value_without_encoding_raises_usage(redis_server: RedisServer, value: Any) -> None:
    with (
        new_providers(redis_server.url) as new,
        pytest.raises(UsageError, match="encoding a value"),
    ):
        new().get_store(0).put("a", value)
    with redis_server.client() as raw:
        assert raw.dbsize() == 0


def test_error_names_the_type_without_the_value(new_provider: NewProvider) -> None:
    store = new_provider().get_store(0)
    with pytest.raises(UsageError) as caught:
        store.put("a", {"secret": Odd()})
    assert "Odd" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_refused_row_keeps_earlier_rows(new_provider: NewProvider) -> None:
    store = new_provider().get_store(0)
    store.put("a", 1)
    with pytest.raises(UsageError):
        store.put("a", Odd())
    assert store.get("a") == 1
    assert store.commit() == 1


@pytest.mark.parametrize(
    ("key", "value"), [(b"k" * ((1 << 20) + 1), b""), (b"k", bytes((64 << 20) + 1))]
)
def test_oversized_row_raises_limit(redis_server: RedisServer, key: bytes, value: bytes) -> None:
    with new_providers(redis_server.url) as new, pytest.raises(LimitError):
        new(codec=RAW).get_store(0).put(key, value)
    with redis_server.client() as raw:
        assert raw.dbsize() == 0


def test_refused_row_of_many_is_named_by_its_position(redis_server: RedisServer) -> None:
    with new_providers(redis_server.url) as new:
        store = new().get_store(0)
        with pytest.raises(UsageError, match=r"pairs\[1\]: encoding a value; its type is .*Odd"):
            store.put_many([("a", 1), ("b", Odd()), ("c", 1)])
        for call in (store.get_many, store.remove_many):
            with pytest.raises(UsageError, match=r"keys\[2\]: encoding a key; its type is .*Odd"):
                call(["a", "b", Odd()])
        raw = new(codec=RAW).get_store(0)
        for row in ((b"k" * ((1 << 20) + 1), b""), (b"k", bytes((64 << 20) + 1))):
            with pytest.raises(LimitError, match="writing a row"):
                raw.put_many([(b"a", b"1"), row])
        assert raw.get_many([b"a"]) == [None]
    with redis_server.client() as client:
        assert client.dbsize() == 0


def test_largest_key_and_large_value_round_trip(new_provider: NewProvider) -> None:
    provider = new_provider(codec=RAW)
    key, value = b"k" * (1 << 20), bytes(range(256)) * (1 << 14)
    store = provider.get_store(0)
    store.put(key, value)
    store.put(b"", b"")
    store.commit()
    assert dict(new_provider(codec=RAW).get_read_store(1).iterator()) == {key: value, b"": b""}


@pytest.mark.parametrize("version", [-1, 1.0, True, "1", None, 1 << 63])
def test_malformed_version_raises_usage(new_provider: NewProvider, version: Any) -> None:
    with pytest.raises(UsageError, match="whole number"):
        new_provider().get_store(version)
    with pytest.raises(UsageError, match="whole number"):
        new_provider().get_read_store(version)


def test_missing_and_expired_versions_raise(
    new_provider: NewProvider, shared_redis_server: RedisServer
) -> None:
    options = config.parse({"url": shared_redis_server.url, "versionsToRetain": 2})
    provider = new_provider(config=options)
    for version in range(12):
        store = provider.get_store(version)
        store.put("a", "x" * version * 50)
        store.commit()
        provider.do_maintenance()
    provider.get_store(12)
    provider.do_maintenance()
    reader = new_provider()
    for version, kind in ((13, Kind.STATE_LOST), (1, Kind.VERSION_EXPIRED)):
        with pytest.raises(StateError) as caught:
            reader.get_read_store(version)
        assert caught.value.kind is kind
    assert reader.get_read_store(10).get("a") == "x" * 450


def test_later_of_two_writers_of_one_run_counts(new_provider: NewProvider) -> None:
    provider = new_provider()
    one, other = provider.get_store(0), new_provider().get_store(0)
    one.put("a", 1)
    other.put("a", 2)
    assert (one.commit(), other.commit()) == (1, 1)
    # The later of two attempts of one run is the version, until somebody goes on from it.
    assert new_provider().get_read_store(1).get("a") == 2
    late = provider.get_store(0)
    late.put("a", 3)
    new_provider().get_store(1)
    with pytest.raises(ConflictError, match="overtaken"):
        late.commit()
    with pytest.raises(ConflictError):
        provider.get_store(0)
    assert new_provider().get_read_store(1).get("a") == 2


def test_commit_after_a_newer_run_raises_conflict(new_provider: NewProvider) -> None:
    store = new_provider(run="old").get_store(0)
    store.put("a", 1)
    newer = new_provider(run="new").get_store(0)
    newer.put("a", 2)
    with pytest.raises(ConflictError, match="another run holds the partition"):
        store.commit()
    store.abort()
    with pytest.raises(UsageError):
        store.put("a", 3)
    assert newer.commit() == 1


def test_unregistered_run_may_not_rewind(
    new_provider: NewProvider, shared_redis_server: RedisServer
) -> None:
    provider = new_provider()
    for version in range(2):
        provider.get_store(version).commit()
    provider.get_store(2)
    late = new_provider(run="zombie").get_store(1)
    with pytest.raises(ConflictError, match="no driver registered"):
        late.put("a", 1)
    name = provider.id.store_id.checkpoint
    client = Client(config.parse({"url": shared_redis_server.url}))
    run = register_run(client, checkpoint_gen(client, name) or "", "rewind", by_driver=True)
    client.close()
    back = new_provider(run="rewind", registered=run).get_store(1)
    back.put("a", 1)
    assert back.commit() == 2


@pytest.mark.parametrize("name", NAMES)
def test_any_text_is_a_valid_name(shared_redis_server: RedisServer, name: str) -> None:
    checkpoint = name + uuid.uuid4().hex
    ids = [
        StateStoreProviderId(StateStoreId(checkpoint, 0, 0, store), "run")
        for store in (name, name + "2")
    ]
    for id_ in ids:
        provider = StateStoreProvider(id_, config=shared_redis_server.url)
        store = provider.get_store(0)
        store.put("name", id_.store_id.store_name)
        assert store.commit() == 1
        provider.close()
    for id_ in ids:
        provider = StateStoreProvider(id_, config=shared_redis_server.url)
        assert provider.get_read_store(1).get("name") == id_.store_id.store_name
        provider.close()


@pytest.mark.parametrize("name", ["", "x" * (1 << 17), "\ud800", 5, None, b"name"])
def test_malformed_names_raise_usage(name: Any) -> None:
    for id_ in (StateStoreId(name, 0, 0), StateStoreId("c", 0, 0, name)):
        with pytest.raises(UsageError, match="name"):
            StateStoreProvider(StateStoreProviderId(id_, "run"), config="redis://localhost")


@pytest.mark.parametrize("number", [-1, 1 << 31, True, "0"])
def test_malformed_numbers_raise_usage(number: Any) -> None:
    for id_ in (StateStoreId("c", number, 0), StateStoreId("c", 0, number)):
        with pytest.raises(UsageError, match="whole number"):
            StateStoreProvider(StateStoreProviderId(id_, "run"), config="redis://localhost")


@pytest.mark.parametrize("run", ["", "-", "a b", "ü", "x" * 65])
def test_malformed_run_ids_raise_usage(run: str) -> None:
    with pytest.raises(UsageError, match="run"):
        StateStoreProvider(StateStoreProviderId(StateStoreId("c", 0, 0), run), config="redis://h")


def test_run_with_another_id_raises_usage(new_provider: NewProvider) -> None:
    with pytest.raises(UsageError, match="have different ids"):
        new_provider(run="one", registered=RegisteredRun("other", 1, "d"))


def test_wrong_password_raises_permission(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis(password="right-secret")
    options = config.parse({"url": server.url, "password": "wrong-secret"})
    with new_providers(server.url) as new, pytest.raises(ConfigError) as caught:
        new(config=options).get_store(0)
    assert caught.value.kind is Kind.PERMISSION
    assert "wrong-secret" not in str(caught.value)


def test_server_stopped_in_commit_raises_unknown_outcome(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    with new_providers(server.url) as new:
        provider = new(clock=ManualClock())
        store = provider.get_store(0)
        store.put("a", 1)
        server.stop()
        with pytest.raises(CommitOutcomeUnknownError):
            store.commit()
        store.abort()
        assert not store.has_committed
        with pytest.raises(UsageError, match="aborted"):
            store.commit()
        with pytest.raises(UnavailableError):
            provider.get_store(0)


def _segment_key(server: RedisServer, provider: StateStoreProvider, kind: bytes) -> bytes:
    with server.client() as raw:
        gen = raw.hget(keys.names(), keys.name_field(provider.id.store_id.checkpoint))
        at = keys.partition(provider.id.store_id.partition(gen.decode())).encode()
        (found,) = [key for key in raw.scan_iter(count=1000) if key.startswith(at + kind)]
    return bytes(found)


def test_damaged_bytes_are_never_read_as_absent(
    new_provider: NewProvider, shared_redis_server: RedisServer
) -> None:
    provider = new_provider()
    store = provider.get_store(0)
    for number in range(1000):
        store.put(number, number)
    store.commit()
    key = _segment_key(shared_redis_server, provider, b":d:1:")
    with shared_redis_server.client() as raw:
        block = raw.hget(key, "0/3")
        raw.hset(key, "0/3", block[:-1] + bytes([block[-1] ^ 1]))
    with pytest.raises(FormatError, match="check does not match"):
        list(new_provider().get_read_store(1).iterator())
    with shared_redis_server.client() as raw:
        raw.hdel(key, "0/3")
    with pytest.raises(StateError) as caught:
        list(new_provider().get_read_store(1).iterator())
    assert caught.value.kind is Kind.STATE_LOST
