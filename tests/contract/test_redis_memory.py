"""Hard bound of a query's memory: what does not fit lies in files, and stays readable."""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.errors import ConfigError, FullError, Kind, UnavailableError
from redis_state.format import ordered
from redis_state.format.entry import segments_in
from redis_state.ids import PartitionId, Pin, StateStoreId, StateStoreProviderId
from redis_state.maintain.checkpoint import maintain_checkpoint
from redis_state.maintain.compaction import add_snapshot
from redis_state.maintain.recall import expire, recall
from redis_state.maintain.report import Policy
from redis_state.places.moving import bring_back, rows_of
from redis_state.places.room import (
    META_BYTES,
    bound_of,
    cost_of,
    leaving,
    make_room,
    set_bound,
    share_of,
)
from redis_state.protocol.partition import PartitionClient
from redis_state.protocol.runs import register_run
from redis_state.store.local.families import family_of
from redis_state.store.provider import StateStoreProvider
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer, bytes_of

ID = StateStoreId("ledger", 0, 0)
MIB = 1 << 20
BOUND = MIB + META_BYTES
ROWS = 300
"""Rows of a batch, of about 1 KiB that does not compress: 0.3 MiB."""


class Ledger:
    """A Python store whose state is several times its bound."""

    def __init__(self, url: str, folder: Path, **options: Any) -> None:
        self.url, self.folder = url, folder
        self.options = {"redis_memory": str(BOUND), "places_folder": str(folder), **options}
        if self.options["redis_memory"].isdigit():
            self.options["redis_memory"] = f"{int(self.options['redis_memory']) // 1024}k"
        self.raw: Any = redis.Redis.from_url(url)
        self.client = Client(config.parse({"url": url}), clock=ManualClock())
        self.dice = random.Random(7)
        self.rows: dict[str, bytes] = {}
        self.at = self.runs = self.peak = 0
        self.provider = self.new_provider()

    def new_provider(self, **options: Any) -> StateStoreProvider:
        self.runs += 1
        return StateStoreProvider(
            StateStoreProviderId(ID, f"run-{self.runs}"),
            config=config.parse({"url": self.url} | self.options | options),
            clock=ManualClock(),
        )

    def commit(self, times: int = 1, *, rows: int = ROWS, size: int = 1000) -> None:
        for _ in range(times):
            store = self.provider.get_store(self.at)
            for _ in range(rows):
                key = f"k{self.dice.randrange(5000)}"
                self.rows[key] = self.dice.randbytes(size)
                store.put(key, self.rows[key])
            self.at = store.commit()
            self.sample()

    def sample(self) -> None:
        """Notes the memory of the partition's keys, the server's own count."""
        mark = f"{{rs:{self.gen}:"
        used = 0
        for key in self.raw.scan_iter(match="*", count=1000):
            if key.decode().startswith(mark):
                used += self.raw.memory_usage(key, samples=0) or 0
        self.peak = max(self.peak, used)
        assert used <= BOUND

    @property
    def gen(self) -> str:
        return bytes_of(self.raw.hget(keys.names(), keys.name_field(ID.checkpoint))).decode()

    @property
    def id(self) -> PartitionId:
        return ID.partition(self.gen)

    def manifest(self) -> dict[bytes, bytes]:
        return dict(self.raw.hgetall(keys.meta(self.id)))

    def in_redis(self) -> list[str]:
        return [
            one.ident
            for one in segments_in(self.manifest())
            if one.place is None and one.entry.blocks
        ]

    def partition(self) -> PartitionClient:
        return PartitionClient(self.client, self.id, versions_to_retain=100)

    def check(self) -> None:
        """Compares all rows with those that a process reads that has nothing in memory."""
        provider = self.new_provider()
        try:
            found = dict(provider.get_read_store(self.at).iterator())
        finally:
            provider.close()
        assert found == self.rows


