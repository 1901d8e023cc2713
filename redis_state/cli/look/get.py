"""`redis-state get`: prints the state of one key."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.arguments.keys_of import key_of_family
from redis_state.cli.arguments.newer import reads_confirmed, tell_if_newer
from redis_state.cli.arguments.place import (
    ABSENT_STATUS,
    add_columns,
    add_key,
    add_place,
    add_query,
    state_with_columns,
    which_of,
)
from redis_state.cli.help import example
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Sheet
from redis_state.live import Reader
from redis_state.reader.version_request import LATEST

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "get",
        help="print the state of one key",
        description="Print the value of one key: as a table on a terminal, else as JSON. That is "
        "an object of the value columns, a list of objects for list state, or the value itself of "
        "a store that Python keeps; null if there is no such key. Exit status "
        f"{ABSENT_STATUS}: there is no such key.",
        epilog=example(
            "redis-state get flights carrier=UA --url redis://localhost:6379/0",
            "redis-state get flights carrier=UA --at 41 --json",
            "redis-state get 'visits per user' key=ann --at latest",
        ),
    )
    add_query(parser)
    add_place(parser)
    add_columns(parser)
    parser.add_argument(
        "--uid",
        action="append",
        metavar="ID",
        help="Spark's unique id of the version in a partition, from the commit log of checkpoint "
        "format 2; once for each partition, in their order",
    )
    printing.add_arguments(parser)
    add_arguments(parser)
    add_key(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the value."""
    with Reader(config_of(arguments)) as reader:
        state = state_with_columns(reader, arguments)
        at = which_of(arguments) | ({"uids": arguments.uid} if arguments.uid else {})
        family = state.family(**at)
        get = state.get_list if family.multi_value else state.get
        key = key_of_family(family, arguments.key)
        value = get(key, **at)
        if _is_absent(value, lists=family.multi_value) and reads_confirmed(arguments):
            tell_if_newer(
                lambda: state.get_many([key], at=LATEST) != [None],
                what="this key",
                advice="read it with --at latest",
            )
    _print(arguments, value, lists=family.multi_value)
    return ABSENT_STATUS if _is_absent(value, lists=family.multi_value) else 0


def _is_absent(value: Any, *, lists: bool) -> bool:
    return value is None or (lists and not value)


def _print(arguments: argparse.Namespace, value: Any, *, lists: bool) -> None:
    if printing.format_of(arguments) != printing.TABLE:
        print(printing.json_line(value))
        return
    if _is_absent(value, lists=lists):
        printing.emit(arguments, Sheet([], notes=["There is no such key."]))
        return
    rows = value if lists else [value]
    printing.emit(
        arguments, Sheet([one if isinstance(one, Mapping) else {"value": one} for one in rows])
    )
