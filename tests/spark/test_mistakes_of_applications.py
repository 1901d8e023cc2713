"""Mistakes in how an application is set up: its user reads last what the docs show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from redis_state.spark.jars import jar_path, running_pyspark_version
from tests.support.errors_page import documented
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.application]

ROOT = Path(__file__).resolve().parents[2]
SECTION = "applications"


def last_of(folder: Path, url: str, jar: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.set_up_job", str(folder), url, jar],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        timeout=240,
        check=False,
    )
    assert done.returncode == 1
    caused = [line for line in done.stderr.splitlines() if line.startswith("Caused by: ")]
    return caused[-1].removeprefix("Caused by: ")


def test_missing_jar_shows_the_documented_error(redis_server: RedisServer, tmp_path: Path) -> None:
    said = last_of(tmp_path, redis_server.url, "")
    assert said == documented(SECTION)["No jar of redis-state"]


def test_jar_of_another_spark_shows_the_documented_error(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    said = last_of(tmp_path, redis_server.url, str(jar_path("4.2")))
    running = running_pyspark_version()
    text = documented(SECTION)["The jar of another Spark"]
    assert said == text.replace("Spark 4.3.0 runs", f"Spark {running} runs")
