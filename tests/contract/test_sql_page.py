"""The examples of docs/sql.md, run as they stand against a planted query."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

import pytest

from redis_state.cli.main import main
from tests.contract.planting import Planted
from tests.support.pages import fenced
from tests.support.redis_server import RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sql.md"
URL = "redis://localhost:6379/0"
blocks = partial(fenced, PAGE)


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    planted = Planted(redis_server.client())
    planted.register()
    planted.commit(1, [({"carrier": "UA"}, {"count": 1, "total": 0.5})])
    planted.commit(2, [({"carrier": "UA"}, {"count": 2, "total": 1.5})])
    return redis_server.url


def test_the_example_prints_what_the_page_says(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,), (printed,) = blocks("python"), blocks("text")
    assert URL in code
    exec(code.replace(URL, url), {})
    assert capsys.readouterr().out == printed


def test_the_commands_run(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for line in blocks("sh")[0].splitlines():
        words = shlex.split(line.replace(URL, url))
        assert words[0] == "redis-state"
        assert main(words[1:]) == 0
        printed.append(capsys.readouterr().out)
    assert printed == [
        '{"carrier": "UA", "count": 2, "total": 1.5}\n',
        "count_star()\n1\n",
        '{"max(count)": 1}\n',
    ]
