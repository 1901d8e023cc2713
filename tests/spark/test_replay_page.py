"""The commands and files of docs/replay.md, run as they stand."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import fenced
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.application, pytest.mark.slow]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "replay.md"
ROOT = PAGE.parents[1]
LIMIT_S = 240


@pytest.mark.timeout(3 * LIMIT_S)
def test_the_page_leads_from_a_query_to_a_test(redis_server: RedisServer, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()

    def here(text: str) -> str:
        text = text.replace("redis://localhost:6379/0", redis_server.url)
        return text.replace("/data/shop", str(folder))

    names = ("orders.py", "new.py", "test_orders.py")
    for name, code in zip(names, fenced(PAGE, "python"), strict=True):
        (tmp_path / name).write_text(here(code))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }

    def run(command: str) -> subprocess.CompletedProcess[str]:
        words = shlex.split(here(command).replace("\\\n", " "))
        modules = {"redis-state": "redis_state", "pytest": "pytest"}
        program = ["-m", modules[words[0]]] if words[0] in modules else []
        return subprocess.run(
            [sys.executable, *program, *words[1:]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    produce, compare, test = fenced(PAGE, "bash")
    assert (made := run(produce)).returncode == 0, made.stderr[-3000:]
    found = run(compare)
    assert found.returncode == 1, found.stderr[-3000:]
    assert "3 keys changed in production, 3 in the replay; 3 differ" in found.stdout
    assert "3 rows only in production, 3 only in the replay" in found.stdout
    tested = run(test)
    assert tested.returncode == 0, tested.stdout[-3000:] + tested.stderr[-2000:]
    assert "2 passed" in tested.stdout
