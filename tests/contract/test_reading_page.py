"""The examples of docs/reading.md, run as they stand against a planted query."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from redis_state.cli.main import main
from tests.contract.planting import GEN, Planted
from tests.support.redis_server import RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reading.md"
URL = "redis://localhost:6379/0"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.M)


@pytest.fixture
def flights(redis_server: RedisServer) -> str:
    planted = Planted(redis_server.client())
    planted.register()
    planted.commit(1, [({"carrier": "UA"}, {"count": 1, "total": 0.5})])
    planted.commit(2, [({"carrier": "UA"}, {"count": 2, "total": 1.5})])
    return redis_server.url


def test_the_python_examples_run(flights: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[str] = []
    scope: dict[str, object] = {}
    for code in blocks("python"):
        assert URL in code
        exec(code.replace(URL, flights), scope)
        printed.append(capsys.readouterr().out)
    first = [text.split()[0] for text in printed[:4]]
    assert first == ["flights", "{'count':", "UA", "{'count':"]
    assert printed[1] == blocks("text")[0]
    assert printed[2] == "UA 2\n"
    assert printed[5] == "UA {'count': 1, 'total': 0.5} -> {'count': 2, 'total': 1.5}\n"
    assert printed[6] == next(text for text in blocks("text") if text.startswith("1 "))
    assert printed[7:9] == ["{'UA': 2} after batch 1\n", "1 1 rows\n"]
    assert re.fullmatch(r"flights 1 1 \d+ False\n", printed[4])


def test_the_commands_run(flights: str, capsys: pytest.CaptureFixture[str]) -> None:
    for line in blocks("sh")[0].splitlines():
        words = line.replace(URL, flights).replace("<gen>", GEN).split()
        assert words[0] == "redis-state"
        assert main(words[1:]) == 0
        assert capsys.readouterr().out
