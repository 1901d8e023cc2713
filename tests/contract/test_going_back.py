"""A query starts after the steps that `doctor` prints, for every kind of store."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from redis_state import keys
from redis_state.cli.main import main
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from redis_state.errors import RedisStateError
from redis_state.ids import DEFAULT_STORE, PartitionId, StoreId
from redis_state.maintain.recall import expire
from tests.contract.query_scene import Batches, Processors, Query, Store
from tests.contract.stream_support import QUERY
from tests.support.redis_server import RedisServer, bytes_of

BATCHES = 6
ENDS = 8

Adds = Callable[[Query], object]
# Every kind of store, and queries with several of them.
STORES: dict[str, Adds] = {
    "a processor": lambda query: query.add(Processors),
    "a processor of one partition": lambda query: query.add(Processors, partitions=1),
    "a processor with an initial state": lambda query: query.add(Processors, initial=True),
    "a processor that came later": lambda query: query.add(Processors, first=3),
    "foreachBatch": lambda query: query.add(Batches),
    "foreachBatch that came later": lambda query: query.add(Batches, first=2),
    "two processors": lambda query: [query.add(Processors), query.add(Processors, partitions=3)],
    "a processor and two in foreachBatch": lambda query: [
        query.add(Processors, initial=True),
        query.add(Batches),
        query.add(Batches, first=4),
    ],
}


@pytest.fixture
def raw(redis_server: RedisServer) -> redis.Redis:
    return redis_server.client()


@pytest.fixture(params=STORES)
def query(
    request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Path
) -> Iterator[Query]:
    made = Query(redis_server, tmp_path / "checkpoint")
    STORES[request.param](made)
    # Another query's, which nothing here may touch.
    other = Query(redis_server, tmp_path / "other", "another")
    for kind in (Processors, Batches):
        other.add(kind)
    other.start(BATCHES)
    made.start(BATCHES)
    yield made
    other.start(ENDS)
    other.check(ENDS)
    made.close()
    other.close()


@pytest.fixture
def one(redis_server: RedisServer, tmp_path: Path) -> Iterator[Query]:
    """A query without a store."""
    made = Query(redis_server, tmp_path / "checkpoint")
    yield made
    made.close()


def id_of(store: Store, partition: int) -> PartitionId:
    return PartitionId(StoreId(store.gen, 0, DEFAULT_STORE, ""), partition)


def lose(raw: redis.Redis, store: Store, partition: int, *, versions: int) -> None:
    """The newest segments of a partition are gone."""
    meta = raw.hgetall(keys.meta(id_of(store, partition)))
    deltas = sorted(
        (name for one in meta if (name := bytes_of(one).decode())[:2] == "d:"),
        key=lambda name: int(name.split(":")[1]),
    )
    for name in deltas[-versions:]:
        raw.unlink(keys.segment(id_of(store, partition), name))


def rewind(query: Query, to_batch: int, *arguments: str) -> int:
    command = ["rewind", *query.arguments(), "--to-batch", str(to_batch), "--force", "--yes"]
    return main([*command, *arguments])


@pytest.mark.parametrize("to_batch", [0, 1, 3, 4, 5])
def test_a_query_starts_after_a_rewind(query: Query, to_batch: int) -> None:
    assert rewind(query, to_batch) == 0
    assert query.doctor() == 0
    query.start(ENDS)
    query.check(ENDS)


def test_rerun_batches_after_a_rewind_are_counted(query: Query) -> None:
    assert rewind(query, 3) == 0

    def again(batch: int) -> str:
        return f"again{batch}" if batch > 3 else f"b{batch}"

    query.start(ENDS, again)
    query.check(ENDS, again)


@pytest.mark.parametrize("versions", [1, 2, 3])
def test_doctor_steps_for_lost_versions_restore_the_query(
    query: Query, raw: redis.Redis, versions: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for store in query.stores[-1:]:
        lose(raw, store, store.partitions - 1, versions=versions)
    done = query.recover(capsys)
    assert [command[0] for command in done] == ["rewind"]
    query.start(ENDS)
    query.check(ENDS)


@pytest.mark.parametrize("to_batch", [1, 4])
def test_doctor_advice_follows_logs_set_back_by_hand(
    query: Query, to_batch: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Logs that an earlier release rewound look the same."""
    for log in ("offsets", "commits"):
        for batch in range(to_batch + 1, BATCHES):
            (query.folder / log / str(batch)).unlink()
    if to_batch + 2 < BATCHES:
        # Otherwise it is the newest one, which may run again.
        with pytest.raises(RedisStateError, match=r"redis-state doctor --gen \w+ --checkpoint"):
            query.start(ENDS)
    query.recover(capsys)
    query.start(ENDS)
    query.check(ENDS)


