"""Purging by expiry: nobody is served a half of it, and within the day all of it comes back."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from redis_state.errors import NotFoundError, StateError
from redis_state.format.segment import SegmentWriter
from redis_state.ids import EMPTY, PartitionId, Pin, StateStoreId, StateStoreProviderId
from redis_state.maintain import Policy, maintain_checkpoint, sweep_orphans
from redis_state.maintain.purge import Purged
from redis_state.maintain.recall import expire, recall
from redis_state.protocol import PartitionClient, RegisteredRun, checkpoint_gen, register_run
from redis_state.protocol.instances import Instance
from redis_state.store.provider import StateStoreProvider
from tests.contract.copying import plant_copy
from tests.contract.planting import GEN, PLAIN, Planted, plant_checkpoint, uid
from tests.contract.test_maintain import client, grown, raw, row
from tests.contract.vanishing import DAY_MS, now_ms, written
from tests.support.redis_server import RedisServer, bytes_of

__all__ = ["client", "raw"]

UA = {"carrier": "UA"}
OTHER = "fedcba9876543210fedcba9876543210"


@pytest.fixture
def planted(raw: redis.Redis) -> Planted:
    """A query that ran long ago, and another one beside it."""
    for gen in (OTHER, GEN):
        planted = Planted(raw, gen=gen)
        planted.register()
        for version in range(1, 4):
            planted.commit(version, [(UA, {"count": version, "total": 0.5})])
    return planted


def state(raw: redis.Redis) -> dict[Any, tuple[dict[Any, Any], bool]]:
    """All hashes, and whether they expire; not that the query was called back once."""
    found = {key: (raw.hgetall(key), raw.pttl(key) != -1) for key in raw.keys("*")}
    for fields, _ in found.values():
        fields.pop(b"recalled", None)
    return found


def contents(raw: redis.Redis) -> dict[Any, Any]:
    """Returns the contents of all keys, regardless of the order of fields in a hash."""
    return {
        key: raw.hgetall(key) if raw.type(key) == b"hash" else raw.get(key) for key in raw.keys("*")
    }


def purge(server: RedisServer, *arguments: str) -> int:
    return main(["purge", "--url", server.url, "--gen", GEN, *arguments])


def test_purged_keys_expire_and_a_recall_restores_them(
    redis_server: RedisServer,
    raw: redis.Redis,
    planted: Planted,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = state(raw)
    assert purge(redis_server, "--yes") == 0
    said = capsys.readouterr().out
    assert f"redis-state purge --gen {GEN} --recall" in said
    for key in raw.keys("*"):
        of_it = GEN.encode() in key
        assert (0 < raw.pttl(key) <= DAY_MS) == of_it, key
    assert main(["queries", "--url", redis_server.url]) == 0
    assert GEN not in capsys.readouterr().out
    meta = keys.meta(planted.id(0))
    # What every release refuses: a format number that it does not know, and no run that holds it.
    assert raw.hmget(meta, "f", "r") == [f"purged:{GEN}".encode(), b""]
    assert purge(redis_server, "--recall") == 0
    assert "brought back 4 partitions with 12 segments" in capsys.readouterr().out
    assert state(raw) == before
    assert purge(redis_server, "--recall") == 1
    assert "[REDIS_NOT_FOUND]" in capsys.readouterr().err


def test_expiring_state_is_served_to_no_reader(
    redis_server: RedisServer,
    client: Client,
    raw: redis.Redis,
    planted: Planted,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint = plant_checkpoint(tmp_path, batches=3)
    plant_copy(planted, checkpoint, 2)
    assert purge(redis_server, "--yes") == 0
    expiring = state(raw)
    place = ["--url", redis_server.url, "--checkpoint", str(checkpoint)]
    capsys.readouterr()
    assert main(["doctor", *place]) == PROBLEMS_STATUS
    said = capsys.readouterr().out
    assert f"redis-state purge --gen {GEN} --recall --url" in said
    assert "copy of the state" not in said
    for command in (["rewind", "--to-batch", "1"], ["restore", "--to-batch", "1"]):
        assert main([*command, *place, "--yes"]) == 1
        assert f"redis-state purge --gen {GEN} --recall" in capsys.readouterr().err
    partition = PartitionClient(client, planted.id(0), versions_to_retain=2)
    run = RegisteredRun(uuid.uuid4().hex, now_ms(raw) + DAY_MS, "d")
    for step in (
        lambda: partition.open(run.run_id, 3),
        lambda: partition.open("", None),
        lambda: partition.open(run.run_id, 0),
        lambda: partition.acquire(run, Pin(3, uid(3))),
        lambda: partition.acquire(run, EMPTY),
        partition.retain,
    ):
        with pytest.raises(StateError, match=f"redis-state purge --gen {GEN} --recall"):
            step()
    partition.renew()
    writer = SegmentWriter("s:3:late", [PLAIN])
    writer.add({row(1): b"x"})
    entry = writer.finish(ref="late", live=1, with_families=True)
    assert not partition.add_snapshot(Pin(3, uid(3)), "late", entry, writer.fields)
    assert maintain_checkpoint(client, GEN, policy=Policy("w")).problems == []
    assert sweep_orphans(client).orphans == 0
    assert set(raw.keys("*")) - set(expiring) == {keys.staged(planted.id(0), "s:3:late").encode()}
    assert all(raw.pttl(key) > 0 for key in raw.keys("*") if GEN.encode() in key)


@pytest.fixture
def job(redis_server: RedisServer, client: Client) -> Callable[[], StateStoreProvider]:
    run_id = uuid.uuid4().hex

    def provider() -> StateStoreProvider:
        id_ = StateStoreProviderId(StateStoreId("orders", 0, 0), run_id)
        return StateStoreProvider(id_, config=redis_server.url, client=client)

    return provider


def id_of_job(client: Client) -> PartitionId:
    gen = checkpoint_gen(client, "orders")
    assert gen is not None
    return StateStoreId("orders", 0, 0).partition(gen)


def test_commit_during_a_purge_is_refused_and_the_job_continues_after_a_recall(
    client: Client, raw: redis.Redis, job: Callable[[], StateStoreProvider]
) -> None:
    provider = job()
    store = provider.get_store(0)
    store.put("k", 1)
    store.commit()
    late = provider.get_store(1)
    late.put("k", 2)
    gen = id_of_job(client).store.gen
    before = state(raw)
    expire(client, gen)
    with pytest.raises(StateError, match=f"redis-state purge --gen {gen} --recall"):
        late.commit()
    with pytest.raises(StateError, match="was purged"):
        job().get_store(0)
    recall(client, gen)
    assert state(raw) == before
    store = provider.get_store(1)
    store.put("k", 3)
    store.commit()
    assert job().get_read_store(2).get("k") == 3
    assert not [key for key in raw.keys("*") if raw.pttl(key) != -1]


def test_retried_commit_after_a_purge_removes_no_expiry(client: Client, raw: redis.Redis) -> None:
    """Its reply was lost, and between the two sendings the checkpoint was purged."""
    planted = grown(raw, versions=2)
    id_ = planted.id(0)
    run = register_run(client, GEN, uuid.uuid4().hex, by_driver=True)
    partition = PartitionClient(client, id_, versions_to_retain=2)
    parent = partition.open(run.run_id, 2).pin
    run = partition.acquire(run, parent)
    writer = SegmentWriter("d:3:mine", [planted.family])
    writer.add({row(1): b"x"})
    entry = writer.finish(ref=parent.uid, live=40, with_families=False)
    partition.commit(run, parent, "mine", entry, writer.fields)
    before = state(raw)
    expire(client, GEN)
    with pytest.raises(StateError, match="was purged"):
        partition.commit(run, parent, "mine", entry, writer.fields)
    recall(client, GEN)
    assert state(raw) == before
    partition.commit(run, parent, "mine", entry, writer.fields)
    assert partition.open(run.run_id, 3).pin == Pin(3, "mine")


def test_job_that_registers_again_after_a_purge_removes_no_expiry(
    client: Client, raw: redis.Redis, job: Callable[[], StateStoreProvider]
) -> None:
    """The job's entries are refused, because its partition is refused."""
    store = job().get_store(0)
    store.put("k", 1)
    store.commit()
    gen = id_of_job(client).store.gen
    id_ = StateStoreProviderId(StateStoreId("orders", 0, 0), "a newer run".replace(" ", "-"))
    late = StateStoreProvider(id_, config=client.url, client=client).get_store(1)
    expire(client, gen)
    with pytest.raises(StateError, match="was purged"):
        late.put("k", 2)
    assert not raw.hexists("{rs}:c", gen)
    assert all(raw.pttl(key) > 0 for key in raw.keys(f"*{gen}*"))
    recall(client, gen)
    assert raw.hexists("{rs}:c", gen)
    assert all(raw.pttl(key) == -1 for key in raw.keys(f"*{gen}*"))
    assert job().get_read_store(1).get("k") == 1


