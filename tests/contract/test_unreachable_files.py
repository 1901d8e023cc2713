"""Files that a machine cannot read, or that are damaged: other work there goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redis_state.errors import ConfigError, UnavailableError
from redis_state.files import Folder
from redis_state.forks import fork
from redis_state.ids import StateStoreId
from redis_state.maintain.checkpoint import maintain_checkpoint
from redis_state.maintain.files import verify_files
from redis_state.maintain.history import move_history
from redis_state.maintain.report import Policy
from redis_state.protocol import checkpoint_gen
from redis_state.recovery.doctor import diagnose
from tests.contract.test_history_in_files import Orders, rows
from tests.support.redis_server import RedisServer

DEEP = Policy("w", deep=True)
FORK = StateStoreId("copy", 0, 0)


@pytest.fixture
def orders(redis_server: RedisServer, tmp_path: Path) -> Iterator[Orders]:
    """The store has a fork, whose segments are in files of the store."""
    found = Orders(redis_server.url, tmp_path / "segments")
    found.commit(5)
    fork(found.url, "orders", to=FORK.checkpoint)
    found.commit(1)
    found.snapshot()
    found.commit(1)
    assert move_history(found.client, found.id).segments > 0
    found.drop_keys()
    yield found
    found.close()


def fork_of(orders: Orders) -> str:
    gen = checkpoint_gen(orders.client, FORK.checkpoint, tenant="", create=False)
    assert gen is not None
    return gen


def test_deep_pass_without_the_folder_reports_it_and_ends(orders: Orders) -> None:
    aside = orders.folder.rename(orders.folder.with_name("aside"))
    report = maintain_checkpoint(orders.client, orders.gen, policy=DEEP)
    assert any("does not exist" in problem for problem in report.problems)
    aside.rename(orders.folder)
    assert maintain_checkpoint(orders.client, orders.gen, policy=DEEP).problems == []


@pytest.mark.parametrize("kind", [ConfigError, UnavailableError])
def test_pass_over_a_fork_reports_that_files_of_its_parent_cannot_be_read(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    gen = fork_of(orders)

    def refuse(*_: object) -> None:
        raise kind("reading a file", found="the file system refuses")

    monkeypatch.setattr(Folder, "read_ranges", refuse)
    report = maintain_checkpoint(orders.client, gen, policy=Policy("w"))
    assert any("the file system refuses" in problem for problem in report.problems)
    monkeypatch.undo()
    assert maintain_checkpoint(orders.client, gen, policy=Policy("w")).problems == []


def test_damaged_file_is_a_finding_of_the_doctor_and_of_a_pass(orders: Orders) -> None:
    (file,) = orders.files()
    whole = file.read_bytes()
    file.write_bytes(bytes(len(whole)))
    (health,) = diagnose(orders.client, orders.gen).partitions
    assert set(health.broken) == set(orders.placed())
    assert max(health.loadable) == orders.at
    (forked,) = diagnose(orders.client, fork_of(orders)).partitions
    assert len(forked.broken) == 5
    report = maintain_checkpoint(orders.client, fork_of(orders), policy=Policy("w"))
    assert sum("has 0 of 2 blocks" in problem for problem in report.problems) == 5
    file.write_bytes(whole)
    assert orders.rows_at(2) == rows(2)


def test_verification_distinguishes_a_missing_folder_from_a_lost_file(orders: Orders) -> None:
    (file,) = orders.files()
    file.unlink()
    assert all("FILE_LOST" in problem for problem in verify_files(orders.client, orders.id))
    orders.folder.rename(orders.folder.with_name("aside"))
    problems = list(verify_files(orders.client, orders.id))
    assert len(problems) == len(orders.placed())
    assert all("does not exist" in problem for problem in problems)
