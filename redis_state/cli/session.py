"""What commands that move rows share: the check before, and the Spark session."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.cli.checkpoint import add_storage_options, folder_of
from redis_state.cli.connection import config_of
from redis_state.config import PASSWORD_VARIABLE
from redis_state.errors import ConfigError
from redis_state.maintain.activity import refuse_if_used
from redis_state.recovery.marker import gen_of, has_marker
from redis_state.spark import configure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HEAP = "spark.driver.memory"
_HEAP_BYTES_MIN = 1 << 30
_TASK_BYTES = 160 << 20
"""Of a task that fills a partition; `BoundedHeapSuite` fills some in as much each."""

_REST_BYTES = 256 << 20
_CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def add_session_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a session, and what fsspec wants, which reads the marker file."""
    add_storage_options(parser)
    parser.add_argument(
        "--master",
        help="of Spark (default: all cores of this machine, or as many as half of its memory is "
        "enough for)",
    )
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of Spark; may be repeated",
    )


def memory_of_machine() -> int:
    """Bytes of memory of this machine, or of the container in which the process runs."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in _CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # "max" says that there is none
            memory = min(memory, int(limit.read_text("ascii")))
    return memory


def place_for_tasks(memory: int, cores: int) -> tuple[int, int]:
    """Bytes of heap, and how many tasks may run at once in it.

    Args:
        memory: Bytes that the machine has.
        cores: That it has.
    """
    heap = max(_HEAP_BYTES_MIN, memory // 2)
    return heap, max(1, min(cores, (heap - _REST_BYTES) // _TASK_BYTES))


def say_that_it_cannot_be_seen() -> None:
    """Of a checkpoint of another provider: nothing shows whether its query runs."""
    print("whether the query runs cannot be seen from here: make sure that it is stopped")


def refuse_running_query(arguments: argparse.Namespace, *, attempted: str) -> None:
    """Of a checkpoint whose state is in Redis: only Redis shows whether its query runs.

    Of another one a line says that it cannot be seen.

    Raises:
        UsageError: It runs, and ``--force`` was not given.
        StateError: The folder was moved or copied: the state may be of another query.
        FormatError: Its marker is damaged.
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
    """A session of this process, with our jar.

    Args:
        options: Of the connection, as `options_of` gives them.
        name: Of the application.

    Raises:
        ConfigError: An argument or an option is wrong.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name).config("spark.ui.enabled", "false")
    if arguments.master is not None:
        builder = builder.master(arguments.master)
    else:
        heap, cores = place_for_tasks(memory_of_machine(), os.cpu_count() or 1)
        builder = builder.master(f"local[{cores}]")
        builder = builder.config(_HEAP, f"{heap >> 20}m")
    for conf in arguments.conf:
        key, is_there, value = conf.partition("=")
        if not is_there:
            raise ConfigError(
                f"reading --conf {key}", found="it has no value", advice="Write it as NAME=VALUE."
            )
        builder = builder.config(key, value)
    given = dict(options)
    password = os.environ.get(PASSWORD_VARIABLE)
    if password and "password_file" not in given:
        given["password"] = password
    return configure(builder, **given).getOrCreate()
