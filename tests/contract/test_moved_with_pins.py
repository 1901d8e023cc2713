"""Rescaling where forks and kept versions hold segments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from redis_state import config as options
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.forks import fork
from redis_state.forks.keep import keep
from redis_state.live import Reader
from redis_state.maintain.checkpoint import maintain_checkpoint
from redis_state.maintain.report import Policy
from tests.contract.test_rescale_store import ROWS, Query
from tests.support.redis_server import RedisServer


@pytest.fixture
def query(redis_server: RedisServer) -> Iterator[Query]:
    with closing(Client(options.parse({"url": redis_server.url}))) as client:
        made = Query(client, redis_server.url)
        made.run(0, ROWS)
        made.run(1, {"k1": 100})
        made.begin(2)
        yield made


def state_of(query: Query, name: str, at: str | int = "confirmed") -> dict[object, object]:
    with Reader(query.config) as reader:
        return dict(reader.query(name).operator().items(at=at))


def gen_of(query: Query, name: str) -> str:
    with Reader(query.config) as reader:
        return reader.query(name).status().gen


def test_rescaled_parent_still_serves_its_fork_and_its_kept_version(query: Query) -> None:
    fork(query.url, query.name, to="forked", at_batch=0)
    keep(query.url, query.name, name="before", at_batch=0)
    old = gen_of(query, query.name)
    query.run(2, {"k2": 200})
    result = query.rescale(5)
    assert result.gen == old
    for _ in range(2):
        maintain_checkpoint(query.client, old, policy=Policy("test"))
    assert state_of(query, "forked") == ROWS
    assert state_of(query, old, at="before") == ROWS
    assert query.read(query.begin(3)) == ROWS | {"k1": 100, "k2": 200}


def test_rescaled_fork_has_all_of_its_segments_itself(query: Query) -> None:
    fork(query.url, query.name, to="forked", at_batch=0)
    forked = Query(query.client, query.url)
    forked.name = "forked"
    forked.run(1, {"k3": 300})
    result = forked.rescale(2)
    new = {key for key in raw_keys(query) if result.new_gen in key}
    assert new
    batch = forked.begin(2)
    assert forked.read(batch) == ROWS | {"k3": 300}
    for id_ in (batch.store_id(number).partition(result.new_gen) for number in range(2)):
        (fields,) = query.client.call("reading", [("HKEYS", keys.meta(id_))])
        assert not [name for name in fields if name[:2] in (b"a:", b"x:", b"z:")]


def raw_keys(query: Query) -> list[str]:
    (_, found) = query.client.call("scanning", [("SCAN", "0", "COUNT", "10000")])[0]
    return [name.decode() for name in found]
