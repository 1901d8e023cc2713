"""`redis-state get`: the state of one key."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.arguments.keys_of import key_of_family
from redis_state.cli.arguments.place import (
    ABSENT_STATUS,
    add_columns,
    add_key,
    add_place,
    state_with_columns,
    which_of,
)
from redis_state.cli.help import example
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Sheet
from redis_state.live import Reader

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "get",
        help="print the state of one key",
        description="Print the value columns of one key: as a table on a terminal, else as a JSON "
        "object, a list of them for list state, the value of a store that Python keeps, or null. "
        f"Exit status {ABSENT_STATUS}: there is no such key.",
        epilog=example(
            "redis-state get --url redis://localhost:6379/0 --query flights carrier=UA",
            "redis-state get --query flights --at 41 carrier=UA --json",
        ),
    )
    parser.add_argument("--query", required=True, help="name or id of the query, or a gen")
    add_place(parser)
    add_columns(parser)
    parser.add_argument(
        "--uid",
        action="append",
        metavar="ID",
        help="Spark's unique id of the version in one partition, from the commit log of checkpoint "
        "format 2; once for each partition, in their order",
    )
    printing.add_arguments(parser)
    add_arguments(parser)
    add_key(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the value."""
    with Reader(config_of(arguments)) as reader:
        state = state_with_columns(reader, arguments)
        at = which_of(arguments) | ({"uids": arguments.uid} if arguments.uid else {})
        family = state.family(**at)
        get = state.get_list if family.multi_value else state.get
        value = get(key_of_family(family, arguments.key), **at)
    _print(arguments, value, lists=family.multi_value)
    return ABSENT_STATUS if value is None or (family.multi_value and not value) else 0


def _print(arguments: argparse.Namespace, value: Any, *, lists: bool) -> None:
    if printing.format_of(arguments) != printing.TABLE:
        print(printing.json_line(value))
        return
    if value is None or (lists and not value):
        printing.emit(arguments, Sheet([], notes=["There is no such key."]))
        return
    rows = value if lists else [value]
    printing.emit(
        arguments, Sheet([one if isinstance(one, Mapping) else {"value": one} for one in rows])
    )
