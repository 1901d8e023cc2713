"""`redis-state rescale`: another number of partitions for the state of a stopped query."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from redis_state.cli.connection import add_arguments, config_of
from redis_state.cli.help import example
from redis_state.spark.rescale.store import StoreRescale, rescale_with

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "rescale",
        help="give the state of a stopped query another number of partitions",
        description="Give the state of a stopped query that keeps it in Python "
        "(transform_with_state, foreach_batch_with_state_store) another number of partitions. "
        "Without --yes it reads and checks all rows, and only says what it would do.",
        epilog=example(
            "redis-state rescale --url redis://localhost:6379/0 --store visits --partitions 8"
        ),
    )
    parser.add_argument("--store", required=True, metavar="NAME", help="as the query calls it")
    parser.add_argument("--partitions", required=True, type=int, metavar="N", help="from now on")
    parser.add_argument("--yes", action="store_true", help="do it")
    parser.add_argument("--force", action="store_true", help="even if the query seems to run")
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Look or move, and tell."""
    found = rescale_with(
        config_of(arguments),
        arguments.store,
        arguments.partitions,
        dry_run=not arguments.yes,
        force=arguments.force,
    )
    _tell(found)
    return 0


def _tell(found: StoreRescale) -> None:
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
    print(f"the old ones stay until: redis-state purge --gen {found.gen}")
