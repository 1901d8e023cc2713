"""The commands that read, against planted state."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from redis_state.cli.arguments.place import ABSENT_STATUS
from redis_state.cli.main import main
from tests.contract.planting import GEN, QUERY_ID, Planted, family, schema
from tests.support.redis_server import RedisServer

UA = {"carrier": "UA"}


@pytest.fixture
def planted(redis_server: RedisServer) -> Planted:
    planted = Planted(redis_server.client())
    planted.register()
    planted.commit(1, [(UA, {"count": 1, "total": 0.5})])
    planted.commit(2, [(UA, {"count": 2, "total": 1.5})])
    return planted


def _get(server: RedisServer, *arguments: str, query: str = "flights") -> int:
    return main(["get", query, "--url", server.url, *arguments])


@pytest.mark.usefixtures("planted")
def test_queries_are_listed(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queries", "--url", redis_server.url]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["gen"], found["id"], found["name"]) == (GEN, QUERY_ID, "flights")
    assert (found["created_ms"], found["seen_ms"]) == (1, 2)


@pytest.mark.usefixtures("planted")
def test_a_key_is_printed(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert _get(redis_server, "carrier=UA") == 0
    assert json.loads(capsys.readouterr().out) == {"count": 2, "total": 1.5}
    assert _get(redis_server, "--version", "1", "carrier=UA", query=GEN) == 0
    assert json.loads(capsys.readouterr().out) == {"count": 1, "total": 0.5}


@pytest.mark.usefixtures("planted")
def test_an_absent_key_is_null_and_has_a_status_of_its_own(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for pair in ("carrier=ZZ", "carrier:=null"):
        assert _get(redis_server, pair) == ABSENT_STATUS
        assert json.loads(capsys.readouterr().out) is None


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["carrier=UA", "--operator", "5"], "no such operator"),
        (["carrier=UA", "--version", "99"], "STATE_LOST"),
        (["airline=UA"], "Key columns: carrier"),
        ([], "'carrier' is missing"),
    ],
)
def test_wrong_argument_is_named_on_standard_error(
    redis_server: RedisServer,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    assert _get(redis_server, *arguments) == 1
    caught = capsys.readouterr()
    assert said in caught.err
    assert not caught.out


@pytest.mark.usefixtures("planted")
def test_an_unknown_query_names_the_nearest(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _get(redis_server, "carrier=UA", query="flihgts") == 1
    caught = capsys.readouterr()
    assert "Did you mean 'flights'" in caught.err
    assert not caught.out


def test_numbers_are_read_by_the_columns_type(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    types = family(schema(user="long", day="date"), schema(count="long"))
    planted = Planted(redis_server.client(), family=types)
    planted.register()
    planted.commit(1, [({"user": 7, "day": date(2013, 1, 31)}, {"count": 3})])
    assert _get(redis_server, "day=2013-01-31", "user=7") == 0
    assert json.loads(capsys.readouterr().out) == {"count": 3}


def test_a_password_comes_from_the_environment_or_a_file(
    start_redis: Callable[..., RedisServer],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = start_redis(password="right-secret")
    file = tmp_path / "password"
    file.write_text("right-secret\n", "utf-8")
    arguments = ["queries", "--url", server.url, "--deadline", "1s"]
    assert main(arguments) == 1
    assert main([*arguments, "--password-file", str(file)]) == 0
    monkeypatch.setenv("REDIS_STATE_PASSWORD", "right-secret")
    assert main(arguments) == 0
    monkeypatch.setenv("REDIS_STATE_PASSWORD", "wrong-secret")
    assert main(arguments) == 1
    assert main([*arguments, "--password-file", str(file)]) == 0
    assert "-secret" not in capsys.readouterr().err


def test_a_password_in_the_url_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queries", "--url", "redis://:right-secret@localhost"]) == 1
    assert "right-secret" not in capsys.readouterr().err
