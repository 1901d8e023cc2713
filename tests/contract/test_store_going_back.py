"""A server that goes back to older data while a store writes: once, now and then, again and "
"again."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from redis_state import config as options
from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.errors import Kind, UnavailableError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.protocol import own_run
from redis_state.store.provider import StateStoreProvider
from tests.support.redis_server import RedisServer

RUN = "run"
BLOCKS, OPENED = "blocks", "opened"
SAID = {BLOCKS: "keeps losing staged blocks", OPENED: "keeps forgetting that the version was"}
ON_AND_ON = 100

NewProvider = Callable[[str], StateStoreProvider]


class GoingBackClient(Client):
    """Makes the server lose data before each exchange of one step."""

    step = "committing"
    losses: Sequence[str] = ()

    def _exchange(self, attempted: str, commands: Sequence[Command]) -> list[Any]:
        if self.losses and attempted.startswith(self.step):
            self._lose(self.losses[0], commands)
            self.losses = self.losses[1:]
        return super()._exchange(attempted, commands)

    def _lose(self, what: str, commands: Sequence[Command]) -> None:
        named = [word for command in commands for word in command if isinstance(word, str)]
        meta = next(word for word in named if word.endswith("}:m"))
        if what == BLOCKS:
            delta = next(word for word in named if "}:d:" in word)
            super()._exchange("losing blocks", [("UNLINK", delta)])
        else:
            older = ("HSET", meta, "r", own_run(RUN), "o", "0", "ou", "-")
            super()._exchange("losing what was opened", [older])


@pytest.fixture
def client(shared_redis_server: RedisServer) -> Iterator[GoingBackClient]:
    made = GoingBackClient(options.parse({"url": shared_redis_server.url}))
    yield made
    made.close()


@pytest.fixture
def provider_of(shared_redis_server: RedisServer, client: Client) -> NewProvider:
    config = options.parse({"url": shared_redis_server.url})
    store_id = StateStoreId(uuid.uuid4().hex, 0, 0)

    def made(run: str) -> StateStoreProvider:
        return StateStoreProvider(StateStoreProviderId(store_id, run), config=config, client=client)

    return made


def rows(version: int) -> dict[int, bytes]:
    """More than one chunk, so that blocks are staged ahead of the transaction."""
    dice = random.Random(version)
    return {key: dice.randbytes(64 << 10) for key in range(40)}


def write(provider: StateStoreProvider, version: int) -> None:
    store = provider.get_store(version)
    try:
        store.put_many(rows(version + 1).items())
        store.commit()
    finally:
        store.abort()


def check(provider: StateStoreProvider, version: int) -> None:
    assert dict(provider.get_read_store(version).iterator()) == rows(version)


@pytest.mark.parametrize(
    "losses",
    [(BLOCKS,), (OPENED,), (BLOCKS, OPENED, BLOCKS, OPENED), (OPENED, BLOCKS, OPENED, BLOCKS)],
    ids="-".join,
)
def test_data_lost_by_the_server_is_sent_again(
    client: GoingBackClient, provider_of: NewProvider, losses: Sequence[str]
) -> None:
    provider = provider_of(RUN)
    write(provider, 0)
    client.losses = losses
    write(provider, 1)
    assert not client.losses
    check(provider_of("reader"), 2)


@pytest.mark.parametrize(
    ("step", "losses"),
    [
        ("committing", (BLOCKS,)),
        ("committing", (OPENED,)),
        ("committing", (BLOCKS, OPENED)),
        ("committing", (OPENED, BLOCKS)),
        ("acquiring", (OPENED,)),
    ],
)
def test_server_that_keeps_losing_data_raises_unavailable(
    client: GoingBackClient, provider_of: NewProvider, step: str, losses: Sequence[str]
) -> None:
    write(provider_of("earlier" if step == "acquiring" else RUN), 0)
    client.step, client.losses = step, tuple(losses) * ON_AND_ON
    with pytest.raises(UnavailableError) as caught:
        write(provider_of(RUN), 1)
    assert caught.value.kind is Kind.UNAVAILABLE
    assert any(SAID[loss] in str(caught.value) for loss in losses)
    client.losses = ()
    check(provider_of("reader"), 1)
    write(provider_of(RUN), 1)
    check(provider_of("reader"), 2)
