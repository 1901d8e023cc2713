"""Figures of a bound: status, tools, exporter, causes, and the counters of a store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from redis_state import config, keys
from redis_state.cli.main import main
from redis_state.exporter import QueryCollector
from redis_state.live import Reader
from redis_state.maintain.compaction import add_snapshot
from redis_state.places.room import bound_of
from redis_state.reader import CauseKind, QueryStatus
from redis_state.status.file_causes import file_causes
from redis_state.status.query_status import FileTally
from tests.contract.bound_scene import MIB, Ledger, opened_ledger
from tests.support.redis_server import RedisServer


@pytest.fixture
def ledger(redis_server: RedisServer, tmp_path: Path) -> Iterator[Ledger]:
    with opened_ledger(redis_server.url, tmp_path) as made:
        made.commit(8)
        yield made


def status_of(ledger: Ledger) -> QueryStatus:
    with Reader(config.parse({"url": ledger.url})) as reader:
        return reader.query("ledger").status()


def printed(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], *words: str
) -> list[dict[str, object]]:
    assert main([*words, "--url", ledger.url, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_all_tools_have_one_bound(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    found = bound_of(ledger.client, ledger.id)
    assert found is not None
    status = status_of(ledger)
    (one,) = status.partitions
    assert (one.share, one.share_bytes) == (MIB, found.bytes)
    assert status.share_ratio == found.bytes / MIB
    assert MIB // 4 < one.largest_change < MIB // 2
    shares = {"share": MIB, "share_bytes": found.bytes}
    for words in (("size", "ledger", "--by", "partition"), ("places", "ledger")):
        (row,) = printed(ledger, capsys, *words)
        assert {name: row[name] for name in shares} == shares
    with Reader(config.parse({"url": ledger.url})) as reader:
        samples = {
            sample.name: sample.value
            for family in QueryCollector(reader).collect()
            for sample in family.samples
        }
    assert samples["redis_state_share_bytes"] == MIB
    assert samples["redis_state_share_ratio"] == found.bytes / MIB
    assert samples["redis_state_share_change_ratio"] == one.largest_change / MIB
    assert main(["show", "ledger", "--url", ledger.url, "--format", "table"]) == 0
    assert "of the fullest share" in capsys.readouterr().out


def test_query_without_a_bound_has_no_shares(
    redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(redis_server.url, tmp_path / "segments")
    ledger.provider.close()
    ledger.provider = ledger.new_provider(redis_memory=None)
    ledger.commit(1, rows=5)
    status = status_of(ledger)
    assert status.share_ratio is None
    assert [one.share for one in status.partitions] == [0]
    (row,) = printed(ledger, capsys, "places", "ledger")
    assert (row["share"], row["share_bytes"]) == (None, None)
    ledger.provider.close()
    ledger.client.close()


def test_commits_that_wait_for_a_file_are_counted(ledger: Ledger) -> None:
    totals = ledger.provider.counters.totals()
    assert totals["roomWaits"] >= 2
    assert ledger.provider.counters.values["room_wait_ms"] == totals["roomWaitMs"]


def test_doctor_names_files_that_stay(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    partition = ledger.partition()
    for _ in range(2):
        assert add_snapshot(partition, partition.open("", None)) is not None
        ledger.commit(2)
    ledger.raw.hset(keys.meta(ledger.id), "n", "1")
    partition.retain()
    assert main(["doctor", "ledger", "--url", ledger.url]) == 0
    assert "files-stay: " in capsys.readouterr().out
    assert main(["places", "ledger", "--sweep", "--url", ledger.url, "--format", "table"]) == 0
    assert "younger than placesGrace" in capsys.readouterr().out
    kinds = {cause.kind for cause in file_causes(status_of(ledger))}
    assert kinds == {CauseKind.FILES_STAY}


def test_doctor_names_the_partition_of_a_full_share(
    ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger.raw.hset(keys.meta(ledger.id), "h", f"{MIB} {MIB}")
    assert main(["doctor", "ledger", "--url", ledger.url]) == 0
    assert "full-share, operator 0, partition 0: " in capsys.readouterr().out


def test_full_and_small_shares_are_causes(ledger: Ledger) -> None:
    status = status_of(ledger)
    (store,) = status.stores
    (one,) = store.partitions

    def causes(**given: Any) -> list[CauseKind]:
        members: dict[str, Any] = {"files": FileTally(), "share_bytes": 0, **given}
        changed = replace(one, **members)
        grown = replace(status, stores=(replace(store, partitions=(changed,)),))
        return [cause.kind for cause in file_causes(grown)]

    assert causes() == []
    assert causes(share_bytes=MIB) == [CauseKind.FULL_SHARE]
    assert causes(largest_change=MIB // 2) == [CauseKind.SMALL_SHARE]
    assert causes(files=FileTally(condemned=1)) == [CauseKind.FILES_STAY]
    assert causes(share=0, share_bytes=MIB, files=FileTally(condemned=1)) == []
