"""Tools that read and maintain know pins and forks: changes, sizes, doctor, purge."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import redis_state
from redis_state import keys
from redis_state.forks import fork
from redis_state.forks.keep import keep
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.live import Reader
from redis_state.store.provider import StateStoreProvider
from tests.contract.test_pins import Parent
from tests.support.redis_server import RedisServer

FORK = "orders-fork"


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return redis_server.url


@pytest.fixture
def parent(redis_server: RedisServer) -> Iterator[Parent]:
    made = Parent(redis_server.url)
    yield made
    made.close()


@pytest.fixture
def reader(redis_server: RedisServer) -> Iterator[Reader]:
    with redis_state.connect(redis_server.url, deadline="5s") as reader:
        yield reader


def write_fork(url: str, at: int, *, name: str = FORK, times: int = 1) -> int:
    id_ = StateStoreId(name, 0, 0)
    provider = StateStoreProvider(StateStoreProviderId(id_), config=url, versions_to_retain=2)
    try:
        for _ in range(times):
            store = provider.get_store(at)
            store.put("of-fork", at)
            at = store.commit()
    finally:
        provider.close()
    return at


def changed(reader: Reader, name: str, since: int) -> list[dict[str, object]]:
    return [dict(batch) for batch in reader.query(name).operator().changes(since=since)]


@pytest.mark.parametrize("since", [0, 1])
def test_changes_and_history_of_a_fork_read_deltas_of_its_parent(
    parent: Parent, url: str, reader: Reader, since: int
) -> None:
    parent.commit(3)
    fork(url, "orders", to=FORK)
    # From 1 on, only the field of the newest delta is read, else the whole manifest.
    of_parent = [{"newest": at, f"k{at}": at} for at in (1, 2)][since:]
    assert changed(reader, FORK, since) == of_parent
    history = [(one.batch, one.value) for one in reader.query(FORK).operator().history("newest")]
    assert history[:2] == [(2, 2), (1, 1)]
    write_fork(url, 3, times=2)
    assert changed(reader, FORK, since) == [*of_parent, {"of-fork": 3}]


def test_status_counts_bytes_where_they_are(parent: Parent, url: str, reader: Reader) -> None:
    parent.commit(3)
    before = reader.query("orders").status().bytes
    fork(url, "orders", to=FORK)
    keep(url, "orders", name="before-deploy", at_batch=2)
    forked = reader.query(FORK).status()
    gen = parent.id.store.gen
    assert (forked.bytes, forked.foreign_bytes) == (0, before)
    assert (forked.fork_of, forked.fork_version, forked.fork_title) == (gen, 3, "orders")
    assert not forked.problems
    assert forked.rows == 4
    for _ in range(3):
        parent.commit(4)
        parent.maintain()
    status = reader.query("orders").status()
    assert status.pinned_bytes == before
    kept = [(one.kind, one.owner, one.bytes, one.title) for one in status.pins]
    assert kept == [
        ("fork", forked.gen, before, FORK),
        ("keep", "before-deploy", before, ""),
    ]
    held = sum(
        parent.raw.hstrlen(key, field)
        for key in _segments(parent)
        for field in parent.raw.hkeys(key)
    )
    assert status.bytes <= held
    assert not status.problems


def _segments(parent: Parent) -> list[str]:
    prefix = keys.meta(parent.id).removesuffix(":m")
    return [
        name.decode()
        for name in parent.raw.keys("*")
        if name.decode().startswith((f"{prefix}:d:", f"{prefix}:s:"))
    ]