@pytest.fixture
def ledger(redis_server: RedisServer, tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(redis_server.url, tmp_path / "segments")
    yield made
    made.provider.close()
    made.client.close()


def test_state_of_several_times_the_bound_is_read_back(ledger: Ledger) -> None:
    for _ in range(12):
        ledger.commit(3)
        ledger.provider.do_maintenance()
        ledger.sample()
    assert sum(map(len, ledger.rows.values())) > 3.5 * BOUND
    ledger.check()
    bases = [one for one in segments_in(ledger.manifest()) if one.snapshot]
    newest = max(bases, key=lambda one: one.version)
    assert newest.version > 20
    assert newest.place is not None
    assert ledger.peak > BOUND // 3


def test_small_state_stays_in_redis(ledger: Ledger) -> None:
    ledger.commit(6, rows=5)
    ledger.provider.do_maintenance()
    ledger.commit(2, rows=5)
    assert not rows_of(ledger.client, ledger.id)
    assert all(one.place is None for one in segments_in(ledger.manifest()))
    ledger.check()


def test_batch_above_the_share_raises_no_room_and_changes_nothing(ledger: Ledger) -> None:
    ledger.commit(2)
    with pytest.raises(FullError) as caught:
        ledger.commit(rows=1500)
    assert caught.value.kind is Kind.NO_ROOM
    assert "redisMemory" in str(caught.value)
    assert int(ledger.manifest()[b"l"]) == 2
    ledger.sample()
    ledger.rows = {}
    ledger.dice = random.Random(7)
    for _ in range(2):
        for _ in range(ROWS):
            key = f"k{ledger.dice.randrange(5000)}"
            ledger.rows[key] = ledger.dice.randbytes(1000)
    ledger.check()
    ledger.commit()
    ledger.check()


def test_folder_that_is_gone_is_unavailable_by_the_deadline(ledger: Ledger) -> None:
    ledger.commit(2)
    shutil.rmtree(ledger.folder)
    ledger.folder.write_text("not a folder")
    with pytest.raises(UnavailableError) as caught:
        ledger.commit(4)
    assert str(ledger.folder) in str(caught.value)
    assert "share of" in str(caught.value)
    before = ledger.at
    ledger.folder.unlink()
    ledger.provider.close()
    ledger.provider = ledger.new_provider()
    ledger.commit(2)
    assert ledger.at == before + 2


def test_killed_attempt_gives_way_after_a_minute(ledger: Ledger) -> None:
    ledger.commit(1)
    dead = ledger.partition()
    at = ledger.at + 1
    blocks = {f"{number}": ledger.dice.randbytes(60_000) for number in range(10)}
    dead.stage(f"d:{at}:dead", f"d:{at}:dead", blocks)
    ledger.sample()
    key = keys.segment(ledger.id, f"d:{at}:dead")
    ledger.raw.pexpire(key, 86_400_000 - 61_000)
    ledger.commit(1, rows=900)
    assert not ledger.raw.exists(key)
    ledger.check()


def test_living_attempt_whose_blocks_gave_way_sends_them_again(ledger: Ledger) -> None:
    ledger.commit(1)
    partition, at = ledger.partition(), ledger.at + 1
    ident = f"d:{at}:other"
    blocks = {f"{number}": ledger.dice.randbytes(60_000) for number in range(10)}
    partition.stage(ident, ident, blocks)
    ledger.commit(1)
    # The version was taken: what was staged for it can never be published.
    ledger.provider.get_store(ledger.at).abort()
    ledger.commit(2)
    assert not ledger.raw.exists(keys.segment(ledger.id, ident))


def test_next_run_without_the_option_has_no_bound(ledger: Ledger) -> None:
    ledger.commit(4)
    ledger.provider.close()
    ledger.provider = ledger.new_provider(redis_memory=None)
    store = ledger.provider.get_store(ledger.at)
    for number in range(2000):
        ledger.rows[f"k{number}"] = ledger.dice.randbytes(1000)
        store.put(f"k{number}", ledger.rows[f"k{number}"])
    ledger.at = store.commit()
    assert bound_of(ledger.client, ledger.id) is None
    assert not [field for field in ledger.manifest() if field.startswith(b"h")]
    ledger.check()
    ledger.provider.close()
    ledger.provider = ledger.new_provider()
    ledger.provider.get_store(ledger.at).abort()
    store = ledger.provider.get_store(ledger.at)
    store.put("k1", b"bounded again")
    ledger.rows["k1"] = b"bounded again"
    ledger.at = store.commit()
    ledger.sample()
    ledger.check()


def test_pinned_segments_move_and_stay_readable(ledger: Ledger) -> None:
    ledger.commit(3)
    before = dict(ledger.rows)
    version = ledger.at
    ledger.commit(6)
    ledger.provider.do_maintenance()
    provider = ledger.new_provider()
    found = dict(provider.get_read_store(version).iterator())
    provider.close()
    assert found == before


def test_maintenance_keeps_a_sixth_free(ledger: Ledger) -> None:
    ledger.commit(4, rows=250)
    found = bound_of(ledger.client, ledger.id)
    assert found is not None
    ledger.provider.do_maintenance()
    found = bound_of(ledger.client, ledger.id)
    assert found is not None
    assert found.lacking <= 0


def test_count_agrees_with_the_manifest(ledger: Ledger) -> None:
    ledger.commit(8)
    found = set_bound(ledger.client, ledger.id, MIB)
    here = [one for one in segments_in(ledger.manifest()) if one.place is None]
    assert found is not None
    assert found.bytes == sum(cost_of(one.entry) for one in here)


def test_maintain_service_adds_the_snapshot_in_the_folder(ledger: Ledger) -> None:
    ledger.commit(6)
    partition = ledger.partition()
    entry = add_snapshot(partition, partition.open("", None))
    assert entry is not None
    (base,) = (one for one in segments_in(ledger.manifest()) if one.snapshot)
    assert base.place is not None
    ledger.sample()
    ledger.check()


def test_killed_writer_of_a_base_leaves_an_announced_file(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.commit(6)

    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(PartitionClient, "add_filed_snapshot", killed)
        partition = ledger.partition()
        with pytest.raises(KeyboardInterrupt):
            add_snapshot(partition, partition.open("", None))
    assert [row.state for row in rows_of(ledger.client, ledger.id)].count("n") == 1
    assert not [one for one in segments_in(ledger.manifest()) if one.snapshot]
    ledger.check()
    ledger.commit(3)
    ledger.check()


def test_order_in_which_segments_leave(ledger: Ledger) -> None:
    ledger.options["redis_memory"] = "64m"
    ledger.provider.close()
    ledger.provider = ledger.new_provider()
    ledger.commit(5, rows=5)
    ledger.provider.do_maintenance()
    ledger.commit(3, rows=5)
    ledger.provider.get_store(ledger.at).abort()
    chosen = leaving(ledger.manifest(), 1 << 40)
    base = next(number for number, one in enumerate(chosen) if one.snapshot)
    assert [one.version for one in chosen[:base]] == [1, 2, 3, 4]
    assert [one.version for one in chosen[base + 1 :]][-1] >= 7


def test_base_that_was_set_aside_leaves_before_the_newest_one(ledger: Ledger) -> None:
    ledger.commit(5, rows=5)
    ledger.provider.do_maintenance()
    ledger.provider.get_store(ledger.at).abort()
    manifest = ledger.manifest()
    (base,) = (one for one in segments_in(manifest) if one.snapshot)
    other = replace(base, entry=replace(base.entry, ref="f" * 32))
    manifest[f"z:{other.ident}".encode()] = f"{other.field} {other.entry.text}".encode()
    found = [one.ident for one in leaving(manifest, 1 << 40)]
    assert found.index(other.ident) < found.index(base.ident)


def test_too_small_a_bound_names_the_least() -> None:
    assert share_of(8 * (MIB + META_BYTES), 8) == MIB
    with pytest.raises(ConfigError, match=str(9 * (MIB + META_BYTES))):
        share_of(8 * (MIB + META_BYTES), 9)


def test_bound_without_a_folder_is_refused(redis_server: RedisServer) -> None:
    options = config.parse({"url": redis_server.url, "redisMemory": "2m"})
    provider = StateStoreProvider(StateStoreProviderId(ID, "run"), config=options)
    with pytest.raises(ConfigError, match="placesFolder"):
        provider.get_store(0).put("k", 1)
    provider.close()


def test_segment_comes_back_once_the_bound_has_ended(ledger: Ledger) -> None:
    ledger.commit(8)
    placed = [one for one in segments_in(ledger.manifest()) if one.place is not None]
    assert placed
    set_bound(ledger.client, ledger.id, 0)
    for one in placed:
        assert bring_back(ledger.client, ledger.id, one)
    assert len(ledger.in_redis()) == 8
    ledger.check()


def test_maintenance_of_a_served_store_finds_nothing_wrong(ledger: Ledger) -> None:
    ledger.commit(8)
    report = maintain_checkpoint(ledger.client, ledger.gen, policy=Policy("worker"))
    assert not report.problems
    ledger.check()


class Attempt:
    """A delta of 1.8 MB, which takes several chunks, on top of the newest version."""

    def __init__(self, ledger: Ledger) -> None:
        self.partition, head = ledger.partition(), ledger.manifest()
        self.parent = Pin(int(head[b"l"]), head[b"lu"].decode())
        run = register_run(ledger.client, ledger.gen, "attempt", by_driver=True)
        self.run = self.partition.acquire(run, self.parent)
        self.uid = uuid.uuid4().hex
        self.ident = f"d:{self.parent.version + 1}:{self.uid}"
        rows = {
            ordered.PREFIX + b"%04d" % number: ledger.dice.randbytes(1000) for number in range(1800)
        }
        self.written = ordered.write(
            self.ident,
            list(rows),
            list(rows.values()),
            ref=self.parent.uid,
            live=len(rows),
            families=[family_of("raw")],
        )

    def commit(self) -> None:
        written = self.written
        self.partition.commit(self.run, self.parent, self.uid, written.entry, written.fields)


def here(ledger: Ledger) -> int:
    """Returns the bytes that the segments in Redis count as."""
    return sum(cost_of(one.entry) for one in segments_in(ledger.manifest()) if one.place is None)


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
