"""A query goes over to checkpoint format 2 while attempts of its earlier run are under way."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from unittest import mock

import pytest

from redis_state import config as options
from redis_state.backend.client import Client
from redis_state.errors import ConflictError, Kind
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.protocol import checkpoint_gen, register_run
from redis_state.store import checkpoint_link
from redis_state.store.provider import StateStoreProvider
from tests.faults.oracle.by_uid import asking, partition_client
from tests.support.redis_server import RedisServer


@pytest.fixture
def client(shared_redis_server: RedisServer) -> Iterator[Client]:
    made = Client(options.parse({"url": shared_redis_server.url}))
    yield made
    made.close()


def run_of(client: Client, name: str) -> StateStoreProvider:
    gen = checkpoint_gen(client, name, create=True)
    assert gen is not None
    run = register_run(client, gen, uuid.uuid4().hex, by_driver=True)
    id_ = StateStoreProviderId(StateStoreId(name, 0, 0), run.run_id)
    return StateStoreProvider(id_, config=client.url, run=run, client=client)


def test_attempt_replaced_after_a_read_raises_conflict_not_state_lost(
    client: Client,
) -> None:
    name = uuid.uuid4().hex
    with mock.patch.object(checkpoint_link, "PartitionClient", partition_client):
        earlier = run_of(client, name)
        first, sibling = earlier.get_store(0), earlier.get_store(0)
        first.put("k", "first")
        first.commit()
        with asking(2, None):
            later = run_of(client, name)
            store = later.get_store(1)
            assert store.get("k") == "first"
        sibling.put("k", "sibling")
        sibling.commit()
        with pytest.raises(ConflictError, match="replaced by that of another attempt") as caught:
            store.put("k", "second")
        assert caught.value.kind is Kind.FENCED
        with asking(2, None):
            again = later.get_store(1)
        assert again.get("k") == "sibling"
        again.put("k", "second")
        assert again.commit() == 2
