"""Rows that a Python store reads from files together, before they are asked for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from redis_state.errors import UnavailableError
from redis_state.files.local import LocalFiles
from tests.contract.bound_scene import Ledger, opened_ledger
from tests.support.redis_server import RedisServer


@pytest.fixture
def ledger(redis_server: RedisServer, tmp_path: Path) -> Iterator[Ledger]:
    """A ledger whose base, of about 3 MiB, is in a file."""
    with opened_ledger(redis_server.url, tmp_path) as made:
        made.place_base()
        yield made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of ranges of each read of a file, one after the other."""
    found: list[int] = []
    read_ranges = LocalFiles.read_ranges

    def counted(files: LocalFiles, path: str, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        found.append(len(spans))
        return read_ranges(files, path, spans)

    monkeypatch.setattr(LocalFiles, "read_ranges", counted)
    return found


def scattered(ledger: Ledger) -> list[str]:
    return sorted(ledger.rows)[::40]


def opened(ledger: Ledger, *, writes: bool) -> Any:
    provider = ledger.new_provider()
    return provider.get_store(ledger.at) if writes else provider.get_read_store(ledger.at)


@pytest.mark.parametrize("writes", [False, True])
def test_prefetched_rows_are_read_at_once(ledger: Ledger, reads: list[int], writes: bool) -> None:
    names = scattered(ledger)
    alone = opened(ledger, writes=writes)
    reads.clear()
    assert [alone.get(name) for name in names] == [ledger.rows[name] for name in names]
    singly = len(reads)
    store = opened(ledger, writes=writes)
    reads.clear()
    assert store.prefetch(names) == len(names)
    assert len(reads) <= 2 < singly
    reads.clear()
    assert [store.get(name) for name in names] == [ledger.rows[name] for name in names]
    assert reads == []
    assert store.prefetch([*names, "absent"]) == len(names) + 1


def test_error_of_a_prefetch_is_left_to_the_get(ledger: Ledger) -> None:
    store = opened(ledger, writes=False)
    aside = ledger.folder.with_name("aside")
    shutil.move(ledger.folder, aside)
    names = scattered(ledger)
    assert store.prefetch(names) == 0
    with pytest.raises(UnavailableError, match="does not exist"):
        [store.get(name) for name in names]
    shutil.move(aside, ledger.folder)
    assert store.prefetch(names) == len(names)
    assert [store.get(name) for name in names] == [ledger.rows[name] for name in names]
