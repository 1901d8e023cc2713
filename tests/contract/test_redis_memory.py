"""Hard bound of a query's memory: what does not fit lies in files, and stays readable."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from redis_state import config, keys
from redis_state.errors import ConfigError, FullError, Kind, UnavailableError
from redis_state.format.entry import segments_in
from redis_state.ids import StateStoreProviderId
from redis_state.maintain.checkpoint import maintain_checkpoint
from redis_state.maintain.compaction import add_snapshot
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
from redis_state.store.provider import StateStoreProvider
from tests.contract.bound_scene import BOUND, ID, MIB, ROWS, Ledger, opened_ledger
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer


@pytest.fixture
def ledger(redis_server: RedisServer, tmp_path: Path) -> Iterator[Ledger]:
    with opened_ledger(redis_server.url, tmp_path) as made:
        yield made


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


def _until_refused(ledger: Ledger) -> dict[str, bytes]:
    """Commits until nothing can leave for the folder; returns the rows of the last commit."""
    for _ in range(20):
        rows = dict(ledger.rows)
        try:
            ledger.commit(1, rows=100)
        except UnavailableError:
            return rows
    pytest.fail("a folder was made")


def test_process_that_starts_without_the_mount_makes_no_folder(ledger: Ledger) -> None:
    ledger.commit(8, rows=40)
    partition = ledger.partition()
    assert add_snapshot(partition, partition.open("", ledger.at)) is not None
    assert make_room(ledger.client, ledger.id, 1)
    ledger.provider.close()
    aside = ledger.folder.with_name("aside")
    ledger.folder.rename(aside)
    ledger.folder.mkdir()
    ledger.provider = ledger.new_provider()
    rows = _until_refused(ledger)
    ledger.provider.close()
    assert list(ledger.folder.iterdir()) == []
    ledger.folder.rmdir()
    aside.rename(ledger.folder)
    ledger.provider = ledger.new_provider()
    ledger.rows = rows
    ledger.check()
    ledger.commit(4)
    ledger.check()


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


def test_attempt_waits_until_blocks_of_a_killed_one_give_way(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.commit(1)
    ident, pauses = f"d:{ledger.at + 1}:dead", list[float]()
    blocks = {f"{number}": ledger.dice.randbytes(60_000) for number in range(10)}
    ledger.partition().stage(ident, ident, blocks)
    key = keys.segment(ledger.id, ident)

    def sleep(_: ManualClock, seconds: float) -> None:
        pauses.append(seconds)
        ledger.raw.pexpire(key, ledger.raw.pttl(key) - round(1000 * seconds))

    monkeypatch.setattr(ManualClock, "sleep_s", sleep)
    ledger.commit(1, rows=900)
    assert 60 <= sum(pauses) <= 70
    assert not ledger.raw.exists(key)
    ledger.check()


def test_blocks_of_others_that_take_less_than_is_lacking_are_not_waited_for(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.commit(1)
    ident = f"d:{ledger.at + 1}:other"
    ledger.partition().stage(ident, ident, {"0": b"few"})
    monkeypatch.setattr(ManualClock, "sleep_s", lambda *_: pytest.fail("it waited"))
    with pytest.raises(FullError) as caught:
        ledger.commit(1, rows=1500)
    assert caught.value.kind is Kind.NO_ROOM


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


def test_history_that_cannot_be_moved_delays_no_new_share(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    folder = tmp_path / "segments"
    ledger = Ledger(redis_server.url, folder, redis_memory="64m", history="files")
    ledger.commit(5, rows=5)
    ledger.provider.do_maintenance()
    folder.rename(tmp_path / "aside")
    folder.write_text("in the way")
    ledger.commit(6, rows=5)
    ledger.provider.get_store(ledger.at).abort()
    counted = ledger.provider.counters.values
    for others in (1, 2):
        before = bound_of(ledger.client, ledger.id)
        other = StateStoreProvider(
            StateStoreProviderId(replace(ID, operator_id=others), "other"),
            config=config.parse({"url": ledger.url} | ledger.options),
        )
        other.get_store(0).commit()
        other.close()
        ledger.provider.do_maintenance()
        after = bound_of(ledger.client, ledger.id)
        assert counted["failed_moves"] == 1
        assert before is not None
        assert after is not None
        assert after.share < before.share * 0.7
    ledger.provider.close()
    ledger.client.close()


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
