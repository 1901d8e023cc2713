"""Spark session of commands that move rows, and the check that a query is stopped."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.cli.arguments.checkpoint import add_storage_options, folder_of
from redis_state.cli.arguments.connection import config_of
from redis_state.config import PASSWORD_VARIABLE
from redis_state.errors import ConfigError
from redis_state.maintain.activity import refuse_if_used
from redis_state.recovery.marker import gen_of, has_marker
from redis_state.spark import configure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HEAP = "spark.driver.memory"
_HEAP_BYTES_MIN = 1 << 30
_TASK_BYTES = 160 << 20
"""Heap of a task that fills a partition; `BoundedHeapSuite` gives each task as much."""

_REST_BYTES = 256 << 20
# The syntax of Spark's sizes. Without a unit `spark.driver.memory` counts MiB.
_SIZE = re.compile(r"(\d+)([kmgt]?)b?")
_UNITS = {"k": 10, "": 20, "m": 20, "g": 30, "t": 40}
_CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def add_session_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of a session, and those of fsspec, which reads the marker file."""
    add_storage_options(parser)
    parser.add_argument(
        "--master",
        help="Spark master (default: local, on all cores of this machine, or as many as half of "
        "its memory is enough for)",
    )
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark; may be repeated",
    )


def memory_of_machine() -> int:
    """Returns the bytes of memory of this machine, or of the container of the process."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in _CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # "max" says that there is none
            memory = min(memory, int(limit.read_text("ascii")))
    return memory


def cores_of_machine() -> int:
    """Returns the number of cores on which this process may run."""
    on = getattr(os, "sched_getaffinity", None)
    return len(on(0)) if on is not None else os.cpu_count() or 1


def tasks_in(heap: int, cores: int) -> int:
    """Returns how many tasks may run at once in a heap of so many bytes, at most one a core."""
    return max(1, min(cores, (heap - _REST_BYTES) // _TASK_BYTES))


def heap_of(confs: Mapping[str, str]) -> int:
    """Returns the bytes of the given heap, or half of the machine's memory, at least 1 GiB.

    Raises:
        ConfigError: The given heap is not a size.
    """
    given = confs.get(HEAP)
    if given is None:
        return max(_HEAP_BYTES_MIN, memory_of_machine() // 2)
    size = _SIZE.fullmatch(given.strip().lower())
    if size is None:
        raise ConfigError(
            f"reading --conf {HEAP}",
            found="it is not a size",
            advice="Write a whole number with a unit, such as 4g or 512m.",
        )
    return int(size[1]) << _UNITS[size[2]]


def say_that_it_cannot_be_seen() -> None:
    """Prints that nothing shows whether the query of another provider's checkpoint runs."""
    print("it is unknown whether the query runs: make sure that it is stopped")


def refuse_running_query(arguments: argparse.Namespace, *, attempted: str) -> None:
    """Raises if the query of a checkpoint runs, as far as Redis shows that.

    If the state is not in Redis, prints that nothing shows whether the query runs.

    Raises:
        UsageError: The query runs, and ``--force`` was not given.
        StateError: The folder was moved or copied: the state may be of another query.
        FormatError: The marker is damaged.
    """
    folder = folder_of(arguments)
    if not has_marker(folder):
        say_that_it_cannot_be_seen()
        return
    config = config_of(arguments)
    with closing(Client(config)) as client:
        refuse_if_used(
            client,
            gen_of(folder),
            tenant=keys.tenant_of(config.key_prefix),
            attempted=attempted,
            force=arguments.force,
        )


def session_of(
    arguments: argparse.Namespace, options: Mapping[str, Any], *, name: str
) -> SparkSession:
    """Returns a Spark session of this process, with our jar.

    Args:
        options: Options of the connection, as `options_of` returns them.
        name: Name of the application.

    Raises:
        ConfigError: An argument or an option is wrong.
    """
    from pyspark.sql import SparkSession

    confs = _confs(arguments.conf)
    heap = heap_of(confs)
    master = arguments.master or f"local[{tasks_in(heap, cores_of_machine())}]"
    if master.startswith("local"):
        confs.setdefault(HEAP, f"{heap >> 20}m")
    builder = SparkSession.builder.appName(name).master(master).config("spark.ui.enabled", "false")
    for key, value in confs.items():
        builder = builder.config(key, value)
    given = dict(options)
    password = os.environ.get(PASSWORD_VARIABLE)
    if password and "password_file" not in given:
        given["password"] = password
    return configure(builder, **given).getOrCreate()


def _confs(given: Sequence[str]) -> dict[str, str]:
    confs = {}
    for conf in given:
        key, is_there, value = conf.partition("=")
        if not is_there:
            raise ConfigError(
                f"reading --conf {key}", found="it has no value", advice="Write it as NAME=VALUE."
            )
        confs[key] = value
    return confs
