"""The README's quick start and conf lines, as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from redis_state.cli.main import main

README = Path(__file__).resolve().parents[2] / "README.md"
LIMIT_S = 240


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.M)
    assert found is not None
    return found[1]


def test_the_quick_start_runs_in_a_fresh_process(tmp_path: Path) -> None:
    settings = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    settings["PYTHONPATH"] = str(README.parent)
    done = subprocess.run(
        [sys.executable, "-c", block("python")],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert re.fullmatch(r"\{'count': \d+\}", done.stdout.splitlines()[-1])


def test_the_five_conf_lines_are_those_of_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = dict(line.split(maxsplit=1) for line in block("properties").splitlines())
    options = ["--url", "redis://host:6379/0", "--option", "passwordFile=/run/secrets/redis"]
    assert main(["conf", *options]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    printed = dict(line.split("=", 1) for line in lines)
    assert shown.keys() == printed.keys()
    jar = "spark.jars"
    assert {k: v for k, v in shown.items() if k != jar} == {
        k: v for k, v in printed.items() if k != jar
    }
