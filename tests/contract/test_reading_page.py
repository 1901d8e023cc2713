"""The examples of docs/reading.md, run as they stand against a planted query."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from redis_state.cli.main import main
from tests.contract.planting import GEN, Planted
from tests.support.pages import fenced
from tests.support.redis_server import RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reading.md"
URL = "redis://localhost:6379/0"
blocks = partial(fenced, PAGE)


@pytest.fixture
def flights(redis_server: RedisServer) -> str:
    planted = Planted(redis_server.client())
    planted.register()
    first = [({"carrier": "UA"}, {"count": 1, "total": 0.5})]
    first.append(({"carrier": "AA"}, {"count": 7, "total": 3.5}))
    planted.commit(1, [(dict(key), dict(value)) for key, value in first])
    planted.commit(2, [({"carrier": "UA"}, {"count": 2, "total": 1.5})])
    return redis_server.url


def test_the_python_examples_run(flights: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[str] = []
    scope: dict[str, object] = {}
    for code in blocks("python"):
        assert URL in code
        exec(code.replace(URL, flights), scope)
        printed.append(capsys.readouterr().out)
    assert printed[0].startswith("flights ")
    assert printed[1:3] == blocks("text")[:2]
    assert sorted(printed[3].splitlines()) == ["AA 7", "UA 2"]
    assert printed[4] == "{'carrier': 'AA', 'total': 3.5}\n2\n"
    assert printed[5] == "2 ['carrier', 'count', 'total']\n"
    one, two = "{'count': 1, 'total': 0.5}", "{'count': 2, 'total': 1.5}"
    assert printed[6] == f"{one}\n{two}\n"
    assert printed[7] == f"2 1 {two} 2\n"
    assert printed[8] == f"{two} 1\n"
    assert re.fullmatch(r"flights 1 2 \d+ False\n", printed[9])
    assert printed[10] == f"UA {one} -> {two}\n"
    assert printed[11] == next(text for text in blocks("text") if text.startswith("1 "))
    assert printed[12].endswith(" after batch 1\n")
    assert printed[13] == "1 2 rows\n"
    assert printed[14] == "2\n"
    rows = ["{'carrier': 'AA'}", "{'carrier': 'UA'}"]
    assert sorted(printed[15].splitlines()) == sorted([two, *rows])


def test_the_commands_run(flights: str, capsys: pytest.CaptureFixture[str]) -> None:
    for line in blocks("sh")[0].splitlines():
        words = line.replace(URL, flights).replace("<gen>", GEN).split()
        assert words[0] == "redis-state"
        assert main(words[1:]) == 0
        assert capsys.readouterr().out
