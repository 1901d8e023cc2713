"""A password that is looked for in everything that Spark and redis-state write or show."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.application]

ROOT = Path(__file__).resolve().parents[2]
CANARY = "canary7f3a91c2"
LIMIT_S = 240  # for a machine that is busy with other work


@pytest.fixture
def written(start_redis: Callable[..., RedisServer], tmp_path: Path) -> dict[str, str]:
    """Every text that a job with a password left behind, by what it is."""
    server = start_redis(password=CANARY)
    command = [sys.executable, str(Path(__file__).with_name("canary_job.py"))]
    done = subprocess.run(
        [*command, str(tmp_path), server.url, CANARY],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr.replace(CANARY, "<canary>")[-4000:]
    texts = {"stdout": done.stdout, "log": done.stderr}
    for path in tmp_path.rglob("*"):
        if path.is_file():
            texts[str(path.relative_to(tmp_path))] = path.read_bytes().decode(errors="replace")
    return texts


def test_password_is_never_written_or_shown(written: dict[str, str]) -> None:
    leaks = {name: around(text) for name, text in written.items() if CANARY in text}
    assert leaks == {}

    # What was searched is what it should be: each place tells of the redis options.
    assert "DEBUG org.apache.spark.sql.execution.streaming" in written["log"]
    assert "Registered run" in written["log"]
    assert "Optimized Logical Plan" in written["stdout"]
    assert "[REDIS_PERMISSION]" in written["errors"]
    pages = [text for name, text in written.items() if name.startswith("pages/")]
    shown = dict(text.split("\n", 1) for text in pages)
    environment = next(path for path in shown if path.startswith("api/") and "environment" in path)
    assert "stateStore.redis.password" in shown[environment]
    assert "stateStore.redis.url" in shown[environment]
    assert "with_wrong_password" in shown["StreamingQuery/"]
    events = [text for name, text in written.items() if name.startswith("events/") and text]
    assert any("stateStore.redis.password" in text and "redacted" in text for text in events)


def around(text: str) -> str:
    at = text.index(CANARY)
    return text[max(0, at - 200) : at] + "<canary>"
