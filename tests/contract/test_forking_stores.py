"""Forks of Python stores: by their names, and with the Spark query that writes them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_state import config, keys
from redis_state.errors import ConfigError, StateError, UnavailableError, UsageError
from redis_state.forks import Forked, fork
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.protocol import checkpoint_gen
from redis_state.store.provider import StateStoreProvider
from tests.contract.fork_scene import killed_at
from tests.contract.query_scene import Batches, Processors, Query, Store, text_of
from tests.contract.stream_support import QUERY
from tests.contract.test_durability import followed
from tests.support.redis_server import RedisServer, bytes_of


class Standalone:
    """A Python store of two partitions, each with versions of its own."""

    def __init__(self, server: RedisServer, name: str) -> None:
        self.url, self.name = server.url, name

    def provider(self, partition: int) -> StateStoreProvider:
        id_ = StateStoreProviderId(StateStoreId(self.name, 0, partition), uuid.uuid4().hex)
        return StateStoreProvider(id_, config=config.parse({"url": self.url}))

    def commit(self, partition: int, value: int) -> None:
        provider = self.provider(partition)
        store = provider.get_store(provider.latest() or 0)
        store.put(f"k{value}", value)
        store.commit()
        provider.close()

    def rows(self, partition: int) -> dict[Any, Any]:
        provider = self.provider(partition)
        store = provider.get_read_store(provider.latest() or 0)
        found = dict(store.iterator())
        provider.close()
        return found


@pytest.fixture
def store(redis_server: RedisServer) -> Standalone:
    made = Standalone(redis_server, "orders")
    for value in range(3):
        made.commit(0, value)
    made.commit(1, 7)
    return made


def test_fork_of_a_store_has_its_newest_versions(
    store: Standalone, redis_server: RedisServer
) -> None:
    made = fork(store.url, "orders", to="orders-test")
    assert (made.path, made.name, made.batch) == ("orders-test", "orders-test", None)
    assert (made.partitions, made.rows) == (2, 4)
    forked = Standalone(redis_server, "orders-test")
    assert [forked.rows(number) for number in range(2)] == [store.rows(0), store.rows(1)]
    forked.commit(0, 100)
    store.commit(0, 200)
    assert set(forked.rows(0)) == {"k0", "k1", "k2", "k100"}
    assert set(store.rows(0)) == {"k0", "k1", "k2", "k200"}


def test_taken_or_equal_name_is_refused(store: Standalone, redis_server: RedisServer) -> None:
    other = Standalone(redis_server, "other")
    other.commit(0, 1)
    with pytest.raises(UsageError, match="another store has the name 'other'"):
        fork(store.url, "orders", to="other")
    with pytest.raises(UsageError, match="two stores would have one name"):
        fork(store.url, "orders", to="orders")
    with pytest.raises(UsageError, match="not batches"):
        fork(store.url, "orders", to="new", at_batch=1)
    assert other.rows(0) == {"k1": 1}


@pytest.mark.parametrize("after", [False, True])
def test_killed_fork_of_a_store_is_finished(
    store: Standalone, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    for at in range(100):
        name = f"new-{at}"
        before = store.rows(0)
        run = partial(fork, store.url, "orders", to=name)
        if not killed_at(monkeypatch, run, at, after=after):
            break
        store.commit(0, 1000 + at)
        try:
            run()
        except UsageError as error:
            if "complete already" not in str(error):
                raise
        rows = Standalone(redis_server, name).rows(0)
        assert rows in (before, store.rows(0))
        raw = redis_server.client()
        gen = bytes_of(raw.hget(keys.names(), keys.name_field(name))).decode()
        found = [*raw.keys(f"*{gen}*:m"), *raw.keys(f"*{gen}*:q")]
        assert len(found) == 3
        assert all(raw.ttl(key) == -1 for key in found)
    assert at > 10


def test_other_secret_is_refused(redis_server: RedisServer, tmp_path: Path) -> None:
    secrets = []
    for name in ("one", "two"):
        secrets.append(tmp_path / name)
        secrets[-1].write_text(name * 20)
        secrets[-1].chmod(0o600)
    id_ = StateStoreProviderId(StateStoreId("signed", 0, 0))
    signed = config.parse({"url": redis_server.url, "signingKeyFile": str(secrets[0])})
    provider = StateStoreProvider(id_, config=signed)
    store = provider.get_store(0)
    store.put("k", 1)
    store.commit()
    provider.close()
    with pytest.raises(ConfigError, match="signs its blocks with another secret"):
        fork(redis_server.url, "signed", to="new", signing_key_file=secrets[1])
    with pytest.raises(ConfigError, match="the query signs its blocks"):
        fork(redis_server.url, "signed", to="new")
    made = fork(redis_server.url, "signed", to="new", signing_key_file=secrets[0])
    assert made.rows == 1


def test_fork_waits_for_a_replica(start_redis: Callable[..., RedisServer]) -> None:
    master, replica = followed(start_redis, 1)
    Standalone(master, "orders").commit(0, 1)
    assert fork(master.url, "orders", to="first").rows == 1
    replica.pause()
    try:
        with pytest.raises(UnavailableError, match="0 of 1 replicas have it"):
            fork(master.url, "orders", to="second", deadline="1s", socket_timeout="500ms")
    finally:
        replica.resume()
    assert fork(master.url, "orders", to="second").rows == 1


@pytest.fixture
def query(redis_server: RedisServer, tmp_path: Path) -> Iterator[Query]:
    made = Query(redis_server, tmp_path / "checkpoint")
    yield made
    made.close()


def as_spark(query: Query) -> None:
    """Rewrites the entries of the logs in the form that Spark gives them."""
    for path in (query.folder / "offsets").iterdir():
        if not path.read_text().startswith("v1"):
            conf = json.dumps({"batchTimestampMs": int(path.read_text())})
            path.write_text(f"v1\n{conf}\n{{}}")
    for path in (query.folder / "commits").iterdir():
        path.write_text('v1\n{"nextBatchWatermarkMs":0}')


def forked_query(query: Query, folder: Path, made: Forked) -> Query:
    """Returns the query of a fork, whose program names the new stores."""
    copy = Query.__new__(Query)
    copy.__dict__ |= query.__dict__ | {"folder": folder, "stores": []}
    copy.id = json.loads((folder / "metadata").read_text())["id"]
    for store in query.stores:
        given = {"partitions": store.partitions, "first": store.first, "initial": store.initial}
        copy.add(type(store), name=made.stores[store.name], **given)
    return copy


CASES: dict[str, list[tuple[type[Store], dict[str, Any]]]] = {
    "a processor": [(Processors, {})],
    "a processor with an initial state": [(Processors, {"initial": True})],
    "a processor that came later": [(Processors, {"first": 3})],
    "foreachBatch": [(Batches, {})],
    "several": [(Processors, {}), (Batches, {"first": 2}), (Processors, {"partitions": 3})],
}


@pytest.mark.parametrize("at", [9, 6, 1])
@pytest.mark.parametrize("which", CASES)
def test_fork_of_a_query_with_python_stores_continues(
    query: Query, tmp_path: Path, which: str, at: int
) -> None:
    """Both go on with different input; each is as a query that had only that input."""
    for kind, given in CASES[which]:
        query.add(kind, **given)
    query.start(10)
    as_spark(query)
    made = fork(query.server.url, str(query.folder), to=str(tmp_path / "new"), at_batch=at)
    assert made.batch == at
    copy = forked_query(query, tmp_path / "new", made)
    assert copy.id != query.id

    def other(batch: int) -> str:
        return text_of(batch) if batch <= at else f"other-{batch}"

    copy.start(14, other)
    copy.check(14, other)
    query.start(12)
    query.check(12)
    copy.start(15, other)
    copy.check(15, other)


def test_fork_belongs_to_the_query_of_the_new_folder(
    query: Query, tmp_path: Path, redis_server: RedisServer
) -> None:
    query.add(Processors)
    query.start(5)
    as_spark(query)
    names = {query.stores[0].name: "the new one"}
    made = fork(
        query.server.url, str(query.folder), to=str(tmp_path / "new"), at_batch=2, stores=names
    )
    gen = checkpoint_gen(query.client, "the new one")
    found = redis_server.client().hgetall(keys.query(gen or ""))
    fields = {bytes_of(name).decode(): bytes_of(one).decode() for name, one in found.items()}
    assert made.gen == gen
    assert fields["query:0:default"] == json.loads((tmp_path / "new/metadata").read_text())["id"]
    assert fields["batch:0:default"].split(" ")[:4] == ["2", "0", "2", "forked"]
    assert not [name for name in fields if name.startswith(("joined:", "planned:", "frames:"))]
    with pytest.raises(UsageError, match="writes no store 'unknown'"):
        fork(
            query.server.url,
            str(query.folder),
            to=str(tmp_path / "third"),
            stores={"unknown": "x"},
        )


def test_dropped_batch_of_a_store_is_refused(query: Query, tmp_path: Path) -> None:
    made = query.add(Batches)
    query.start(5)
    as_spark(query)
    raw: redis.Redis = query.server.client()
    id_ = StateStoreId(made.name, 0, 1).partition(made.gen)
    third = [name for name in raw.hkeys(keys.meta(id_)) if b":3:" in bytes_of(name)]
    raw.hdel(keys.meta(id_), *third)
    with pytest.raises(StateError, match=r"These batches can be forked|can be forked"):
        fork(query.server.url, str(query.folder), to=str(tmp_path / "new"), at_batch=2)
    assert not (tmp_path / "new").exists()


def test_store_of_a_query_is_forked_alone(query: Query) -> None:
    store: Store = query.add(Batches)
    query.start(5)
    made = fork(query.server.url, store.name, to="alone", at_batch=3)
    assert (made.batch, made.version) == (3, 4)
    id_ = StateStoreProviderId(StateStoreId("alone", 0, 1), "run")
    provider = StateStoreProvider(id_, config=query.config)
    assert provider.get_read_store(4).get("log") == "b0 b1 b2 b3 "
    provider.close()
    assert query.id == QUERY
