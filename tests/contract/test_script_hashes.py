"""A commit sends no script by its text, unless the server does not know it; all is done or none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command, script
from redis_state.format.chunks import STAGED_BY_SCRIPT_MAX, STAGED_BYTES_MAX
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.store.provider import StateStoreProvider
from tests.support.redis_server import RedisServer

NAMES = ("stage", "publish")
_WORDS_BYTES = 4096  # of a script, beside its blocks
ID = StateStoreProviderId(StateStoreId("orders", 0, 0))


class Recorded(Client):
    """Keeps what it sent."""

    def __init__(self, url: str) -> None:
        super().__init__(config.parse({"url": url}))
        self.sent: list[Sequence[Command]] = []

    def _exchange(self, attempted: str, commands: Sequence[Command]) -> list[Any]:
        self.sent.append(commands)
        return super()._exchange(attempted, commands)


@pytest.fixture
def provider(redis_server: RedisServer) -> Any:
    client = Recorded(redis_server.url)
    provider = StateStoreProvider(ID, url=redis_server.url, client=client)
    provider.recorded = client  # type: ignore[attr-defined]  # for the tests
    yield provider
    provider.close()
    client.close()


def commit(provider: Any, version: int, rows: int = 5) -> list[Sequence[Command]]:
    """The transactions that it took."""
    store = provider.get_store(version)
    for row in range(rows):
        store.put(f"k{row}", version)
    del provider.recorded.sent[:]
    assert store.commit() == version + 1
    return [sent for sent in provider.recorded.sent if sent[0] == ("MULTI",)]


def size(commands: Sequence[Command]) -> int:
    return sum(len(word) for command in commands for word in command)


def test_small_commit_sends_few_bytes(provider: Any) -> None:
    commit(provider, 0)
    (sent,) = commit(provider, 1)
    assert [command[0] for command in sent] == ["MULTI", "HSET", "PEXPIRE", "EVALSHA", "EXEC"]
    assert size(sent) < 1500


@pytest.mark.parametrize("known", [(), ("stage",), ("publish",)])
@pytest.mark.parametrize("rows", [5, 60_000])
def test_forgotten_script_is_loaded_again(
    provider: Any, redis_server: RedisServer, known: Sequence[str], rows: int
) -> None:
    """A part of many rows is staged before the transaction."""
    commit(provider, 0)
    store = provider.get_store(1)
    for row in range(rows):
        store.put(f"k{row}", f"{row * 2654435761 % 2**32:x}" * 8)
    with redis_server.client() as raw:
        raw.script_flush()
        for name in known:
            raw.script_load(script(name).text)
        del provider.recorded.sent[:]
        assert store.commit() == 2
        transactions = [sent for sent in provider.recorded.sent if sent[0] == ("MULTI",)]
        by_hash = "EVALSHA" in {command[0] for command in transactions[-1]}
        assert by_hash == ("publish" in known) or rows > 5
        (gen,) = (name.decode() for name in raw.hvals(keys.names()))
        meta = keys.meta(ID.store_id.partition(gen))
        published = [name for name in raw.hkeys(meta) if name.startswith(b"d:2:")]
        assert len(published) == 1
        (segment,) = raw.keys("*}:d:2:*")
        assert raw.ttl(segment) == -1
    fresh = StateStoreProvider(ID, url=redis_server.url)
    assert sum(1 for _ in fresh.get_read_store(2).iterator()) == rows
    fresh.close()


def test_blocks_ahead_of_a_commit_go_in_pipelines_of_small_scripts(provider: Any) -> None:
    """A server that runs a script serves nobody else; between two of a pipeline it does."""
    store = provider.get_store(0)
    chance = random.Random(1)
    for row in range(60_000):
        store.put(f"k{row}", chance.randbytes(32).hex())
    del provider.recorded.sent[:]
    store.commit()
    staged = [sent for sent in provider.recorded.sent if sent[0] != ("MULTI",)]
    scripts = [size([command]) for sent in staged for command in sent]
    assert max(map(len, staged)) >= STAGED_BYTES_MAX // STAGED_BY_SCRIPT_MAX
    assert max(map(size, staged)) < STAGED_BYTES_MAX + STAGED_BY_SCRIPT_MAX
    assert max(scripts) < STAGED_BY_SCRIPT_MAX + _WORDS_BYTES
    # Others are of a snapshot, whose blocks pass no script.
    is_commit = {"EVALSHA", "MULTI"}.issubset
    (last,) = [sent for sent in provider.recorded.sent if is_commit(one[0] for one in sent)]
    assert size(last) < STAGED_BY_SCRIPT_MAX + _WORDS_BYTES
