"""`redis-state fork`: a second query that begins with the state of a first one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from redis_state.cli.arguments.checkpoint import (
    add_checkpoint,
    add_storage_options,
    open_folder,
)
from redis_state.cli.arguments.connection import ProgressLine, add_arguments, config_of
from redis_state.cli.arguments.place import add_query
from redis_state.cli.help import example
from redis_state.errors import ConfigError
from redis_state.forks import Forked, fork_with

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

_ADDRESSES = ("redis://", "rediss://", "redis+")


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "fork",
        help="begin a second query with the state of a first one; no state is copied",
        description="Make a new checkpoint folder that begins with the state of a query after a "
        "batch. The query may run, and continues as before. None of its state is copied: the fork "
        "reads the same segments, which the query keeps for it, and writes its own from then on. "
        "A query that starts with the new folder continues after that batch. Repeating an "
        "interrupted command finishes it. QUERY may also be the checkpoint folder, or the "
        "name of a Python store, of which --to then names the fork.",
        epilog=example(
            "redis-state fork flights --checkpoint /data/flights --at-batch 41 --to "
            "/data/flights-test --url redis://localhost:6379/0",
            "redis-state fork /data/flights --to /data/flights-test --url redis://localhost:6379/0",
            "redis-state fork visits --to visits-test --url redis://localhost:6379/0",
        ),
    )
    add_query(parser)
    parser.add_argument(
        "--to",
        required=True,
        metavar="PATH",
        help="a folder that does not exist, or the name of the new Python store",
    )
    parser.add_argument(
        "--at-batch",
        type=int,
        metavar="N",
        help="the batch after which the fork begins (default: the newest one that is committed)",
    )
    add_checkpoint(parser)
    add_storage_options(parser)
    parser.add_argument(
        "--name",
        help="name of the fork in `redis-state queries`, until its query gives its own (default: "
        "that of the query and '-fork')",
    )
    parser.add_argument(
        "--store-name",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="new name of a Python store that the query writes; may be repeated (default: its name "
        "and '-fork')",
    )
    parser.add_argument(
        "--detach",
        action="store_true",
        help="give the fork a snapshot of its own now, which reads and writes all of its state",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Makes the fork, and prints how to start its query."""
    if arguments.to.startswith(_ADDRESSES):
        raise ConfigError(
            "forking a query",
            found="--to names a server",
            advice="A fork is on the server of its parent, whose segments it reads: give a folder, "
            "or the name of a store. To move state to another server, migrate it.",
        )
    line = ProgressLine()
    try:
        made = fork_with(
            config_of(arguments),
            arguments.query,
            to=arguments.to,
            at_batch=arguments.at_batch,
            name=arguments.name,
            checkpoint=arguments.checkpoint,
            stores=_names(arguments.store_name),
            detach=arguments.detach,
            open_folder=partial(open_folder, arguments),
            progress=line,
        )
    finally:
        line.end()
    _print(made)
    return 0


def _names(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in given:
        old, is_there, new = pair.partition("=")
        if not (is_there and old and new):
            raise ConfigError(
                f"reading --store-name {pair}",
                found="it does not have two names",
                advice="Write it as OLD=NEW.",
            )
        found[old] = new
    return found


def _print(made: Forked) -> None:
    of = "its newest versions" if made.batch is None else f"the state after batch {made.batch}"
    print(
        f"forked {of}: {made.rows:,} rows in {made.partitions} partitions, in {made.seconds:.2f} s"
    )
    print(f"{made.name}: checkpoint {made.gen}")
    if made.detached:
        print(
            f"{made.detached} partitions have a snapshot of their own now; maintenance "
            "frees the query's segments a day later"
        )
    else:
        print("the query keeps the segments that the fork reads, until the fork has its own")
    for old, new in made.stores.items():
        if new != made.path:
            print(f"its store {old!r} is {new!r} in the fork: name that in the fork's program")
    if made.path not in made.stores.values():
        print(f"start a query with checkpointLocation {made.path}")
    else:
        print(f"open the store {made.path!r}")
