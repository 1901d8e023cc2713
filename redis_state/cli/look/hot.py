"""`redis-state hot`: prints the keys that the last batches changed most."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, get_args

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.arguments.place import add_query, add_store, state_of
from redis_state.cli.help import example
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Column, Sheet, column, numbers
from redis_state.live import Reader
from redis_state.reader.feed.hot import BATCHES, LIMIT, By, HotKeys
from redis_state.status import figures

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

_BY = get_args(By)


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "hot",
        help="print the keys that change most",
        description="Print the keys of one store that the last batches changed most, with the "
        "number of batches that changed them, the bytes written, and their share of all changes. "
        "Only what these batches wrote is read, never the whole state, at no cost to the query. "
        "With more than a hundred thousand keys the figures may be too low, by at most the error "
        "that is printed.",
        epilog=example(
            "redis-state hot flights --url redis://localhost:6379/0",
            "redis-state hot flights --batches 50 --by bytes --json",
        ),
    )
    add_query(parser)
    add_store(parser)
    parser.add_argument(
        "--batches",
        type=int,
        default=BATCHES,
        metavar="N",
        help=f"read the last N batches that are confirmed and kept (default: {BATCHES})",
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=LIMIT,
        metavar="KEYS",
        help=f"print at most this many (default: {LIMIT})",
    )
    parser.add_argument(
        "--by", choices=_BY, default=_BY[0], help=f"the order of the keys (default: {_BY[0]})"
    )
    printing.add_arguments(parser, files=True)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the keys."""
    with Reader(config_of(arguments)) as reader:
        found = state_of(reader, arguments).hot(
            batches=arguments.batches, limit=arguments.limit, by=arguments.by
        )
    rows = [
        {
            "key": one.key,
            "updates": one.updates,
            "batches": found.batches,
            "bytes": one.bytes,
            "share": one.share,
            "error": found.error,
        }
        for one in found.keys
    ]
    printing.emit(arguments, Sheet(rows, _COLUMNS, notes=[_note(found, arguments.by)]))
    return 0


def _note(found: HotKeys, by: str) -> str:
    if not found.batches:
        return "No batch is confirmed and kept."
    exact = f" Each may have {found.error:,} {by} more." if found.error else ""
    return (
        f"Batches {found.first:,} to {found.last:,}: {found.updates:,} updates, "
        f"{figures.size(found.bytes)} before compression.{exact}"
    )


_COLUMNS = (
    column("key", folds=True),
    numbers("updates"),
    numbers("bytes", figures.size),
    Column("SHARE", lambda row: f"{100 * row['share']:.2f} %", right=True),
)
