"""Where the commands that move rows look for the running query, and for the state."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from redis_state.cli.main import main
from redis_state.cli.profile import PROFILE_VARIABLE, URL_VARIABLE
from redis_state.cli.session import refuse_running_query


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
