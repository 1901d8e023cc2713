"""Tools that read and maintain know pins and forks: changes, sizes, doctor, purge."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

import redis_state
from redis_state import keys
from redis_state.cli.main import main
from redis_state.errors import ConflictError, StateError
from redis_state.exporter import QueryCollector
from redis_state.forks import fork
from redis_state.forks.keep import drop_kept, keep
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.live import Reader
from redis_state.maintain.checkpoint import maintain_checkpoint
from redis_state.maintain.orphans import sweep_orphans
from redis_state.maintain.pinned import GONE_MS
from redis_state.maintain.purge import purge
from redis_state.maintain.recall import expire, recall
from redis_state.maintain.report import MaintenanceReport, Policy
from redis_state.maintain.vanished import purge_vanished
from redis_state.protocol.pins import unpin_all
from redis_state.recovery.doctor import look_at
from redis_state.store.provider import StateStoreProvider
from tests.contract.test_pins import DAY_MS, Parent
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
    stored = [parent.raw.hvals(key) for key in segment_keys(parent.raw, gen)]
    assert before < status.bytes <= sum(len(block) for blocks in stored for block in blocks)
    assert not status.problems


def segment_keys(raw: Any, gen: str) -> list[bytes]:
    return [
        key for key in raw.keys("*") if gen.encode() in key and re.search(rb":[ds]:[0-9]+:", key)
    ]


def maintain(parent: Parent, gen: str) -> MaintenanceReport:
    return maintain_checkpoint(parent.client, gen, policy=Policy("test"))


def test_error_of_a_fork_names_its_purged_parent(parent: Parent, url: str, reader: Reader) -> None:
    parent.commit(3)
    fork(url, "orders", to=FORK)
    forked = reader.query(FORK).status().gen
    gen = parent.id.store.gen
    expire(parent.client, gen, force=True)
    recall_line = f"redis-state purge --gen {gen} --recall"
    # The fork still reads what expires; maintenance says so in time.
    assert dict(reader.query(FORK).operator().items())["newest"] == 2
    (problem,) = maintain(parent, forked).problems
    assert recall_line in problem
    health = look_at(parent.client, parent.id.of_gen(forked))
    assert recall_line in health.parent
    assert health.loadable == {0, 1, 2, 3}
    parent.raw.delete(*segment_keys(parent.raw, gen))
    with pytest.raises(StateError, match=recall_line):
        dict(reader.query(FORK).operator().items())
    with pytest.raises(StateError, match=recall_line):
        write_fork(url, 3)
    purge(parent.client, gen, force=True)
    with pytest.raises(StateError, match=f"{gen}, which was purged or lost"):
        write_fork(url, 3)


def test_recalled_parent_serves_its_fork_again(parent: Parent, url: str, reader: Reader) -> None:
    parent.commit(3)
    fork(url, "orders", to=FORK)
    for _ in range(3):
        parent.commit(4)
        parent.maintain()
    expected = dict(reader.query(FORK).operator().items())
    gen = parent.id.store.gen
    expire(parent.client, gen, force=True)
    recall(parent.client, gen)
    aside = [name for name in parent.manifest() if name.startswith("z:")]
    assert aside
    for name in aside:
        left_ms = parent.raw.pttl(f"{keys.meta(parent.id).removesuffix(':m')}:{name[2:]}")
        assert left_ms > 9 * 365 * DAY_MS
    assert sweep_orphans(parent.client).orphans == 0
    assert dict(reader.query(FORK).operator().items()) == expected


def test_maintenance_forgets_forks_and_names_that_ended(parent: Parent, url: str) -> None:
    parent.commit(3)
    gen = parent.id.store.gen
    query = keys.query(gen)
    pin = f"x:{keep(url, 'orders', name='short', at_batch=2, keep_ms=DAY_MS).owner}"
    parent.raw.hset(query, "fork:" + "e" * 32, "{}")
    parent.raw.hset(keys.looks(), f"{gen}:{'e' * 32}", "{}")
    fork(url, "orders", to=FORK)
    (forked,) = [name for name in parent.manifest() if name.startswith("x:") and "keep" not in name]
    assert maintain(parent, gen).unpinned == 0
    fields = {name.decode() for name in parent.raw.hkeys(query)}
    assert {"keep:short", f"fork:{forked[2:]}"} <= fields
    assert f"fork:{'e' * 32}" not in fields
    assert not parent.raw.hkeys(keys.looks())
    # The time of the name is over.
    entry = json.loads(parent.raw.hget(query, "keep:short"))
    parent.raw.hset(query, "keep:short", json.dumps(entry | {"expires": 1}))
    words = parent.manifest()[pin].split(" ")
    words[2] = "2"
    parent.raw.hset(keys.meta(parent.id), pin, " ".join(words))
    assert maintain(parent, gen).unpinned == 1
    assert not parent.raw.hexists(query, "keep:short")
    assert pin not in parent.manifest()


def test_pin_restored_by_a_failover_ends_at_the_second_observation(
    parent: Parent, url: str
) -> None:
    parent.commit(3)
    gen = parent.id.store.gen
    fork(url, "orders", to=FORK, detach=True)
    (pin,) = [name for name in parent.manifest() if name.startswith("x:")]
    meta = keys.meta(parent.id.of_gen(pin[2:]))
    maintain(parent, gen)
    assert not parent.raw.hkeys(keys.looks())
    # The fork has let its parent go, whose node then went back.
    parent.raw.hdel(meta, "g", "gt")
    maintain(parent, gen)
    (note,) = parent.raw.hkeys(keys.looks())
    assert note.decode() == f"{gen}:{pin[2:]}:{parent.id.store.operator}:0:{parent.id.store.store}"
    at = json.loads(parent.raw.hget(keys.looks(), note))["at"]
    assert pin in parent.manifest()
    parent.raw.hset(keys.looks(), note, json.dumps({"at": at - GONE_MS}))
    assert maintain(parent, gen).unpinned == 1
    assert pin not in parent.manifest()
    assert not parent.raw.hexists(keys.query(gen), f"fork:{pin[2:]}")
    assert not parent.raw.hkeys(keys.looks())


def test_unused_parent_is_not_purged_while_it_is_pinned(parent: Parent, url: str) -> None:
    parent.commit(3)
    gen = parent.id.store.gen
    owner = keep(url, "orders", name="before", at_batch=2).owner
    parent.provider.close()
    raw = parent.raw
    raw.delete(keys.instance(parent.id))
    for field, value in raw.hgetall(keys.checkpoints()).items():
        entry = json.loads(value)
        if isinstance(entry, dict):
            raw.hset(keys.checkpoints(), field, json.dumps(entry | {"created": 1, "seen": 1}))
    raw.hset(keys.query(gen), mapping={"epoch": "1", "seen": "1"})
    raw.hset(keys.meta(parent.id), "t", "1")

    def look_twice() -> MaintenanceReport:
        purge_vanished(parent.client, age_ms=DAY_MS)
        seen = json.loads(raw.hget(keys.looks(), gen))
        raw.hset(keys.looks(), gen, json.dumps(seen | {"at": seen["at"] - DAY_MS}))
        return purge_vanished(parent.client, age_ms=DAY_MS)

    report = look_twice()
    assert (report.purged, report.pinned) == (0, 1)
    assert parent.raw.pttl(keys.meta(parent.id)) == -1
    unpin_all(parent.client, [parent.id], owner)
    assert look_twice().purged == 1


def test_purge_without_a_query_finds_pins_by_a_scan(parent: Parent, url: str) -> None:
    parent.commit(3)
    keep(url, "orders", name="before", at_batch=2)
    gen = parent.id.store.gen
    parent.raw.delete(keys.query(gen))
    before = {name: parent.raw.dump(name) for name in parent.raw.keys("*")}
    for how in (purge, expire):
        with pytest.raises(ConflictError, match="kept version 'before'"):
            how(parent.client, gen)
    assert {name: parent.raw.dump(name) for name in parent.raw.keys("*")} == before


def test_forced_purge_warns_of_each_fork_and_kept_version(
    parent: Parent, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parent.commit(3)
    parent.provider.close()
    parent.raw.delete(keys.instance(parent.id))
    gen = parent.id.store.gen
    keep(url, "orders", name="before", at_batch=2)
    fork(url, "orders", to=FORK)
    arguments = ["purge", "--url", url, "--gen", gen, "--yes", "--force"]
    assert main(arguments) == 0
    told = capsys.readouterr().err
    assert f"takes the state from fork '{FORK}'" in told
    assert "takes the state from kept version 'before'" in told
    assert main([*arguments, "--now"]) == 0
    assert not [key for key in parent.raw.keys("*") if gen.encode() in key]


def test_commands_name_forks_and_kept_versions(
    parent: Parent, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parent.commit(3)
    keep(url, "orders", name="before", at_batch=2)
    fork(url, "orders", to=FORK)
    for _ in range(3):
        parent.commit(4)
        parent.maintain()

    def printed(*arguments: str) -> str:
        assert main([*arguments, "--url", url]) == 0
        return capsys.readouterr().out

    (row,) = [
        one
        for line in printed("queries", "--json").splitlines()
        if "fork_of" in (one := json.loads(line))
    ]
    assert (row["name"], row["fork_of"], row["fork_title"]) == (FORK, parent.id.store.gen, "orders")
    whole = json.loads(printed("show", "orders", "--json").splitlines()[0])
    assert [(one["kind"], one["owner"], one["version"]) for one in whole["pins"]] == [
        ("fork", row["gen"], 3),
        ("keep", "before", 3),
    ]
    assert whole["pinned_bytes"] == whole["pins"][0]["bytes"] > 0
    (size,) = map(json.loads, printed("size", "orders", "--json").splitlines())
    assert size["pinned_bytes"] == whole["pinned_bytes"]
    (forked,) = map(json.loads, printed("size", FORK, "--json").splitlines())
    assert (forked["bytes"], forked["foreign_bytes"]) == (0, whole["pinned_bytes"])


def test_metrics_count_pins_and_their_bytes(parent: Parent, url: str, reader: Reader) -> None:
    parent.commit(3)
    before = reader.query("orders").status().bytes
    keep(url, "orders", name="before", at_batch=2)
    fork(url, "orders", to=FORK)
    for _ in range(3):
        parent.commit(4)
        parent.maintain()
    found = {
        (sample.name, sample.labels["query"], sample.labels.get("kind", "")): sample.value
        for metric in QueryCollector(reader).collect()
        for sample in metric.samples
        if "query" in sample.labels
    }
    assert found["redis_state_pins", "orders", "fork"] == 1
    assert found["redis_state_pins", "orders", "keep"] == 1
    assert found["redis_state_pins", FORK, "fork"] == 0
    assert found["redis_state_pinned_bytes", "orders", ""] == before
    assert found["redis_state_foreign_bytes", FORK, ""] == before


def test_bytes_that_only_pins_hold_are_a_cause_of_growth(
    parent: Parent, url: str, reader: Reader
) -> None:
    store = parent.provider.get_store(0)
    for number in range(2000):
        store.put(f"{number}", os.urandom(64).hex())
    parent.at = store.commit()
    parent.commit()
    keep(url, "orders", name="before", at_batch=0)
    assert "pinned" not in {one.kind for one in reader.query("orders").why_growing()}
    for _ in range(3):
        parent.commit(4)
        parent.maintain()
    (cause,) = [one for one in reader.query("orders").why_growing() if one.kind == "pinned"]
    assert "kept versions (before)" in cause.found
    assert "redis-state keep orders --drop" in cause.advice
    drop_kept(url, "orders", "before")
    (cause,) = [one for one in reader.query("orders").why_growing() if one.kind == "pinned"]
    assert "ended pins" in cause.found
    parent.partition().retain()
    assert "pinned" not in {one.kind for one in reader.query("orders").why_growing()}
