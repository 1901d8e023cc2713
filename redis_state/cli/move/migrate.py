"""`redis-state migrate`: moves a state between Redis and Spark's own providers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from redis_state.cli.arguments.checkpoint import folder_of
from redis_state.cli.arguments.connection import ProgressLine, add_arguments, options_of
from redis_state.cli.arguments.consent import add_force
from redis_state.cli.arguments.session import (
    add_session_arguments,
    refuse_running_query,
    say_that_it_cannot_be_seen,
    session_of,
)
from redis_state.cli.help import example
from redis_state.errors import ConfigError
from redis_state.recovery.marker import has_marker
from redis_state.spark import Migration, migrate

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

_SPARKS_OWN = ("rocksdb", "hdfs-backed")


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "migrate",
        help="move the state of a stopped query to Redis, or back to Spark's own provider",
        description=(
            "Make a new checkpoint folder with the state of a stopped query in another provider. "
            "The old folder does not change. The new one becomes a checkpoint in the last step; "
            "until then Spark refuses it, and the same command continues an interrupted move. A "
            "Spark session of this process moves the state, with the installed pyspark."
        ),
        epilog=example(
            "redis-state migrate --checkpoint /data/flights --to-checkpoint /data/flights-redis "
            "--to redis://localhost:6379/0 --dry-run"
        ),
    )
    parser.add_argument(
        "--checkpoint",
        required=True,
        metavar="PATH",
        help="checkpoint folder of the query, anywhere Spark reads",
    )
    parser.add_argument(
        "--to-checkpoint", required=True, metavar="PATH", help="a folder that does not exist"
    )
    parser.add_argument(
        "--to",
        required=True,
        metavar="TARGET",
        help="redis://…, rediss://…, rocksdb, or hdfs-backed; if the state is in Redis now, --url "
        "names the server that has it",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only read, count and check; change nothing"
    )
    add_force(parser)
    add_session_arguments(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Checks the arguments, moves, and prints what was moved."""
    leaves = arguments.to in _SPARKS_OWN
    if not leaves and "://" not in arguments.to:
        raise ConfigError(
            f"moving state to {arguments.to}",
            found="it is neither a URL of Redis nor a provider of Spark's",
            advice=f"Give redis://host:port/db, {' or '.join(_SPARKS_OWN)}.",
        )
    # A state that is in Redis now is read from the server of the arguments.
    of_arguments = leaves or _is_in_redis(arguments)
    options = options_of(arguments, url=None if of_arguments else arguments.to)
    if of_arguments:
        refuse_running_query(arguments, attempted="moving the state")
    else:
        say_that_it_cannot_be_seen()
    line = ProgressLine()
    session = session_of(arguments, options, name="redis-state migrate")
    try:
        moved = migrate(
            session,
            arguments.checkpoint,
            arguments.to_checkpoint,
            to=arguments.to,
            dry_run=arguments.dry_run,
            progress=lambda done, total, rows: line(f"{rows:,} rows, partitions", done, total),
            **({} if leaves else {name: o for name, o in options.items() if name != "url"}),
        )
    finally:
        line.end()
        session.stop()
    _tell(moved, arguments)
    return 0


def _is_in_redis(arguments: argparse.Namespace) -> bool:
    """Returns whether the folder has a marker; False also if only Spark can read the folder."""
    try:
        return has_marker(folder_of(arguments))
    except ConfigError:
        return False


def _tell(moved: Migration, arguments: argparse.Namespace) -> None:
    for one in moved.stores:
        print(
            f"operator {one.operator} ({one.name}) store {one.store}: {one.partitions} partitions, "
            f"{one.families} column families, {one.rows:,} rows, {one.size:,} bytes, "
            f"digest {one.source}"
        )
    what = f"{moved.rows:,} rows, {moved.size:,} bytes of the state after batch {moved.batch}"
    if arguments.dry_run:
        print(f"{what} would be moved; nothing was changed")
        return
    written = sum(one.written for one in moved.stores)
    partitions = sum(one.partitions for one in moved.stores)
    kept = f"; {partitions - written} partitions were there already" if written < partitions else ""
    print(f"{what} were moved and read again: equal digests{kept}")
    print(f"start the query with checkpointLocation {arguments.to_checkpoint}")
