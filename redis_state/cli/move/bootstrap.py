"""`redis-state bootstrap`: makes rows of Parquet files the state of a stopped query."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from redis_state.cli.arguments.connection import ProgressLine, add_arguments, options_of
from redis_state.cli.arguments.consent import add_force, add_yes
from redis_state.cli.arguments.session import (
    add_session_arguments,
    refuse_running_query,
    session_of,
)
from redis_state.cli.help import example
from redis_state.errors import ConfigError
from redis_state.spark import Migration, bootstrap, bootstrap_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "bootstrap",
        help="write rows of Parquet files as the state of a stopped query",
        description=(
            "Write rows of Parquet files as the state of an operator of a stopped query, into a "
            "new checkpoint folder. A Spark session of this process does the work. Without rows "
            "the command prints the columns that each operator takes. Without --yes it reads and "
            "checks all rows, and only prints what it would do."
        ),
        epilog=example(
            "redis-state bootstrap --url redis://localhost:6379/0 --checkpoint /data/totals",
            "redis-state bootstrap --url redis://localhost:6379/0 --checkpoint /data/totals "
            "--to-checkpoint /data/totals-2 --rows /data/rows --mode merge --yes",
        ),
    )
    parser.add_argument(
        "--checkpoint", required=True, metavar="PATH", help="checkpoint folder of the query"
    )
    parser.add_argument("--to-checkpoint", metavar="PATH", help="a folder that does not exist")
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument("--rows", metavar="PATH", help="Parquet files of an operator")
    rows.add_argument(
        "--variable",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="Parquet files of a state variable of a processor; may be repeated",
    )
    parser.add_argument(
        "--operator", type=int, metavar="N", help="operator of the rows, if the query has several"
    )
    parser.add_argument(
        "--mode",
        choices=("replace", "merge"),
        default="replace",
        help="remove the rows of other keys, or keep them (default: %(default)s)",
    )
    add_yes(parser)
    add_force(parser)
    add_session_arguments(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the columns, or checks the rows, or writes them."""
    wants_rows = arguments.rows is not None or bool(arguments.variable)
    if wants_rows != (arguments.to_checkpoint is not None):
        raise ConfigError(
            "giving rows to an operator",
            found="--to-checkpoint goes together with --rows or --variable",
            advice="Name the rows and a new folder; or neither, to see which columns are required.",
        )
    paths = _paths(arguments.variable)
    if arguments.yes:
        refuse_running_query(arguments, attempted="giving rows to an operator")
    session = session_of(arguments, options_of(arguments), name="redis-state bootstrap")
    try:
        if wants_rows:
            _tell(_write(session, arguments, paths), arguments)
        else:
            _list(session, arguments.checkpoint)
    finally:
        session.stop()
    return 0


def _paths(variables: list[str]) -> dict[str, str]:
    found = {}
    for one in variables:
        name, is_there, path = one.partition("=")
        if not is_there or name in found:
            raise ConfigError(
                f"reading --variable {one}",
                found="it has no path" if not is_there else "the variable is given twice",
                advice="Write NAME=PATH, once for each variable.",
            )
        found[name] = path
    return found


def _write(
    session: SparkSession, arguments: argparse.Namespace, paths: dict[str, str]
) -> Migration:
    line = ProgressLine()
    rows: DataFrame | dict[str, DataFrame] = (
        {name: session.read.parquet(path) for name, path in paths.items()}
        if arguments.rows is None
        else session.read.parquet(arguments.rows)
    )
    try:
        return bootstrap(
            session,
            rows,
            arguments.checkpoint,
            arguments.to_checkpoint,
            operator=arguments.operator,
            mode=arguments.mode,
            dry_run=not arguments.yes,
            progress=lambda done, total, rows: line(f"{rows:,} rows, partitions", done, total),
        )
    finally:
        line.end()


def _list(session: SparkSession, checkpoint: str) -> None:
    for one in bootstrap_columns(session, checkpoint):
        variable = "" if one.variable is None else f" variable {one.variable}"
        what = f"accepts no rows: {one.refused}" if one.columns is None else one.columns
        print(f"operator {one.operator} ({one.name}){variable}: {what}")


def _tell(done: Migration, arguments: argparse.Namespace) -> None:
    for one in done.stores:
        print(f"operator {one.operator} ({one.name}): {one.rows:,} rows, digest {one.source}")
    if not arguments.yes:
        print(f"{done.rows:,} rows would be the state; stop the query, then add --yes")
        return
    print(f"{done.rows:,} rows are the state now, and were read again: equal digests")
    print(f"start the query with checkpointLocation {arguments.to_checkpoint}")
