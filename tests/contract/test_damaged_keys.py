"""Keys of a partition that another program overwrote: a `FORMAT` error, never an internal one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from redis_state.codec import RAW
from redis_state.errors import FormatError, InternalError, RedisStateError
from tests.contract.store_support import NewProvider, new_providers
from tests.support.redis_server import RedisServer

VERSIONS = 3
GARBAGE = (b"", b"x", b"-1", b"\xff a", b"a b c d e f")
# Ids differ from one checkpoint to the next.
_ID = re.compile(rb"[0-9a-f]{16,}")


@pytest.fixture
def new(redis_server: RedisServer) -> Iterator[NewProvider]:
    with new_providers(redis_server.url) as made:
        yield made


def write(provider: Any, version: int) -> None:
    store = provider.get_store(version)
    try:
        store.put(b"key", b"%d" % version)
        store.commit()
    finally:
        if not store.has_committed:
            store.abort()


CALLS: dict[str, Callable[[NewProvider, Any], object]] = {
    "read": lambda new, _: new(codec=RAW).get_read_store(VERSIONS).get(b"key"),
    "read an older version": lambda new, _: new(codec=RAW).get_read_store(1).get(b"key"),
    "commit": lambda _, provider: write(provider, VERSIONS),
    "commit elsewhere": lambda new, _: write(new(codec=RAW), VERSIONS),
    "go back": lambda new, _: write(new(codec=RAW), VERSIONS - 1),
    "maintain": lambda _, provider: provider.do_maintenance(),
}


def planted(new: NewProvider, client: redis.Redis) -> Any:
    client.flushdb()
    provider = new(codec=RAW)
    for version in range(VERSIONS):
        write(provider, version)
    return provider


def names(client: redis.Redis, key: bytes | None = None) -> list[bytes]:
    """All keys, or all fields of one."""
    found: Any = client.keys() if key is None else client.hkeys(key.decode())
    return list(found)


def shape(name: bytes) -> bytes:
    return _ID.sub(b"*", name)


def failures(new: NewProvider, client: redis.Redis, damage: Callable[[], object]) -> list[str]:
    """Calls that end with anything but an error that a caller can act on."""
    wrong = []
    for name, call in CALLS.items():
        provider = planted(new, client)
        damage()
        try:
            call(new, provider)
        except RedisStateError as error:
            if isinstance(error, InternalError):
                wrong.append(f"{name}: {error}")
    return wrong


def test_key_of_another_type_raises_format_error(
    new: NewProvider, redis_server: RedisServer
) -> None:
    client = redis_server.client()
    planted(new, client)
    for kind in sorted({shape(key) for key in names(client)}):

        def damage(kind: bytes = kind) -> None:
            for key in names(client):
                if shape(key) == kind:
                    client.delete(key)
                    client.set(key, b"not ours")

        assert failures(new, client, damage) == [], kind
    planted(new, client)
    for key in names(client):
        if key.endswith(b":m"):
            client.delete(key)
            client.set(key, b"not ours")
    with pytest.raises(FormatError, match=r"of another type.*WRONGTYPE.*redis-state doctor"):
        new(codec=RAW).get_read_store(VERSIONS)


def test_damaged_field_of_a_manifest_raises_no_internal_error(
    new: NewProvider, redis_server: RedisServer
) -> None:
    client = redis_server.client()
    planted(new, client)
    manifest = next(key for key in names(client) if key.endswith(b":m"))
    for field in sorted({shape(name) for name in names(client, manifest)}):
        for garbage in (*GARBAGE, None):

            def damage(field: bytes = field, garbage: bytes | None = garbage) -> None:
                (found,) = (key for key in names(client) if key.endswith(b":m"))
                for name in names(client, found):
                    if shape(name) == field and garbage is None:
                        client.hdel(found.decode(), name.decode())
                    elif shape(name) == field and garbage is not None:
                        client.hset(found.decode(), name.decode(), garbage)

            assert failures(new, client, damage) == [], (field, garbage)


def test_script_that_meets_a_damaged_entry_raises_format_error(
    new: NewProvider, redis_server: RedisServer
) -> None:
    client = redis_server.client()
    planted(new, client)
    (manifest,) = (key for key in names(client) if key.endswith(b":m"))
    client.hset(manifest.decode(), "o", "many")
    with pytest.raises(FormatError, match=r"an entry that redis-state does not write.*user_script"):
        write(new(codec=RAW), VERSIONS)
