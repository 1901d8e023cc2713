"""`redis-state changes`: prints what each batch changes, as JSON lines."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.arguments.place import (
    add_columns,
    add_query,
    add_store,
    state_with_columns,
)
from redis_state.cli.help import example
from redis_state.cli.output.printing import json_line
from redis_state.ids import text_number
from redis_state.live import Reader

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

_INTERVAL_S = 1.0


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "changes",
        help="print what each batch changes",
        description=(
            "Print the changes of one store as JSON lines, batch by batch, once every partition "
            "has confirmed the batch: a line with 'batch', 'key' and 'value' for each key, null "
            "for a removed one, and a last line of the batch with 'batch', 'rows' and 'token'. "
            "After that line is processed, --since TOKEN continues after it; a batch without its "
            "last line is printed again."
        ),
        epilog=example(
            "redis-state changes flights --since start --url redis://localhost:6379/0",
            "redis-state changes flights --since 41 --follow",
        ),
    )
    add_query(parser)
    add_store(parser)
    add_columns(parser)
    parser.add_argument(
        "--since",
        metavar="TOKEN",
        help=(
            "begin after this token, or after the batch of this number; 'start': print the whole "
            "state first, as a batch whose last line has 'whole' set (default: from now on)"
        ),
    )
    parser.add_argument(
        "--follow", action="store_true", help="wait for further batches, until Ctrl-C"
    )
    parser.add_argument(
        "--interval",
        type=float,
        default=_INTERVAL_S,
        metavar="SECONDS",
        help=f"interval of --follow between two requests (default: {_INTERVAL_S:g})",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the changes."""
    since: str | int | None = arguments.since
    number = None if arguments.since is None else text_number(arguments.since)
    if number is not None:
        since = number
    with Reader(config_of(arguments)) as reader:
        state = state_with_columns(reader, arguments)
        feed = state.changes(since, follow=arguments.follow, interval_s=arguments.interval)
        for batch in feed:
            rows = 0
            for key, value in batch:
                rows += 1
                print(json_line({"batch": batch.number, "key": key, "value": value}))
            last = {"batch": batch.number, "rows": rows, "whole": batch.whole}
            print(json_line({**last, "token": batch.token}), flush=True)
    return 0
