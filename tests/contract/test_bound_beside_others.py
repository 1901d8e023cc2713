"""Bound of a partition beside what other processes do, and with damaged fields."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.errors import FullError, Kind
from redis_state.format.entry import segments_in
from redis_state.maintain.recall import expire, recall
from redis_state.places.moving import bring_back
from redis_state.places.room import bound_of, cost_of, leaving, make_room, set_bound
from redis_state.protocol.partition import PartitionClient
from tests.contract.bound_scene import MIB, Attempt, Ledger, here, opened_ledger
from tests.support.redis_server import RedisServer


@pytest.fixture
def ledger(redis_server: RedisServer, tmp_path: Path) -> Iterator[Ledger]:
    with opened_ledger(redis_server.url, tmp_path) as made:
        yield made


def test_blocks_that_came_before_the_bound_count_once_published(ledger: Ledger) -> None:
    ledger.commit(1, rows=5)
    attempt = Attempt(ledger)
    set_bound(ledger.client, ledger.id, 0)
    attempt.partition.stage(attempt.ident, attempt.ident, attempt.written.fields)
    set_bound(ledger.client, ledger.id, 4 * MIB)
    attempt.commit()
    found = bound_of(ledger.client, ledger.id)
    assert found is not None
    assert found.bytes >= here(ledger) > MIB


def test_blocks_that_came_before_the_bound_do_not_exceed_it(ledger: Ledger) -> None:
    ledger.commit(1, rows=5)
    attempt = Attempt(ledger)
    set_bound(ledger.client, ledger.id, 0)
    attempt.partition.stage(attempt.ident, attempt.ident, attempt.written.fields)
    set_bound(ledger.client, ledger.id, MIB)
    with pytest.raises(FullError) as caught:
        attempt.commit()
    assert caught.value.kind is Kind.NO_ROOM
    assert int(ledger.manifest()[b"l"]) == 1
    assert not ledger.raw.exists(keys.segment(ledger.id, attempt.ident))
    ledger.check()


def _staged_snapshot(ledger: Ledger) -> str:
    """Blocks of half a share, staged for a snapshot by a process that still lives."""
    blocks = {str(number): ledger.dice.randbytes(50_000) for number in range(10)}
    ident = f"s:{ledger.at}:{'a' * 32}"
    ledger.partition().stage_snapshot(ident, blocks, is_bounded=True)
    return keys.staged(ledger.id, ident)


def test_snapshot_that_another_process_stages_gives_way_to_a_commit(ledger: Ledger) -> None:
    ledger.commit(1, rows=5)
    staged = _staged_snapshot(ledger)
    ledger.commit(1, rows=50)
    assert ledger.raw.exists(staged)
    ledger.commit(1, rows=700)
    assert not ledger.raw.exists(staged)
    ledger.check()


def test_staged_snapshot_and_hot_run_give_way_where_the_folder_takes_nothing(
    ledger: Ledger,
) -> None:
    ledger.commit(1, rows=5)
    staged = _staged_snapshot(ledger)
    shutil.rmtree(ledger.folder)
    ledger.folder.write_text("not a folder")
    ledger.commit(1, rows=500)
    assert not ledger.raw.exists(staged)
    ledger.folder.unlink()
    ledger.check()


def test_segment_whose_blocks_came_back_before_the_bound_stays_in_its_file(ledger: Ledger) -> None:
    ledger.commit(8)
    one = next(one for one in segments_in(ledger.manifest()) if one.place is not None)
    set_bound(ledger.client, ledger.id, 0)
    key, place = keys.segment(ledger.id, one.ident), one.place
    assert place is not None
    assert bring_back(ledger.client, ledger.id, one)
    ledger.raw.hset(keys.meta(ledger.id), f"a:{one.ident}", place.text)
    ledger.raw.pexpire(key, 60_000)
    found = set_bound(ledger.client, ledger.id, MIB)
    assert found is not None
    names, args = [keys.meta(ledger.id), keys.files(ledger.id), key], (one.field, one.entry.text)
    reply = ledger.client.script("test", script("unplace"), names, [*args, place.text])
    bound = bound_of(ledger.client, ledger.id)
    assert bound is not None
    assert reply == ["OK"] if found.bytes + cost_of(one.entry) <= MIB else reply[0] == "ROOM"
    assert bound.bytes >= here(ledger)


def test_attempt_whose_blocks_gave_way_while_it_slept_sends_all(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.options["redis_memory"] = "4m"
    ledger.provider.close()
    ledger.provider = ledger.new_provider()
    ledger.commit(1, rows=5)
    attempt = Attempt(ledger)
    publish = PartitionClient._publish
    slept: list[str] = []

    def late(partition: PartitionClient, *args: Any) -> Any:
        key = keys.segment(ledger.id, attempt.ident)
        if not slept and ledger.raw.exists(key):
            slept.append(key)
            ledger.raw.pexpire(key, 86_400_000 - 3_600_000)
            other = {f"{number}": ledger.dice.randbytes(80_000) for number in range(40)}
            partition.stage("d:2:other", "d:2:other", other)
            assert not ledger.raw.exists(key)
            ledger.raw.pexpire(keys.segment(ledger.id, "d:2:other"), 86_400_000 - 61_000)
        return publish(partition, *args)

    monkeypatch.setattr(PartitionClient, "_publish", late)
    attempt.commit()
    assert slept
    found = bound_of(ledger.client, ledger.id)
    assert found is not None
    assert found.bytes >= here(ledger) > MIB


def test_damaged_fields_count_as_nothing(ledger: Ledger) -> None:
    ledger.commit(2)
    whole = here(ledger)
    damaged = {"s:1": "", "s:2:u": "", "z:d:9:x": "nothing", "d:9:y": "text", "h:d:9:z": "text"}
    ledger.raw.hset(keys.meta(ledger.id), mapping=damaged)
    found = set_bound(ledger.client, ledger.id, MIB)
    assert found is not None
    assert found.bytes == whole
    ledger.commit(6)
    ledger.check()


def test_damaged_bound_is_none_until_maintenance_sets_it(ledger: Ledger) -> None:
    ledger.commit(2)
    ledger.raw.hset(keys.meta(ledger.id), "h", "text")
    assert bound_of(ledger.client, ledger.id) is None
    ledger.commit(1)
    ledger.provider.do_maintenance()
    found = bound_of(ledger.client, ledger.id)
    assert found is not None
    assert found.bytes >= here(ledger)
    ledger.check()


def test_foreign_segments_do_not_count_and_do_not_leave(ledger: Ledger) -> None:
    ledger.commit(2)
    ledger.provider.get_store(ledger.at).abort()
    idents = ledger.in_redis()
    ledger.raw.hset(keys.meta(ledger.id), f"a:{idents[0]}", f"p {'b' * 32}")
    found = set_bound(ledger.client, ledger.id, MIB)
    own = [one for one in segments_in(ledger.manifest()) if not one.gen]
    assert found is not None
    assert found.bytes == sum(cost_of(one.entry) for one in own) > 0
    assert [one.ident for one in leaving(ledger.manifest(), 1 << 40)] == idents[1:]


def test_reader_finds_segments_that_made_room_since_it_opened(ledger: Ledger) -> None:
    ledger.commit(3)
    partition = ledger.partition()
    opened = partition.open("", None)
    before = partition.fetch_whole(opened.segments)
    ledger.provider.get_store(ledger.at).abort()
    assert make_room(ledger.client, ledger.id, MIB) == 3
    assert not [
        one for one in opened.segments if ledger.raw.exists(keys.segment(ledger.id, one.ident))
    ]
    assert partition.fetch_whole(opened.segments) == before
    for segment, fields in zip(opened.segments, before, strict=True):
        assert partition.fetch(segment, list(fields)) == list(fields.values())


def test_two_processes_make_room_at_once(ledger: Ledger) -> None:
    ledger.commit(3)
    ledger.provider.get_store(ledger.at).abort()
    clients = [Client(config.parse({"url": ledger.url})) for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        moved = list(pool.map(lambda one: make_room(one, ledger.id, MIB), clients))
    for client in clients:
        client.close()
    assert sum(one or 0 for one in moved) >= 3
    assert not ledger.in_redis()
    ledger.commit(4)
    ledger.check()


def test_purged_partition_comes_back_with_its_bound(ledger: Ledger) -> None:
    ledger.commit(8)
    before = ledger.manifest()
    expire(ledger.client, ledger.gen)
    assert set_bound(ledger.client, ledger.id, 0) is None
    recall(ledger.client, ledger.gen)
    after = ledger.manifest()
    assert after[b"h"] == before[b"h"]
    assert after[b"f"] == b"2"
    ledger.check()
    ledger.commit(3)
    ledger.check()
