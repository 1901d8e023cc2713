"""`redis-state diff`: prints what changed between two batches."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.arguments.place import (
    add_columns,
    add_query,
    add_store,
    state_with_columns,
)
from redis_state.cli.help import example
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Sheet
from redis_state.cli.output.state_types import STRING, Types, types_of
from redis_state.errors import ConfigError, NotFoundError
from redis_state.live import Reader
from redis_state.reader import OperatorState

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "diff",
        help="print what changed between two batches",
        description="Print the keys of one store whose values differ between the states after two "
        "batches, in no order: the change ('inserted', 'updated' or 'removed'), the key, and the "
        "values before and after. Only what these batches wrote is read, never the whole state.",
        epilog=example(
            "redis-state diff flights 40 41 --url redis://localhost:6379/0",
            "redis-state diff flights 40 --json",
        ),
    )
    add_query(parser)
    parser.add_argument(
        "a", type=int, metavar="BATCH", help="a batch; -1 is the empty state before all batches"
    )
    parser.add_argument(
        "b",
        type=int,
        nargs="?",
        metavar="BATCH",
        help="another batch (default: the newest one that the query has confirmed)",
    )
    add_store(parser)
    add_columns(parser)
    printing.add_arguments(parser, files=True)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the changes."""
    with Reader(config_of(arguments)) as reader:
        state = state_with_columns(reader, arguments)
        a, b = arguments.a, arguments.b
        sheet = Sheet(_rows(state, a, b), types=lambda: _types(state, a, b))
        printing.emit(arguments, sheet)
    return 0


def _types(state: OperatorState, a: int, b: int | None) -> Types:
    """Returns the types after the later batch; types it does not have come from the rows."""
    key = value = None
    with suppress(NotFoundError, ConfigError):
        key, value = types_of(state, {} if b is None else {"at": max(a, b)})
    return {"change": STRING, "key": key, "before": value, "after": value}


def _rows(state: OperatorState, a: int, b: int | None) -> Iterator[dict[str, Any]]:
    for change in state.diff(a, b):
        what = "inserted" if change.before is None else "updated"
        yield {
            "change": "removed" if change.after is None else what,
            "key": change.key,
            "before": change.before,
            "after": change.after,
        }