def test_undone_rewind_is_followed_forward(
    query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rewind(query, 2) == 0
    moved = query.folder / "rewound-to-2.1"
    for log in ("offsets", "commits"):
        for path in (moved / log).iterdir():
            shutil.move(path, query.folder / log / path.name)
    done = query.recover(capsys)
    assert [command[0] for command in done] == ["rewind"]
    query.start(ENDS)
    query.check(ENDS)


def test_rewind_interrupted_after_the_stores_is_finished_by_a_repeat(
    query: Query, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from redis_state.recovery.rewind import Rewind

    def cut(_: Rewind) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Rewind, "carry_out", cut)
        rewind(query, 1)
    assert query.committed == BATCHES - 1
    # A start in between is refused, unless nothing had to be set back.
    with pytest.raises(RedisStateError):
        query.start(ENDS)
    capsys.readouterr()
    assert rewind(query, 1) == 0
    query.start(ENDS)
    query.check(ENDS)


def test_a_dry_run_changes_nothing(
    query: Query, raw: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {key: raw.hgetall(key) for key in raw.keys("*") if raw.type(key) == b"hash"}
    assert main(["rewind", *query.arguments(), "--to-batch", "1"]) == 0
    said = capsys.readouterr().out
    for store in query.stores:
        assert f"store '{store.name}': batch 5 -> " in said
    assert "stop the query, then add --yes" in said
    assert {key: raw.hgetall(key) for key in raw.keys("*") if raw.type(key) == b"hash"} == before
    assert query.committed == BATCHES - 1


def test_doctor_asks_for_the_store_of_an_unknown_query(
    one: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    """The query of `foreachBatch` over Spark Connect has no id."""
    one.id = ""
    store = one.add(Batches)
    one.start(BATCHES)
    capsys.readouterr()
    assert one.doctor() == 1
    assert "the names of these stores" in capsys.readouterr().err
    assert rewind(one, 1, store.name) == 0
    one.start(ENDS)
    one.check(ENDS)
    assert rewind(one, 2, "--gen", store.gen) == 0
    one.start(ENDS)
    one.check(ENDS)
    assert one.doctor(store.name) == 0
    assert one.doctor("no such store") == 1


def test_a_store_of_another_query_is_refused(
    one: Query, redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one.add(Processors)
    one.start(BATCHES)
    other = Query(redis_server, tmp_path / "other", "another")
    store = other.add(Batches)
    other.start(BATCHES)
    assert rewind(one, 1, "--gen", store.gen) == 1
    assert "belongs to the query another, and the folder to" in capsys.readouterr().err
    assert one.committed == BATCHES - 1
    other.start(ENDS)
    other.check(ENDS)
    other.close()


def test_batches_without_a_spark_query_are_rewound_without_a_folder(
    one: Query, raw: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    one.id = ""
    store = one.add(Batches)
    one.start(BATCHES)
    place = [store.name, "--url", one.server.url]
    assert main(["doctor", *place]) == 0
    lose(raw, store, 0, versions=3)
    capsys.readouterr()
    assert main(["doctor", *place]) == PROBLEMS_STATUS
    said = capsys.readouterr().out
    assert "Batch 2 is the newest that all partitions can serve. Redis has later ones." in said
    assert f"redis-state rewind {store.name} --to-batch 2 --yes" in said
    assert main(["rewind", *place, "--to-batch", "2", "--force", "--yes"]) == 0
    for batch in range(3, ENDS):
        store.run(batch, "", lambda number: f"b{number}")
    one.check(ENDS)


def test_store_of_a_query_is_not_rewound_without_its_logs(
    one: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = [one.add(Processors), one.add(Batches)]
    one.start(BATCHES)
    for store in stores:
        command = ["rewind", "--url", one.server.url, "--gen", store.gen, "--to-batch", "1"]
        assert main([*command, "--force", "--yes"]) == 1
        assert f"it is written by the query {QUERY}" in capsys.readouterr().err
    one.start(ENDS)
    one.check(ENDS)


def test_doctor_steps_recall_a_purged_store(
    query: Query, capsys: pytest.CaptureFixture[str]
) -> None:
    for store in query.stores:
        expire(query.client, store.gen)
    with pytest.raises(RedisStateError, match=r"redis-state purge --gen .* --recall"):
        query.start(ENDS)
    assert rewind(query, 1) == 1
    assert "was purged" in capsys.readouterr().err
    done = query.recover(capsys)
    assert [(one[0], one[1], one[3]) for one in done] == [("purge", "--gen", "--recall")] * len(
        query.stores
    )
    query.start(ENDS)
    query.check(ENDS)
