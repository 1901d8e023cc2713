"""Locations of the query and the state for commands that move rows, and their resources.
of a machine.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path

import pytest

from redis_state.cli.arguments import session
from redis_state.cli.arguments.profile import PROFILE_VARIABLE, URL_VARIABLE
from redis_state.cli.arguments.session import refuse_running_query
from redis_state.cli.main import main
from redis_state.errors import ConfigError

MIB = 1 << 20


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (URL_VARIABLE, PROFILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def test_query_of_another_provider_prints_a_reminder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = Namespace(checkpoint=str(tmp_path), storage_options=None)
    refuse_running_query(given, attempted="moving")
    assert "make sure that it is stopped" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["migrate", "rescale", "bootstrap"])
def test_options_of_a_file_system_are_read(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = {
        "migrate": ["--to", "rocksdb"],
        "rescale": ["--partitions", "8", "--yes"],
        "bootstrap": ["--rows", "rows", "--yes"],
    }[command]
    where = ["--checkpoint", "memory://old", "--to-checkpoint", "memory://new"]
    options = ["--storage-options", str(tmp_path / "missing.json")]
    assert main([command, "--url", "redis://localhost:1/0", *where, *options, *more]) == 1
    assert "missing.json" in capsys.readouterr().err


def test_source_server_is_not_taken_from_the_target_url(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "old" / "state"
    state.mkdir(parents=True)
    (state / "_redis_state").write_text(json.dumps({"format": 1, "gen": "0" * 32, "path": ""}))
    where = ["--checkpoint", str(tmp_path / "old"), "--to-checkpoint", str(tmp_path / "new")]
    assert main(["migrate", *where, "--to", "redis://localhost:1/0"]) != 0
    assert "choosing a server; no server is named" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("heap_mib", "cores", "tasks"),
    [(1_024, 8, 4), (1_024, 2, 2), (2_048, 64, 11), (65_536, 64, 64), (128, 4, 1)],
)
def test_tasks_are_limited_by_memory(heap_mib: int, cores: int, tasks: int) -> None:
    assert session.tasks_in(heap_mib * MIB, cores) == tasks


def test_heap_size_comes_from_the_conf_or_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, mib in (("2g", 2_048), ("512m", 512), ("512", 512), ("1048576KB", 1_024)):
        assert session.heap_of({session.HEAP: text}) == mib * MIB
    with pytest.raises(ConfigError, match=r"spark\.driver\.memory.* such as 4g or 512m"):
        session.heap_of({session.HEAP: "much"})
    for memory_mib, mib in ((1_024, 1_024), (24_576, 12_288)):
        monkeypatch.setattr(session, "memory_of_machine", lambda of=memory_mib: of * MIB)
        assert session.heap_of({}) == mib * MIB
    assert 1 <= session.cores_of_machine() <= (os.cpu_count() or 1)


def test_container_limit_bounds_the_heap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [tmp_path / "none", tmp_path / "unlimited", tmp_path / "limited"]
    limits[1].write_text("max\n")
    limits[2].write_text(f"{512 * MIB}\n")
    monkeypatch.setattr(session, "_CONTAINER_LIMITS", limits[:2])
    assert session.memory_of_machine() > 512 * MIB
    monkeypatch.setattr(session, "_CONTAINER_LIMITS", limits)
    assert session.memory_of_machine() == 512 * MIB