def test_recall_does_not_prolong_an_ephemeral_checkpoint(client: Client, raw: redis.Redis) -> None:
    planted = grown(raw, versions=2)
    for key in raw.keys(f"*{GEN}*"):
        raw.pexpire(key, 3_600_000)
    expire(client, GEN)
    for key in raw.keys(f"*{GEN}*"):
        assert 0 < raw.pttl(key) <= 3_600_000
    for key in raw.keys(f"*{GEN}*"):
        raw.pexpire(key, 1_000_000)
    recall(client, GEN)
    meta = keys.meta(planted.id(0))
    for name in (meta, keys.segment(planted.id(0), f"d:2:{uid(2)}"), keys.query(GEN)):
        assert 1_000_000 < raw.pttl(name) <= 3_600_000


class CutError(Exception):
    """The process is killed here."""


@pytest.mark.parametrize("again", [False, True])
def test_interrupted_purge_is_recalled_or_finished(
    client: Client, raw: redis.Redis, planted: Planted, again: bool
) -> None:
    before = state(raw)

    def cut(_what: str, _done: int, _total: int) -> None:
        raise CutError

    # A partition that the registry does not know comes with the scan, after the cut.
    for name, value in raw.hgetall(keys.meta(planted.id(0))).items():
        raw.hset(f"{{rs:{GEN}:7:0:{'0' * 16}}}:m", name, value)
    unknown = state(raw)
    with pytest.raises(CutError):
        expire(client, GEN, progress=cut)
    if again:
        assert expire(client, GEN).partitions == 5
        assert all(raw.pttl(key) > 0 for key in raw.keys(f"*{GEN}*"))
    assert recall(client, GEN).partitions == 4 + again
    assert state(raw) == unknown
    assert len(unknown) == len(before) + 1


