"""The examples of docs/time-to-live.md, run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "time-to-live.md"
URL = "redis://localhost:6379/0"
EXAMPLE = re.compile(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.DOTALL | re.M)


def test_the_examples_print_what_the_page_says(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    scope: dict[str, object] = {"__name__": "page"}
    # A job of Spark comes first: tests/spark/test_time_to_live.py runs it.
    _, of_python = PAGE.read_text("utf-8").split("## State in Python")
    for code, expected in EXAMPLE.findall(of_python):
        text = code.replace(URL, redis_server.url)
        exec(compile(text, PAGE.name, "exec", dont_inherit=True), scope)
        assert capsys.readouterr().out == expected
