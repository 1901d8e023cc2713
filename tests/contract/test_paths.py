"""The paths of docs/design.md, followed by real calls; tests/spark follows a processor's batch."""

from __future__ import annotations

import redis_state
from tests.contract.planting import Planted, family, schema
from tests.contract.store_support import new_providers
from tests.contract.test_rescale_store import Query, query
from tests.support.paths import check, followed
from tests.support.redis_server import RedisServer

__all__ = ["query"]


def test_commit_follows_the_documented_path(redis_server: RedisServer) -> None:
    with new_providers(redis_server.url) as new:
        provider = new()
        with followed() as walk:
            store = provider.get_store(0)
            store.put("a", 1)
            store.commit()
    check("Path of a commit", walk)


def test_live_read_follows_the_documented_path(redis_server: RedisServer) -> None:
    layout = family(schema(k="string"), schema(n="long"))
    planted = Planted(redis_server.client(), layout, name="followed", partitions=2)
    planted.register()
    planted.commit(1, [({"k": "a"}, {"n": 1})])
    with redis_state.connect(redis_server.url, deadline="5s") as reader:
        state = reader.query("followed").operator(0)
        with followed() as walk:
            assert state.get({"k": "a"}) == {"n": 1}
    check("Path of a live read", walk)


def test_move_follows_the_documented_path(query: Query) -> None:
    with followed() as walk:
        query.rescale(5)
    check("Path of a move", walk, files_max=14)