def test_interrupted_recall_is_finished(client: Client, raw: redis.Redis, planted: Planted) -> None:
    before = state(raw)
    expire(client, GEN)

    def cut(_what: str, _done: int, _total: int) -> None:
        raise CutError

    with pytest.raises(CutError):
        recall(client, GEN, progress=cut)
    assert recall(client, GEN).partitions == 0
    assert state(raw) == before
    with pytest.raises(NotFoundError):
        recall(client, GEN)
    assert planted.partitions == 4


def test_recall_during_a_purge_restores_the_whole_state(
    client: Client, raw: redis.Redis, planted: Planted
) -> None:
    """The purge has done its partitions, and goes on to what it takes for strays."""
    before = state(raw)

    def called_back(what: str, _done: int, _total: int) -> None:
        if what == "partitions":
            recall(client, GEN)

    expire(client, GEN, progress=called_back)
    assert state(raw) == before
    assert planted.partitions == 4


def test_incomplete_segments_are_counted(
    redis_server: RedisServer,
    raw: redis.Redis,
    planted: Planted,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lost = planted.partition(UA)
    raw.delete(keys.segment(planted.id(lost), f"d:2:{uid(2)}"))
    raw.hset(keys.meta(planted.id(lost)), "d:nonsense", "x")
    assert purge(redis_server, "--yes") == 0
    assert purge(redis_server, "--recall") == 0
    assert "warning: 1 segments do not have all their blocks" in capsys.readouterr().err


def test_unreferenced_keys_expire_too(
    redis_server: RedisServer, client: Client, raw: redis.Redis, planted: Planted
) -> None:
    stray, staged = (keys.segment(planted.id(0), f"d:9:{name}") for name in ("stray", "staged"))
    raw.hset(stray, "0", b"x")
    raw.hset(staged, "0", b"x")
    raw.pexpire(staged, 1_000)
    raw.set(f"{{rs:{GEN}}}:other", "of somebody else")
    found: Purged = expire(client, GEN)
    assert found.strays == 1
    assert raw.pttl(stray) > 1_000 > raw.pttl(staged)
    assert raw.pttl(f"{{rs:{GEN}}}:other") == -1
    # At once, and for good: also what expires already, and nothing is left of it.
    assert purge(redis_server, "--yes", "--now", "--force") == 0
    assert {key for key in raw.keys("*") if GEN.encode() in key} == {
        b"{rs:%s}:other" % GEN.encode()
    }


def test_immediate_purge_frees_the_name_of_a_python_checkpoint(
    redis_server: RedisServer,
    client: Client,
    raw: redis.Redis,
    job: Callable[[], StateStoreProvider],
) -> None:
    store = job().get_store(0)
    store.put("k", 1)
    store.commit()
    gen = id_of_job(client).store.gen
    other = checkpoint_gen(client, "others", create=True)
    which = ["purge", "--url", redis_server.url, "--gen", gen, "--yes", "--force"]
    assert main(which) == 0
    assert checkpoint_gen(client, "orders") == gen
    assert main([*which, "--now"]) == 0
    assert checkpoint_gen(client, "orders") is None
    assert checkpoint_gen(client, "others") == other
    assert raw.keys("*") == [keys.names().encode()]


# Why a query may be running: what says so, and what the refusal says of it.
SIGNS: dict[str, tuple[Callable[[Any, Planted], object], str]] = {
    "an instance": (
        lambda raw, planted: raw.set(
            keys.instance(planted.id(0)), Instance("h", "1", "run").encode(), px=60_000
        ),
        "1 stores reported within the last minute",
    ),
    "a young run, whose executors have not reported yet": (
        lambda raw, _: raw.hset(keys.query(GEN), "epoch", now_ms(raw)),
        "its newest run was registered ",
    ),
    "a driver, whose executors were given up": (
        lambda raw, _: raw.hset(keys.query(GEN), "seen", now_ms(raw) - 60_000),
        "the driver of its run reported ",
    ),
    "a process that reports to nobody": (
        lambda raw, planted: written(raw, planted, now_ms(raw) - 60_000),
        "a partition was written ",
    ),
    "a clock that was ahead": (
        lambda raw, planted: written(raw, planted, now_ms(raw) + DAY_MS),
        "a partition was written at a time in the future",
    ),
    "nobody can tell": (
        lambda raw, planted: raw.set(keys.instance(planted.id(0)), "junk"),
        "its users are unknown",
    ),
}


@pytest.mark.parametrize("sign", SIGNS)
def test_checkpoint_in_use_is_purged_only_with_force(
    redis_server: RedisServer,
    raw: redis.Redis,
    planted: Planted,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sign: str,
) -> None:
    checkpoint = plant_checkpoint(tmp_path, batches=3)
    plant_copy(planted, checkpoint, 2)
    plant, said = SIGNS[sign]
    plant(raw, planted)
    before = contents(raw)
    files = sorted(checkpoint.rglob("*"))
    of_it = ["--url", redis_server.url, "--checkpoint", str(checkpoint), "--yes"]
    commands = (
        ["purge", *of_it],
        ["purge", *of_it, "--now"],
        ["rewind", *of_it, "--to-batch", "1"],
        ["restore", *of_it],
    )
    for command in commands:
        assert main(command) == 1
        told = capsys.readouterr().err
        assert said in told
        assert "--force" in told
        assert contents(raw) == before
        assert sorted(checkpoint.rglob("*")) == files
    for command in (commands[3], commands[0]):
        assert main([*command, "--force"]) == 0
    assert json.loads(bytes_of(raw.hget(keys.query(GEN), "purged")))["listed"]


@pytest.mark.usefixtures("planted")
def test_old_checkpoint_is_purged_without_force(
    redis_server: RedisServer, raw: redis.Redis
) -> None:
    raw.hset(keys.query(GEN), "seen", now_ms(raw) - 181_000)
    assert purge(redis_server, "--yes") == 0


def test_full_server_refuses_a_recallable_purge(
    redis_server: RedisServer,
    raw: redis.Redis,
    planted: Planted,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = state(raw)
    raw.config_set("maxmemory", 1)
    assert purge(redis_server, "--yes") == 1
    said = capsys.readouterr().err
    assert f"`redis-state purge --gen {GEN} --now --url {redis_server.url}` writes none" in said
    assert state(raw) == before
    assert purge(redis_server, "--yes", "--now") == 0
    assert raw.keys(f"*{planted.gen}*") == []
