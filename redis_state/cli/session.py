"""The Spark session of a command that moves rows."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from redis_state.config import PASSWORD_VARIABLE
from redis_state.errors import ConfigError
from redis_state.spark import configure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_session_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a session."""
    parser.add_argument("--master", default="local[*]", help="of Spark (default: %(default)s)")
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of Spark; may be repeated",
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

    builder = SparkSession.builder.master(arguments.master).appName(name)
    builder = builder.config("spark.ui.enabled", "false")
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
