"""State that one Spark minor wrote opens under the next, and goes on as if nothing had changed.

Runs on the newer minor; the older one's environment is made by `make env-4.1` and so on. The first
test runs all queries, for longer than a test may take: `python tools/compatibility.py 4.3 --
tests/upgrades` gives it the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.spark.streams import REDIS
from tests.support.redis_server import RedisServer
from tests.upgrades.job import QUERIES

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 900
MINORS = ("4.0", "4.1", "4.2", "4.3")
RUNNING = ".".join(pyspark.__version__.split(".")[:2])

Result = dict[str, Any]
Run = Callable[..., dict[str, Result]]


def _python_of(minor: str) -> str:
    if minor == RUNNING:
        return sys.executable
    program = ROOT / f".venv-{minor}" / "bin" / "python"
    if not program.exists():
        pytest.skip(f"there is no environment of Spark {minor}: run `make env-{minor}`")
    return str(program)


def _run(minor: str, url: str, folder: Path, parts: str) -> dict[str, Result]:
    arguments = [REDIS, url, str(folder), parts, *QUERIES]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    # Tests of this process may have set the home of the Spark that is running.
    env.pop("SPARK_HOME", None)
    done = subprocess.run(
        [_python_of(minor), "-m", "tests.upgrades.job", *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {result["query"]: result for result in results}


@pytest.fixture(scope="module")
def upgraded(
    shared_redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Result]]:
    """Runs each query: its part on the older minor, on the newer one, and both on the newer one."""
    older = MINORS[MINORS.index(RUNNING) - 1]
    url = shared_redis_server.url
    crossed, stayed = (tmp_path_factory.mktemp(name) for name in ("crossed", "stayed"))
    runs = ((older, crossed, "0"), (RUNNING, crossed, "1"), (RUNNING, stayed, "01"))
    return [_run(minor, url, folder, parts) for minor, folder, parts in runs]


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.compatibility(
    "state of the minor before", "{query}", absent={MINORS[0]: "there is none before"}
)
def test_state_of_the_previous_minor_continues(
    upgraded: list[dict[str, Result]], query: str
) -> None:
    before, after, alone = (run[query] for run in upgraded)
    for result in (before, after, alone):
        assert "error" not in result, result["error"]
    assert {**before["output"], **after["output"]} == alone["output"]
    assert any(after["output"].values()), "nothing came out after the change"
