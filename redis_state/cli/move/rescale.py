"""`redis-state rescale`: gives the state of a stopped query another number of partitions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from redis_state.cli.arguments.connection import ProgressLine, add_arguments, config_of, options_of
from redis_state.cli.arguments.consent import add_force, add_yes
from redis_state.cli.arguments.place import add_query
from redis_state.cli.arguments.session import (
    add_session_arguments,
    refuse_running_query,
    session_of,
)
from redis_state.cli.help import example
from redis_state.errors import ConfigError
from redis_state.rescaling.store import StoreRescale, rescale_with
from redis_state.spark import rescale

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "rescale",
        help="give the state of a stopped query another number of partitions",
        description=(
            "Give the state of a stopped query another number of partitions. For a checkpoint "
            "folder, a Spark session of this process writes a new folder. A Python store changes "
            "in place. Without --yes the command reads and checks all rows, and only prints what "
            "it would do."
        ),
        epilog=example(
            "redis-state rescale --url redis://localhost:6379/0 --checkpoint /data/flights "
            "--to-checkpoint /data/flights-8 --partitions 8",
            "redis-state rescale visits --partitions 8 --url redis://localhost:6379/0",
        ),
    )
    add_query(parser, optional="name of a store that Python keeps, instead of two folders")
    parser.add_argument(
        "--checkpoint", metavar="PATH", help="checkpoint folder of a query with Spark's operators"
    )
    parser.add_argument(
        "--to-checkpoint", metavar="PATH", help="with --checkpoint: a folder that does not exist"
    )
    parser.add_argument(
        "--partitions", required=True, type=int, metavar="N", help="new number of partitions"
    )
    add_yes(parser)
    add_force(parser)
    add_session_arguments(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Checks the rows, or moves them, and prints the result."""
    _check(arguments)
    if arguments.query is not None:
        found = rescale_with(
            config_of(arguments),
            arguments.query,
            arguments.partitions,
            dry_run=not arguments.yes,
            force=arguments.force,
        )
        _tell_store(found)
        return 0
    return _checkpoint(arguments)


def _check(arguments: argparse.Namespace) -> None:
    """Raises `ConfigError` unless the arguments name either a store or two folders."""
    folders = (arguments.checkpoint, arguments.to_checkpoint)
    wrong = None in folders if arguments.query is None else folders != (None, None)
    if wrong:
        raise ConfigError(
            "changing a number of partitions",
            found="the arguments name neither one store nor two folders",
            advice="Give the name of a store that Python keeps; or the folder of a query with "
            "--checkpoint, and a new one with --to-checkpoint.",
        )


def _checkpoint(arguments: argparse.Namespace) -> int:
    line = ProgressLine()
    if arguments.yes:
        refuse_running_query(arguments, attempted="changing a number of partitions")
    session = session_of(arguments, options_of(arguments), name="redis-state rescale")
    try:
        moved = rescale(
            session,
            arguments.checkpoint,
            arguments.to_checkpoint,
            arguments.partitions,
            dry_run=not arguments.yes,
            progress=lambda done, total, rows: line(f"{rows:,} rows, partitions", done, total),
        )
    finally:
        line.end()
        session.stop()
    what = f"{moved.rows:,} rows of the state after batch {moved.batch}"
    to = f"{arguments.partitions} partitions"
    if not arguments.yes:
        print(f"{what} would go into {to}; stop the query, then add --yes")
        return 0
    print(f"{what} are in {to} now, and were read again: equal digests")
    print(f"start the query with checkpointLocation {arguments.to_checkpoint}")
    return 0


def _tell_store(found: StoreRescale) -> None:
    rows = sum(found.rows)
    fewest, most = min(found.rows), max(found.rows)
    if not found.new_gen:
        print(
            f"{rows:,} rows after batch {found.batch} would go from {found.before} partitions to "
            f"{found.partitions}, {fewest:,} to {most:,} in each; stop the query, then add --yes"
        )
        return
    print(
        f"{rows:,} rows after batch {found.batch} are in {found.partitions} partitions now, "
        f"{fewest:,} to {most:,} in each"
    )
    print(f"the old ones stay until you run: redis-state purge --gen {found.gen}")
