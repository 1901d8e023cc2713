"""The suites of `make test`: the one table of what is run, how, and for how long at most."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from jvm import SHORT_LIVED


@dataclass(frozen=True, slots=True)
class Commands:
    """Programs that each count as one test: passed when they exit with 0."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    limit_s: int


@dataclass(frozen=True, slots=True)
class Pytest:
    """A folder of Python tests."""

    name: str
    folder: str
    limit_s: int
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scalatest:
    """The `…Suite.scala` files below a source folder, run on the classes of one module.

    `spark_jars` is a folder whose jars the tests run on; empty means the module's own class path.
    `options` are the JVM's.
    """

    name: str
    module: str
    sources: str
    limit_s: int
    spark_jars: str = ""
    options: tuple[str, ...] = SHORT_LIVED


Suite = Commands | Pytest | Scalatest

_PYTHON = sys.executable

SUITES: tuple[Suite, ...] = (
    Commands(
        "lint",
        (
            (_PYTHON, "-m", "ruff", "format", "--check", "."),
            (_PYTHON, "-m", "ruff", "check", "."),
            (_PYTHON, "-m", "mypy"),
            ("tools/scalafmt.sh", "--test"),
            (_PYTHON, "tools/check_text.py"),
        ),
        limit_s=300,
    ),
    Pytest("unit", "tests/unit", limit_s=300),
    Pytest("contract", "tests/contract", limit_s=600),
    Pytest("topologies", "tests/topologies", limit_s=600),
    Scalatest("jvm-core", "core", "core/src/test/scala", limit_s=900, options=()),
    Scalatest("jvm-suite", "spark-4.2", "spark/src/test-4.2/scala", limit_s=1200),
    Scalatest("jvm-contract-4.2", "spark-4.2", "spark/src/test/scala", limit_s=900),
    Scalatest(
        "jvm-contract-4.3",
        "spark-4.3",
        "spark/src/test/scala",
        limit_s=900,
        spark_jars=".venv/pyspark-jars",
    ),
    Scalatest(
        "jvm-real-time",
        "spark-4.3",
        "spark/src/test-4.3/scala",
        limit_s=600,
        spark_jars=".venv/pyspark-jars",
    ),
    Pytest("interop", "tests/interop", limit_s=600),
    Pytest("spark", "tests/spark", limit_s=1800, options=("--compatibility-check",)),
    Pytest("faults", "tests/faults", limit_s=1500),
    Pytest("containers", "tests/containers", limit_s=900),
)
