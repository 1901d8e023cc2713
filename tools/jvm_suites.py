"""Runs Scala suites on the Spark minors for which Maven compiles no tests.

    python tools/jvm_suites.py 4.0 4.1

Compiles the suites that need nothing newer with the compiler of pyspark. Runs them on the jar that
users get, with the Spark jars of the environment `.venv-MINOR`. Needs `make build jvm-test-build`
and `make env-MINOR`. Exits with 1 when a suite fails. With Maven, every build would compile the
suites for each minor.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

# Run by its path, the script imports its neighbours by the names that tests use.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.jvm import ROOT, java_options
from tools.run_limited import run_limited

_ADAPTER = ROOT / "jvm-adapter"
_SOURCES = _ADAPTER / "spark/src/test/scala"
_SUPPORT = _ADAPTER / "core/src/test/support"
# Suites with classes and methods of Spark's state interface that exist only since 4.2 or 4.1.
_SINCE_42 = frozenset(
    {
        "AvroFamiliesSuite",
        "FamilyOracleSuite",
        "FamilyRows",
        "KeyColumnsSuite",
        "StateWriterSuite",
    }
)
_SINCE_41 = frozenset({"KeyCountSuite", "StoreLifeCycleSuite"})
LEFT_OUT = {"4.0": _SINCE_42 | _SINCE_41, "4.1": _SINCE_42}
_LIMIT_S = 1200


def _jars(minor: str) -> list[str]:
    found = sorted((ROOT / f".venv-{minor}").glob("lib/python3*/site-packages/pyspark/jars/*.jar"))
    if not found:
        raise SystemExit(f"error: there is no environment of Spark {minor}: run `make env-{minor}`")
    return [str(jar) for jar in found]


def _suites(minor: str) -> list[Path]:
    """Returns the sources of suites and shared code; newer minors run benchmarks and moves."""
    left_out = LEFT_OUT[minor]
    return [
        path
        for path in sorted(_SOURCES.rglob("*.scala"))
        if path.stem not in left_out and path.parent.name not in ("bench", "move")
    ]


def _class_path(minor: str) -> list[str]:
    own = sorted((ROOT / "redis_state/jars").glob(f"redis-state-spark-{minor}_*.jar"))
    written = _ADAPTER / "core/target/test-classpath.txt"
    if not own or not written.exists():
        raise SystemExit("error: run `make build jvm-test-build` first")
    entries = written.read_text().split(os.pathsep)
    tools = [jar for jar in entries if re.search("scalatest|scalactic|archunit", jar)]
    return [*map(str, own), *tools, *_jars(minor)]


def _java(class_path: list[str], scratch: str, *arguments: str) -> int:
    command = [*java_options(Path(scratch)), "-cp", os.pathsep.join(class_path), *arguments]
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    code, _ = run_limited(command, cwd=ROOT, env=env, limit_s=_LIMIT_S)
    return code


def run_minor(minor: str) -> int:
    """Returns the exit code of the suites on one minor."""
    suites = _suites(minor)
    sources = [*suites, *sorted(_SUPPORT.rglob("*.scala"))]
    class_path = _class_path(minor)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "classes")
        folder.mkdir()
        classes = str(folder)
        compiler = ["scala.tools.nsc.Main", "-nowarn", "-cp", os.pathsep.join(class_path)]
        code = _java(_jars(minor), scratch, *compiler, "-d", classes, *map(str, sources))
        if code != 0:
            return code
        names = [
            ".".join(path.relative_to(_SOURCES).with_suffix("").parts)
            for path in suites
            if path.stem.endswith("Suite")
        ]
        chosen = [part for name in names for part in ("-s", name)]
        runner = ["org.scalatest.tools.Runner", "-oWF", "-R", classes]
        return _java([classes, *class_path], scratch, *runner, *chosen)


def main(minors: list[str]) -> int:
    for minor in minors:
        if minor not in LEFT_OUT:
            raise SystemExit(f"error: give {' or '.join(LEFT_OUT)}; Maven does the others' tests")
    failed = 0
    for minor in minors or LEFT_OUT:
        print(f"== Spark {minor}", flush=True)
        failed |= run_minor(minor)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
