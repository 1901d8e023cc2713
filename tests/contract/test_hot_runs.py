"""Hot runs: what was changed since a base in a file, merged, in Redis."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.errors import ConfigError
from redis_state.format.entry import Segment, parse_segment, segments_in
from redis_state.format.segment import SegmentContent
from redis_state.ids import Pin
from redis_state.live import Reader
from redis_state.maintain import hot_run
from redis_state.maintain.compaction import add_snapshot
from redis_state.maintain.files import verify_files
from redis_state.maintain.hot_run import add_hot_run
from redis_state.maintain.orphans import sweep_orphans
from redis_state.places.room import (
    Bound,
    bound_of,
    cost_of,
    drop_hot_runs,
    keep_room,
    make_room,
)
from redis_state.protocol import Opened, PartitionClient, hot_runs, register_run, snapshots
from redis_state.protocol.version_rows import Fetch, read_whole
from redis_state.reader.block_cache import BlockCache
from redis_state.reader.versions import NewestOpener
from tests.contract.bound_scene import MIB, Attempt, Ledger, here, opened_ledger
from tests.support.redis_server import RedisServer

BASE_ROWS = 2500
HOT_ROWS = 60


@pytest.fixture
def ledger(redis_server: RedisServer, tmp_path: Path) -> Iterator[Ledger]:
    with opened_ledger(redis_server.url, tmp_path) as made:
        yield made


def _base_in_file(ledger: Ledger) -> None:
    """Many rows, in a file."""
    store = ledger.provider.get_store(0)
    for number in range(BASE_ROWS):
        ledger.rows[f"k{number}"] = ledger.dice.randbytes(1000)
        store.put(f"k{number}", ledger.rows[f"k{number}"])
        if number % 250 == 249:
            ledger.at = store.commit()
            ledger.provider.do_maintenance()
            store = ledger.provider.get_store(ledger.at)
    store.abort()
    add_snapshot(ledger.partition(), ledger.partition().open("", ledger.at))
    ledger.provider.close()
    ledger.provider = ledger.new_provider()


def _hot(ledger: Ledger, times: int, *, maintained: bool = True, size: int = 1000) -> None:
    """Changes the same few rows again and again."""
    for _ in range(times):
        store = ledger.provider.get_store(ledger.at)
        for number in range(HOT_ROWS):
            ledger.rows[f"k{number}"] = ledger.dice.randbytes(size)
            store.put(f"k{number}", ledger.rows[f"k{number}"])
        ledger.at = store.commit()
        if maintained:
            ledger.provider.do_maintenance()
        ledger.sample()


def _runs(ledger: Ledger) -> dict[str, str]:
    """Fields of the hot runs in the manifest."""
    fields = ledger.manifest().items()
    return {name.decode(): value.decode() for name, value in fields if name[:2] == b"r:"}


def _listed(ledger: Ledger, *, hot_runs: bool = True) -> tuple[Segment, ...]:
    return ledger.partition().open("", ledger.at, hot_runs=hot_runs).segments


def _bases(ledger: Ledger) -> int:
    """The version of the newest base."""
    return max(one.version for one in segments_in(ledger.manifest()) if one.snapshot)


def _with_run(ledger: Ledger) -> Segment:
    """A base in a file, and a hot run over it."""
    _base_in_file(ledger)
    _hot(ledger, 13)
    ((field, value),) = _runs(ledger).items()
    return parse_segment(field, value)


def _key(ledger: Ledger, run: Segment) -> str:
    return keys.segment(ledger.id, run.ident)


def test_hot_rows_stay_in_redis_and_the_base_waits(ledger: Ledger) -> None:
    _base_in_file(ledger)
    _hot(ledger, 6)
    before = _bases(ledger)
    _hot(ledger, 60)
    assert _bases(ledger) == before
    listed = _listed(ledger)
    assert [one.over is not None for one in listed].count(True) == 1
    assert len(listed) < snapshots.HOT_RUN_DELTAS_MAX
    assert listed[0].place is None
    assert listed[-1].place is not None
    assert len(_listed(ledger, hot_runs=False)) > 60
    ledger.check()


def test_restarted_process_goes_on_with_the_hot_run_until_the_base_is_old(ledger: Ledger) -> None:
    run = _with_run(ledger)
    ledger.provider.close()
    ledger.provider = ledger.new_provider()
    with mock.patch.object(snapshots, "DELTAS_MAX", 26):
        _hot(ledger, 10)
        assert _bases(ledger) == run.parent.version
        _hot(ledger, 4)
    assert run.parent.version + 26 <= _bases(ledger) < ledger.at
    ledger.check()


def test_hot_run_has_the_rows_of_its_deltas(ledger: Ledger) -> None:
    run = _with_run(ledger)
    assert run in _listed(ledger)
    deltas = [one for one in _listed(ledger, hot_runs=False) if not one.alone]
    assert run.entry.rows == HOT_ROWS
    assert run.entry.live == BASE_ROWS
    assert sum(one.entry.bytes for one in deltas) > 8 * run.entry.bytes
    ledger.check()


def test_removed_rows_stay_removed_in_a_hot_run(ledger: Ledger) -> None:
    _base_in_file(ledger)
    _hot(ledger, 6)
    for number in range(5):
        store = ledger.provider.get_store(ledger.at)
        store.remove(f"k{100 + number}")
        del ledger.rows[f"k{100 + number}"]
        ledger.at = store.commit()
    _hot(ledger, 5)
    (value,) = _runs(ledger).values()
    assert int(value.split(" ")[3]) == HOT_ROWS + 5
    ledger.check()


def test_who_has_a_version_above_the_base_gets_the_deltas(ledger: Ledger) -> None:
    run = _with_run(ledger)
    partition, base = ledger.partition(), run.parent
    below = partition.open("", base.version + 2).pin
    assert run not in partition.open("", ledger.at, [below], hot_runs=True).segments
    assert run not in partition.open("", ledger.at, [base], hot_runs=True).segments
    older = Pin(base.version - 1, "f" * 32)
    assert run in partition.open("", ledger.at, [older], hot_runs=True).segments


def test_hot_run_whose_base_is_gone_is_not_listed(ledger: Ledger) -> None:
    run = _with_run(ledger)
    ledger.raw.hdel(keys.meta(ledger.id), _listed(ledger)[-1].field)
    assert run not in _listed(ledger)


def test_lost_hot_run_is_no_loss(ledger: Ledger) -> None:
    run = _with_run(ledger)
    ledger.raw.delete(_key(ledger, run))
    ledger.check()


DAMAGES = ["block", "header", "entry", "bytes", "signature"]


def _damage(ledger: Ledger, run: Segment, what: str) -> None:
    """Changes bytes of a hot run."""
    key = _key(ledger, run)
    if what in ("entry", "bytes"):
        value = ledger.manifest()[run.field.encode()]
        more = b" what" if what == "entry" else b"\xff"
        ledger.raw.hset(keys.meta(ledger.id), run.field, value + more)
        return
    for name, raw in ledger.raw.hgetall(key).items():
        if (name == b"h") == (what == "header"):
            ledger.raw.hset(key, name, raw[:-1] + bytes([raw[-1] ^ 1]))


@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_hot_run_is_no_loss(
    ledger: Ledger, what: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    if what == "signature":
        key = tmp_path / "key"
        key.write_bytes(ledger.dice.randbytes(32).hex().encode())
        ledger.options["signing_key_file"] = str(key)
        ledger.provider.close()
        ledger.client.close()
        ledger.provider = ledger.new_provider()
        ledger.client = Client(config.parse({"url": ledger.url} | _signed(ledger)))
    run = _with_run(ledger)
    # A reader finds what is confirmed.
    ledger.provider.get_store(ledger.at).abort()
    _damage(ledger, run, what)
    ledger.check()
    assert len(_warned(caplog)) == 1
    ledger.check()
    with Reader(config.parse({"url": ledger.url} | _signed(ledger))) as reader:
        state = reader.query("ledger").operator()
        for _ in range(3):
            assert state.get("k0") == ledger.rows["k0"]
            assert state.get_many(["k1", "nothing"]) == [ledger.rows["k1"], None]
        assert {one["key"]: one["value"] for one in state.scan()} == ledger.rows
    assert len(_warned(caplog)) == 1


@pytest.mark.parametrize("what", ["entry", "bytes"])
@pytest.mark.parametrize("count", [1, 2])
def test_reader_opens_past_a_damaged_entry(
    ledger: Ledger, what: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    run = _with_run(ledger)
    ledger.provider.get_store(ledger.at).abort()
    _damage(ledger, run, what)
    for _ in range(2):
        opener = NewestOpener(ledger.client, BlockCache())
        # The second partition was never written.
        ids = [replace(ledger.id, partition=number) for number in range(count)]
        found = opener.open(ids)[0]
        assert found.pin.version == ledger.at
        assert found.segments == _listed(ledger, hot_runs=False)
    assert len(_warned(caplog)) == 1


def _warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if "hot run" in one.message]


def _signed(ledger: Ledger) -> dict[str, str]:
    return {name: ledger.options[name] for name in ("signing_key_file",) if name in ledger.options}


@pytest.mark.parametrize("what", [*DAMAGES[:4], "lost"])
def test_next_merge_replaces_a_hot_run_that_is_not_whole(ledger: Ledger, what: str) -> None:
    run = _with_run(ledger)
    if what == "lost":
        ledger.raw.delete(_key(ledger, run))
    else:
        _damage(ledger, run, what)
    _hot(ledger, 40)
    assert run.field not in _runs(ledger)
    assert any(one.over for one in _listed(ledger))
    assert _bases(ledger) == run.parent.version
    ledger.check()


@pytest.mark.parametrize("what", [*DAMAGES[:4], "lost"])
def test_verification_names_a_hot_run_that_is_not_whole(ledger: Ledger, what: str) -> None:
    run = _with_run(ledger)
    assert list(verify_files(ledger.client, ledger.id)) == []
    if what == "lost":
        ledger.raw.delete(_key(ledger, run))
    else:
        _damage(ledger, run, what)
    (problem,) = verify_files(ledger.client, ledger.id)
    assert f"hot run {run.field}" in problem
    assert "No row is lost" in problem
    ledger.partition().client.call("test", [("HDEL", keys.meta(ledger.id), run.field)])
    assert list(verify_files(ledger.client, ledger.id)) == []


def test_orphan_sweep_spares_a_hot_run(ledger: Ledger) -> None:
    run = _with_run(ledger)
    lost = keys.segment(ledger.id, f"r:{run.version}:{'e' * 32}")
    ledger.raw.hset(lost, "0", b"block")
    assert sweep_orphans(ledger.client).orphans == 1
    assert ledger.raw.pttl(lost) > 0
    assert ledger.raw.pttl(_key(ledger, run)) == -1


def test_hot_run_that_outlived_the_bound_expires_as_an_orphan(ledger: Ledger) -> None:
    run = _with_run(ledger)
    # An older release ends the bound, and leaves the hot run alone.
    ledger.raw.hdel(keys.meta(ledger.id), "h")
    assert sweep_orphans(ledger.client).orphans == 1
    assert ledger.raw.pttl(_key(ledger, run)) > 0
    ledger.check()


def test_hot_run_that_is_being_staged_gives_way_to_a_commit(ledger: Ledger) -> None:
    run = _with_run(ledger)
    drop_hot_runs(ledger.client, ledger.id)
    while make_room(ledger.client, ledger.id, MIB):
        pass
    staged = Segment(False, run.version, run.uid, replace(run.entry, ref="a" * 32), over=run.over)
    blocks = {str(number): ledger.dice.randbytes(32_000) for number in range(10)}
    ledger.partition().stage_snapshot(staged.ident, blocks, is_bounded=True)
    _hot(ledger, 1, maintained=False, size=13_000)
    assert not ledger.raw.exists(keys.staged(ledger.id, staged.ident))
    assert not hot_runs.enter(ledger.client, ledger.id, staged)
    ledger.check()


def test_hot_run_gives_way_where_the_folder_takes_nothing(ledger: Ledger) -> None:
    run = _with_run(ledger)
    ledger.provider.close()
    ledger.provider = ledger.new_provider()
    shutil.rmtree(ledger.folder / ledger.gen, ignore_errors=True)
    aside = ledger.folder.with_name("aside")
    ledger.folder.rename(aside)
    ledger.folder.write_text("not a folder")
    free = MIB - here(ledger) - cost_of(run.entry) // 2
    Attempt(ledger, size=free * 8 // 9).commit()
    assert not _runs(ledger)


def test_hot_run_makes_room_before_it_is_staged(ledger: Ledger) -> None:
    _with_run(ledger)
    partition = ledger.partition()
    bound = bound_of(ledger.client, ledger.id)
    assert bound is not None
    (value,) = _runs(ledger).values()
    # Deltas take all of the share but a little.
    free = bound.share - bound.bytes - 2000
    _hot(ledger, 1, maintained=False, size=free // HOT_ROWS * 8 // 9 - 120)
    opened, now = partition.open("", None, hot_runs=True), bound_of(ledger.client, ledger.id)
    assert now is not None
    assert add_hot_run(partition, opened, now) is not None
    assert list(_runs(ledger).values()) != [value]
    ledger.check()


def test_folder_that_takes_nothing_is_tried_rarely_for_hot_runs(ledger: Ledger) -> None:
    _with_run(ledger)
    tried: list[int] = []

    def refusing(*_: object) -> None:
        tried.append(ledger.at)
        raise ConfigError("writing", found="the disk is full")

    full = Bound(MIB, MIB)
    with (
        mock.patch.object(hot_run, "make_room", refusing),
        mock.patch.object(hot_run, "bound_of", return_value=full),
        mock.patch.object(snapshots, "HOT_RUN_DELTAS_MAX", 1),
    ):
        _hot(ledger, 16)
    assert 1 <= len(tried) <= 2
    assert _runs(ledger)
    ledger.check()


def test_maintenance_spares_a_hot_run_where_nothing_else_can_leave(ledger: Ledger) -> None:
    _with_run(ledger)
    while make_room(ledger.client, ledger.id, MIB, ends_runs=False):
        pass
    least = sum(cost_of(parse_segment(*one).entry) for one in _runs(ledger).items())
    assert keep_room(ledger.client, ledger.id, least + 1) == 0
    assert _runs(ledger)


def test_damaged_delta_does_not_end_maintenance(ledger: Ledger) -> None:
    _base_in_file(ledger)
    _hot(ledger, 6, maintained=False)
    damaged = keys.segment(ledger.id, _listed(ledger)[2].ident)
    for name, raw in ledger.raw.hgetall(damaged).items():
        ledger.raw.hset(damaged, name, raw[:-1] + bytes([raw[-1] ^ 1]))
    ledger.provider.get_store(ledger.at).abort()
    ledger.provider.do_maintenance()
    assert not _runs(ledger)


def test_merge_ends_once_its_rows_are_too_many(ledger: Ledger) -> None:
    _base_in_file(ledger)
    ledger.commit(8, rows=100)
    ledger.provider.get_store(ledger.at).abort()
    read: list[str] = []

    def noting(fetch: Fetch, segment: Segment) -> SegmentContent:
        read.append(segment.ident)
        return read_whole(fetch, segment)

    with mock.patch.object(hot_run, "read_whole", noting):
        partition = ledger.partition()
        assert add_hot_run(partition, partition.open("", None), Bound(200_000, 0)) is None
    assert len(read) == 3


@pytest.mark.parametrize("ends", ["snapshot", "rewind", "bound", "purge", "room"])
def test_hot_run_ends(ledger: Ledger, ends: str) -> None:
    run = _with_run(ledger)
    partition, meta = ledger.partition(), keys.meta(ledger.id)
    if ends == "snapshot":
        assert add_snapshot(partition, partition.open("", ledger.at)) is not None
    elif ends == "rewind":
        at = partition.open("", run.version - 1).pin
        partition.acquire(register_run(ledger.client, ledger.gen, "other", by_driver=True), at)
    elif ends == "bound":
        ledger.client.script("test", script("bound"), [meta], ["0"])
    elif ends == "purge":
        ledger.client.script("test", script("purge"), [meta], ["60000", ledger.gen, ""])
    else:
        while make_room(ledger.client, ledger.id, MIB):
            pass
    assert not _runs(ledger)
    assert 0 < ledger.raw.pttl(_key(ledger, run)) <= 60_000
    if ends in ("snapshot", "bound", "room"):
        ledger.check()


@pytest.mark.parametrize(
    ("changed", "reply"),
    [
        ({}, "OK"),
        ({0: "1000"}, "STALE"),  # above the opened version
        ({1: "f" * 32}, "STALE"),  # of another timeline
        ({3: "0"}, "STALE"),  # over nothing
        ({4: "f" * 32}, "STALE"),  # over another timeline
        ({3: "parent", 4: "parent"}, "STALE"),  # over a delta
    ],
)
def test_hot_run_is_entered_over_a_base_of_its_lineage(
    ledger: Ledger, changed: dict[int, str], reply: str
) -> None:
    run = _with_run(ledger)
    value = _runs(ledger)[run.field].split(" ", 2)[2]
    writer = "a" * 32
    staged = keys.staged(ledger.id, f"r:{run.version}:{writer}")
    ledger.raw.copy(_key(ledger, run), staged)
    drop_hot_runs(ledger.client, ledger.id)
    args = [str(run.version), run.uid, writer, str(run.parent.version), run.parent.uid]
    args.append(value.replace(run.entry.ref, writer))
    below = next(one for one in _listed(ledger, hot_runs=False) if one.version < run.version)
    parent = {3: str(below.version), 4: below.uid}
    for at, word in changed.items():
        args[at] = parent[at] if word == "parent" else word
    found = ledger.client.script(
        "test",
        script("hotrun"),
        [keys.meta(ledger.id), keys.segment(ledger.id, f"r:{args[0]}:{writer}"), staged],
        args,
    )
    assert found == [reply]
    assert not ledger.raw.exists(staged)
    assert len(_runs(ledger)) == (reply == "OK")


def test_hot_run_needs_all_its_blocks_and_a_bound(ledger: Ledger) -> None:
    run = _with_run(ledger)
    partition = ledger.partition()
    drop_hot_runs(ledger.client, ledger.id)
    assert not hot_runs.enter(ledger.client, ledger.id, run)
    bound = bound_of(ledger.client, ledger.id)
    assert bound is not None
    opened = partition.open("", None)
    ledger.client.script("test", script("bound"), [keys.meta(ledger.id)], ["0"])
    assert add_hot_run(partition, opened, bound) is None
    assert not _runs(ledger)


def test_too_large_hot_run_is_tried_again_far_above_its_base(ledger: Ledger) -> None:
    _base_in_file(ledger)
    base = _bases(ledger)
    tried: list[int] = []

    def noting(partition: PartitionClient, opened: Opened, bound: Bound) -> None:
        tried.append(opened.pin.version - base)
        assert add_hot_run(partition, opened, bound) is None

    with mock.patch.object(hot_run, "add_hot_run", noting):
        for _ in range(12):
            ledger.commit(1, rows=100)
            ledger.provider.do_maintenance()
    # The newest version that a process has committed is not confirmed yet.
    assert tried in ([4, 8], [5, 10])
    ledger.check()
