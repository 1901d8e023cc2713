"""`redis-state history`: prints the values that a key has had."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.arguments.keys_of import key_of_family
from redis_state.cli.arguments.newer import tell_if_newer
from redis_state.cli.arguments.place import (
    ABSENT_STATUS,
    add_columns,
    add_key,
    add_query,
    add_store,
    state_with_columns,
)
from redis_state.cli.help import example
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Sheet
from redis_state.cli.output.state_types import BOOLEAN, LONG, Types, types_of
from redis_state.live import Reader
from redis_state.reader import OperatorState
from redis_state.reader.version_request import LATEST

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "history",
        help="print the values that a key has had",
        description="Print the values of one key, the newest first, each with the batch that wrote "
        "it, as far back as versions are kept; null where a batch removed the key. The oldest "
        "value has 'earlier' set if an older batch may have written it. Exit status "
        f"{ABSENT_STATUS}: no retained version has the key.",
        epilog=example(
            "redis-state history flights carrier=UA --url redis://localhost:6379/0",
            "redis-state history flights carrier=UA --limit 3 --json",
        ),
    )
    add_query(parser)
    add_store(parser)
    add_columns(parser)
    parser.add_argument("--limit", type=int, metavar="VALUES", help="print at most this many")
    printing.add_arguments(parser, files=True)
    add_arguments(parser)
    add_key(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the values."""
    with Reader(config_of(arguments)) as reader:
        state = state_with_columns(reader, arguments)
        key = key_of_family(state.family(), arguments.key)
        found = state.history(key, limit=arguments.limit)
        rows = [{"batch": one.batch, "value": one.value, "earlier": one.earlier} for one in found]
        notes = [] if rows else ["No retained version has such a key."]
        printing.emit(arguments, Sheet(rows, types=lambda: _types(state), notes=notes))
        if not rows:
            tell_if_newer(
                lambda: state.get_many([key], at=LATEST) != [None],
                what="this key",
                advice="read it with get --at latest",
            )
    return 0 if rows else ABSENT_STATUS


def _types(state: OperatorState) -> Types:
    return {"batch": LONG, "value": types_of(state, {})[1], "earlier": BOOLEAN}
