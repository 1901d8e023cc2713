"""`redis-state conf`: prints the settings that make spark-submit keep state in Redis."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from redis_state import config
from redis_state.cli.help import example
from redis_state.errors import ConfigError
from redis_state.spark.conf import conf_settings
from redis_state.spark.jars import running_pyspark_version

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "conf",
        help="print key=value lines for spark-submit --properties-file",
        description="Print the settings of redis_state.configure, as lines of a properties file.",
        epilog=example(
            "redis-state conf --url redis://redis.example:6379/0 --option versionsToRetain=20"
        ),
    )
    parser.add_argument("--url", required=True, help="redis://host:port/db or rediss://…")
    parser.add_argument(
        "--spark",
        metavar="VERSION",
        help="Spark version, such as 4.2 (default: that of the installed pyspark)",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option, such as versionsToRetain=20; may be repeated",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the lines."""
    options = {"url": arguments.url, **_pairs(arguments.option)}
    version = arguments.spark or running_pyspark_version()
    for name, value in conf_settings(options, spark_version=version, existing={}).items():
        print(f"{name}={escape(value)}")
    return 0


def _pairs(texts: Iterable[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(
                "reading --option",
                found="one of them has no '='",
                advice="Write --option NAME=VALUE.",
            )
        short = config.option_named(name).name
        if short in pairs or short == "url":
            raise ConfigError(
                f"option '{short}'", found="it is given twice", advice="Give it once."
            )
        pairs[short] = value
    return pairs


def escape(value: str) -> str:
    """Escapes a value, so that Spark reads it back unchanged from a properties file.

    Spark reads the file as UTF-8, and no option allows control characters or blanks at the ends, so
    only the backslash needs an escape.
    """
    return value.replace("\\", "\\\\")
