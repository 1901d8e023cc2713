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
    refuse_running_query(Namespace(checkpoint=str(tmp_path)), attempted="moving")
    assert "make sure that it is stopped" in capsys.readouterr().out


def test_state_that_is_in_redis_is_not_read_from_the_server_that_it_goes_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "old" / "state"
    state.mkdir(parents=True)
    (state / "_redis_state").write_text(json.dumps({"format": 1, "gen": "0" * 32, "path": ""}))
    where = ["--checkpoint", str(tmp_path / "old"), "--to-checkpoint", str(tmp_path / "new")]
    assert main(["migrate", *where, "--to", "redis://localhost:1/0"]) != 0
    assert "choosing a server; none is named" in capsys.readouterr().err
