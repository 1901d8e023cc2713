"""Where the commands that move rows look for the running query and the state, and what they take
of a machine.
"""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from redis_state.cli import session
from redis_state.cli.main import main
from redis_state.cli.profile import PROFILE_VARIABLE, URL_VARIABLE
from redis_state.cli.session import refuse_running_query

MIB = 1 << 20


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (URL_VARIABLE, PROFILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def test_of_another_provider_it_is_only_said_that_it_cannot_be_seen(
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


def test_state_that_is_in_redis_is_not_read_from_the_server_that_it_goes_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "old" / "state"
    state.mkdir(parents=True)
    (state / "_redis_state").write_text(json.dumps({"format": 1, "gen": "0" * 32, "path": ""}))
    where = ["--checkpoint", str(tmp_path / "old"), "--to-checkpoint", str(tmp_path / "new")]
    assert main(["migrate", *where, "--to", "redis://localhost:1/0"]) != 0
    assert "choosing a server; none is named" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("memory_mib", "cores", "heap_mib", "tasks"),
    [
        (1_024, 8, 1_024, 4),
        (2_048, 2, 1_024, 2),
        (4_096, 64, 2_048, 11),
        (24_576, 2, 12_288, 2),
        (131_072, 64, 65_536, 64),
    ],
)
def test_each_task_has_room(memory_mib: int, cores: int, heap_mib: int, tasks: int) -> None:
    assert session.place_for_tasks(memory_mib * MIB, cores) == (heap_mib * MIB, tasks)


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [tmp_path / "none", tmp_path / "unlimited", tmp_path / "limited"]
    limits[1].write_text("max\n")
    limits[2].write_text(f"{512 * MIB}\n")
    monkeypatch.setattr(session, "_CONTAINER_LIMITS", limits[:2])
    assert session.memory_of_machine() > 512 * MIB
    monkeypatch.setattr(session, "_CONTAINER_LIMITS", limits)
    assert session.memory_of_machine() == 512 * MIB
