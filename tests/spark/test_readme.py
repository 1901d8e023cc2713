"""The README's quick start and conf lines, and the ways in beside them, as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import redis_state
from redis_state import stores
from redis_state.cli.main import main
from tests.spark.streams import Output, Streams
from tests.support.pages import fenced
from tests.support.redis_server import RedisServer

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
WAYS_IN = ROOT / "docs/ways-in.md"
LIMIT_S = 240
STOPPING = "The query is stopped now."
URL = "redis://localhost:6379/0"


@pytest.mark.application
def test_the_quick_start_runs_in_a_fresh_process(tmp_path: Path) -> None:
    settings = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    settings["PYTHONPATH"] = str(ROOT)
    stop = "    query.stop()\n"
    code = fenced(README, "python")[0]
    assert code.count(stop) == 1
    marked = f"    import sys\n    print({STOPPING!r}, file=sys.stderr, flush=True)\n{stop}"
    done = subprocess.run(
        [sys.executable, "-c", code.replace(stop, marked)],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert re.fullmatch(r"\{'count': \d+\}", done.stdout.splitlines()[-1])
    # The warnings of Spark itself are not ours to change, nor what it and Hadoop log of a query
    # that is stopped while a batch runs.
    logged, mark, _ = done.stderr.partition(STOPPING)
    assert mark
    assert not re.search(r"^\s+at |redis://|ServerChecks|redisstate", logged, re.MULTILINE)


def test_conf_lines_equal_the_commands_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = dict(line.split(maxsplit=1) for line in fenced(README, "properties")[0].splitlines())
    options = [
        "--spark",
        "4.3",
        "--url",
        "redis://host:6379/0",
        "--option",
        "passwordFile=/run/secrets/redis",
    ]
    assert main(["conf", *options]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    printed = dict(line.split("=", 1) for line in lines)
    assert shown.keys() == printed.keys()
    jar = "spark.jars"
    assert {k: v for k, v in shown.items() if k != jar} == {
        k: v for k, v in printed.items() if k != jar
    }


def test_other_examples_run_in_one_session(
    streams: Streams,
    spark: SparkSession,
    shared_redis_server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = streams.input("visits", "user string")
    source.add([{"user": "ann"}, {"user": "ann"}, {"user": "bob"}])
    source.add([{"user": "ann"}])
    visits = source.stream(spark)
    scope: dict[str, Any] = {"__name__": "__main__", "redis_state": redis_state, "visits": visits}
    for code in fenced(WAYS_IN, "python"):
        text = code.replace(URL, shared_redis_server.url).replace('f"visits/', f'f"{tmp_path}/')
        exec(compile(text, WAYS_IN.name, "exec"), scope)
    assert capsys.readouterr().out == "1\n"
    stores.stop()
    scope["query"].processAllAvailable()
    scope["query"].stop()
    written = spark.read.parquet(f"{tmp_path}/batch=1").select("user", "visits").collect()
    assert list(map(tuple, written)) == [("ann", 3)]
    output: Output = {}
    streams.run(scope["sessions"], "sessions", output=output)
    assert output == {
        0: ["Row(user='ann', visits=2)", "Row(user='bob', visits=1)"],
        1: ["Row(user='ann', visits=3)"],
    }
