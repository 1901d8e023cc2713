"""Suites of `make test` and `make test-long`: their programs, options and time limits."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tools.jvm import SHORT_LIVED


@dataclass(frozen=True, slots=True)
class Commands:
    """Programs that each count as one test, which passes on exit code 0."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    limit_s: int


@dataclass(frozen=True, slots=True)
class Pytest:
    """A folder of Python tests.

    `server` names the server program of tools/servers.py; empty uses the one on PATH. `python` is a
    version of tools/pythons.py; empty uses the Python that runs the suites.
    """

    name: str
    folder: str
    limit_s: int
    options: tuple[str, ...] = ()
    server: str = ""
    python: str = ""


@dataclass(frozen=True, slots=True)
class Scalatest:
    """The `…Suite.scala` files below a source folder, run on the classes of one module.

    `spark_jars` is a folder with the Spark jars; empty uses the module's own class path. `options`
    are the JVM's, `variables` are set in its environment. `left_out` names suites by their class;
    `only` runs no other suites.
    """

    name: str
    module: str
    sources: str
    limit_s: int
    spark_jars: str = ""
    options: tuple[str, ...] = SHORT_LIVED
    variables: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def runs(self, name: str) -> bool:
        """Returns whether the suite of this class is run."""
        return name not in self.left_out and (not self.only or name in self.only)


Suite = Commands | Pytest | Scalatest

_PYTHON = sys.executable
_SITE = ("env", "NO_MKDOCS_2_WARNING=1", _PYTHON, "-m", "mkdocs")

# Whole queries through interfaces that differ between minors. `jvm-suite` runs Spark's own suites
# of these interfaces on 4.2, `jvm-contract-4.3` runs all but the counts of rounds, which fill large
# states, on the newest minor.
_ROUNDS = "JoinRoundsSuite"
_LEFT_TO_LONG = ("ScalaTransformWithStateSuite", _ROUNDS)
# Lincheck rewrites the classes that it steps through, which takes longer than half of the others.
_CORE_LEFT_TO_LONG = ("InterleavingSuite",)
_MOVING = "tests/spark/moving"
_VALUES = "tests/spark/fuzz_values"
_APPLICATIONS = ("--compatibility-check", "-m", "application and not long")
_SESSION = ("--compatibility-check", "-m", "not application and not long")

# In the order of their start: long suites come first, so that the lanes end together. Two lanes
# keep two cores busy; three lanes took as long in total. A suite never reaches its limit, even
# beside another suite on two busy cores.
SUITES: tuple[Suite, ...] = (
    Pytest("spark", "tests/spark", limit_s=3300, options=(f"--ignore={_MOVING}", *_SESSION)),
    Pytest("contract", "tests/contract", limit_s=1800),
    Pytest("faults", "tests/faults", limit_s=2100),
    Pytest("spark-applications", "tests/spark", limit_s=1800, options=_APPLICATIONS),
    Scalatest(
        "jvm-core",
        "core",
        "core/src/test/scala",
        limit_s=1500,
        options=(),
        left_out=_CORE_LEFT_TO_LONG,
    ),
    Pytest("spark-moving", _MOVING, limit_s=2100, options=_SESSION),
    Scalatest("jvm-suite", "spark-4.2", "spark/src/test-4.2/scala", limit_s=1800),
    Pytest("interop", "tests/interop", limit_s=1200),
    Scalatest(
        "jvm-contract-4.3",
        "spark-4.3",
        "spark/src/test/scala",
        limit_s=1500,
        spark_jars=".venv/pyspark-jars",
        left_out=(_ROUNDS,),
    ),
    Pytest("topologies", "tests/topologies", limit_s=1200),
    Scalatest(
        "jvm-contract-4.2",
        "spark-4.2",
        "spark/src/test/scala",
        limit_s=1500,
        left_out=_LEFT_TO_LONG,
    ),
    Pytest("unit", "tests/unit", limit_s=600),
    Commands(
        "lint",
        (
            (_PYTHON, "-m", "ruff", "format", "--check", "."),
            (_PYTHON, "-m", "ruff", "check", "."),
            (_PYTHON, "-m", "mypy"),
            ("lint-imports", "--no-cache", "--no-logo"),
            ("tools/scalafmt.sh", "--test"),
            (_PYTHON, "tools/check_text.py"),
            (*_SITE, "build", "--strict", "--quiet"),
        ),
        limit_s=600,
    ),
    Pytest("containers", "tests/containers", limit_s=1500),
    Scalatest(
        "jvm-real-time",
        "spark-4.3",
        "spark/src/test-4.3/scala",
        limit_s=1200,
        spark_jars=".venv/pyspark-jars",
    ),
)

_LONG = ("-m", "long")
_LONG_JVM = (("REDIS_STATE_LONG", "1"), ("REDIS_STATE_SCHEDULES", "5000"))
# Share of a partition in Redis, in bytes, below the states of Spark's suites.
_TIGHT = (("REDIS_STATE_TIGHT", "1536"),)

LONG_SUITES: tuple[Suite, ...] = (
    Scalatest(
        "jvm-core-long",
        "core",
        "core/src/test/scala",
        limit_s=7200,
        options=(),
        variables=_LONG_JVM,
    ),
    Pytest("faults-long", "tests/faults", limit_s=7200, options=_LONG),
    Scalatest("jvm-suite-long", "spark-4.2", "spark/src/test-4.2-long/scala", limit_s=5400),
    Scalatest(
        "jvm-suite-tight",
        "spark-4.2",
        "spark/src/test-4.2/scala",
        limit_s=3600,
        variables=_TIGHT,
    ),
    # Builds Helm from its Go module, where there is none.
    Pytest("unit-long", "tests/unit", limit_s=2400, options=_LONG),
    Pytest("contract-long", "tests/contract", limit_s=3600, options=_LONG),
    Pytest("spark-long", "tests/spark", limit_s=7200, options=(f"--ignore={_VALUES}", *_LONG)),
    Pytest("values-long", _VALUES, limit_s=21_600, options=_LONG),
    Pytest("topologies-long", "tests/topologies", limit_s=1800, options=_LONG),
    Pytest("file-systems", "tests/file_systems", limit_s=1800, options=_LONG),
    Scalatest(
        "jvm-contract-4.2-long",
        "spark-4.2",
        "spark/src/test/scala",
        limit_s=1500,
        only=_LEFT_TO_LONG,
    ),
    *(
        Pytest(f"{folder}-{server}", f"tests/{folder}", limit_s=1800, server=server)
        for server in ("redis-6.2", "redis-8.0", "valkey-8")
        for folder in ("contract", "topologies")
    ),
    *(
        Pytest(f"{folder}-python-{version}", f"tests/{folder}", limit_s=3600, python=version)
        for version in ("3.10", "3.13")
        for folder in ("unit", "contract")
    ),
)
"""Suites that do not fit into `make test`: long tests and forms, other servers, other Pythons."""
