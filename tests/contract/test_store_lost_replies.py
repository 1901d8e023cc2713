"""A request or an answer of the Python store is lost, and the store goes on."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from redis_state import config
from redis_state.backend.client import Client
from redis_state.backend.retry import TransientError
from redis_state.backend.script import Command
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.store.provider import StateStoreProvider
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer

STEPS = 12


class LossyClient(Client):
    """Loses one exchange, before or behind the server."""

    countdown = 0
    after_sending = False
    lost = ""

    def _exchange(self, attempted: str, commands: Sequence[Command]) -> list[Any]:
        self.countdown -= 1
        if self.countdown != 0:
            return super()._exchange(attempted, commands)
        self.lost = attempted
        if self.after_sending:
            super()._exchange(attempted, commands)
        raise TransientError("lost")


@pytest.mark.parametrize("after_sending", [False, True], ids=["request", "answer"])
@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_a_lost_exchange_is_sent_again(
    shared_redis_server: RedisServer, step: int, after_sending: bool
) -> None:
    options = config.parse({"url": shared_redis_server.url})
    client = LossyClient(options, clock=ManualClock())
    client.countdown, client.after_sending = step, after_sending
    id_ = StateStoreProviderId(StateStoreId(uuid.uuid4().hex, 0, 0), "run")
    provider = StateStoreProvider(id_, config=options, client=client)
    for version in range(3):
        store = provider.get_store(version)
        store.put("count", (store.get("count") or 0) + 1)
        assert store.commit() == version + 1
    assert client.lost, "every step of the list is reached"
    reader = StateStoreProvider(id_, config=options)
    counts = [reader.get_read_store(version).get("count") for version in range(4)]
    assert counts == [None, 1, 2, 3]
    reader.close()
    client.close()
