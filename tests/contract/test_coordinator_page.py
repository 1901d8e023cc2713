"""The examples of docs/coordinator.md, run as they stand, on a fresh server."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

from redis_state import keys
from redis_state.ids import StateStoreId
from tests.support.redis_server import RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coordinator.md"
URL = "redis://localhost:6379/0"
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.DOTALL | re.M)


def test_the_examples_run(redis_server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE.read_text("utf-8")
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("```python\n") == 1
    scope: dict[str, object] = {}
    for code, printed in examples:
        assert URL in code
        exec(code.replace(URL, redis_server.url), scope)
        assert capsys.readouterr().out == printed
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"redis-state-heartbeat", "redis-state-maintenance"}
    with redis_server.client() as raw:
        (gen,) = (name.decode() for name in raw.hvals(keys.names()))
        for partition in (3, 4):
            key = keys.instance(StateStoreId("orders", 0, partition).partition(gen))
            assert not raw.get(key), "stop takes it away"
