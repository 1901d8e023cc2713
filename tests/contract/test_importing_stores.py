"""Exports of a query's Python stores, in a Redis whose registry survived, whole or in part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from redis_state import keys
from redis_state.cli.main import main
from redis_state.errors import RedisStateError
from redis_state.maintain.recall import expire
from tests.contract.query_scene import Batches, Processors, Query, Store
from tests.contract.test_going_back import STORES, id_of
from tests.support.redis_server import RedisServer, bytes_of

EXPORTED = 4  # of every store at least one batch
BATCHES = 7
ENDS = 9


@pytest.fixture
def raw(redis_server: RedisServer) -> redis.Redis:
    return redis_server.client()


@pytest.fixture(params=STORES)
def query(
    request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Path
) -> Iterator[Query]:
    """Exported after one of its batches; then it went on."""
    made = Query(redis_server, tmp_path / "checkpoint")
    STORES[request.param](made)
    made.start(EXPORTED + 2)
    for store in made.stores:
        command = ["export", store.name, "--to", str(folder_of(made, store))]
        assert main([*command, "--at", str(EXPORTED), "--url", redis_server.url]) == 0
    made.start(BATCHES)
    yield made
    made.close()


def folder_of(query: Query, store: Store) -> Path:
    return query.folder.parent / f"export-{store.name}"


def lose(raw: redis.Redis, store: Store, partition: int) -> None:
    """All keys of a partition are gone; the registry is in another node, or of another age."""
    id_ = id_of(store, partition)
    own = keys.partition(id_)
    names = [name for name in map(bytes_of, raw.keys("*")) if name.startswith(own.encode())]
    assert names
    raw.unlink(*names)


def bring_back(query: Query, store: Store, *more: str) -> int:
    command = ["import", str(folder_of(query, store)), "--url", query.server.url]
    return main([*command, "--yes", "--force", *more])


@pytest.mark.parametrize("lost", ["one partition", "all partitions", "none"])
@pytest.mark.parametrize("with_logs", [False, True], ids=["logs later", "with the logs"])
def test_a_query_starts_after_an_import(
    query: Query,
    raw: redis.Redis,
    lost: str,
    with_logs: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for store in query.stores:
        gone = {"one partition": 1, "all partitions": store.partitions, "none": 0}[lost]
        for partition in range(gone):
            lose(raw, store, partition)
    for store in query.stores:
        if lost != "none" or with_logs:
            logs = ["--checkpoint", str(query.folder)] if with_logs else []
            # The logs go with the last one: before that the others do not serve the batch.
            assert bring_back(query, store, *(logs if store is query.stores[-1] else [])) == 0
    query.recover(capsys)
    assert query.committed == (BATCHES - 1 if lost == "none" and not with_logs else EXPORTED)
    query.start(ENDS)
    query.check(ENDS)


def test_import_interrupted_before_the_logs_is_repeated(
    query: Query, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redis_state.recovery.rewind import Rewind

    def cut(_: Rewind) -> None:
        raise KeyboardInterrupt

    for store in query.stores:
        lose(raw, store, 0)
        assert store is query.stores[-1] or bring_back(query, store) == 0
    with monkeypatch.context() as patched:
        patched.setattr(Rewind, "carry_out", cut)
        bring_back(query, query.stores[-1], "--checkpoint", str(query.folder))
    with pytest.raises(RedisStateError):
        query.start(ENDS)
    assert bring_back(query, query.stores[-1], "--checkpoint", str(query.folder)) == 0
    query.start(ENDS)
    query.check(ENDS)


def test_other_stores_are_rewound_with_the_logs(
    redis_server: RedisServer,
    tmp_path: Path,
    raw: redis.Redis,
    capsys: pytest.CaptureFixture[str],
) -> None:
    query = Query(redis_server, tmp_path / "checkpoint")
    one, other = query.add(Processors), query.add(Batches)
    query.start(EXPORTED + 2)
    place = ["--to", str(folder_of(query, one)), "--url", redis_server.url]
    assert main(["export", one.name, *place, "--at", str(EXPORTED)]) == 0
    query.start(BATCHES)
    lose(raw, one, 1)
    logs = ["--checkpoint", str(query.folder)]
    expire(query.client, other.gen)
    assert bring_back(query, one, *logs) == 1
    assert f"redis-state purge --gen {other.gen} --recall" in capsys.readouterr().err
    command = ["purge", "--gen", other.gen, "--recall", "--url", redis_server.url]
    assert main(command) == 0
    assert bring_back(query, one, *logs) == 0
    said = capsys.readouterr().out
    assert f"store '{other.name}': batch 6 -> {EXPORTED}" in said
    query.start(ENDS)
    query.check(ENDS)
    query.close()


def test_import_into_a_purged_registry_is_refused(
    redis_server: RedisServer,
    tmp_path: Path,
    raw: redis.Redis,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its partitions are gone already, so none of them says it."""
    query = Query(redis_server, tmp_path / "checkpoint")
    store = query.add(Processors)
    query.start(EXPORTED + 2)
    place = ["--to", str(folder_of(query, store)), "--url", redis_server.url]
    assert main(["export", store.name, *place, "--at", str(EXPORTED)]) == 0
    expire(query.client, store.gen)
    for partition in range(store.partitions):
        lose(raw, store, partition)
    before = {key: raw.hgetall(key) for key in raw.keys("*")}
    assert bring_back(query, store) == 1
    assert f"redis-state purge --gen {store.gen} --recall" in capsys.readouterr().err
    assert {key: raw.hgetall(key) for key in raw.keys("*")} == before
    query.close()
