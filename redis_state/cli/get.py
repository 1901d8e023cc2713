"""`redis-state get`: the state of one key."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from redis_state.cli.connection import add_arguments, config_of
from redis_state.cli.help import example
from redis_state.cli.values import key_of, plain_key, to_json
from redis_state.codec.typed_row import ROW_CODEC
from redis_state.ids import DEFAULT_STORE
from redis_state.reader import Reader
from redis_state.reader.family import DEFAULT_FAMILY
from redis_state.reader.python_codec import codec_name_of
from redis_state.reader.rows.codec import codec_of
from redis_state.reader.typed_rows import typed_row_codec

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

ABSENT_STATUS = 3


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "get",
        help="print the state of one key as JSON",
        description="Print the value columns of one key as a JSON object, a list of them for list "
        "state, the value of a store that Python keeps, or null and exit with status "
        f"{ABSENT_STATUS} if there is no such key.",
        epilog=example("redis-state get --url redis://localhost:6379/0 --query flights carrier=UA"),
    )
    parser.add_argument("--query", required=True, help="name or id of the query, or a gen")
    parser.add_argument("--operator", type=int, default=0, help="Spark's operator id (default: 0)")
    parser.add_argument("--store", default=DEFAULT_STORE, help="Spark's store name")
    parser.add_argument(
        "--family",
        default=DEFAULT_FAMILY,
        help="state variable of transformWithState (default: the one family of other operators)",
    )
    parser.add_argument("--version", type=int, help="state version (default: the confirmed one)")
    parser.add_argument(
        "--uid",
        action="append",
        metavar="ID",
        help="Spark's unique id of the version in one partition, from the commit log of checkpoint "
        "format 2; once for each partition, in their order",
    )
    add_arguments(parser)
    parser.add_argument(
        "key",
        nargs="*",
        metavar="COLUMN=VALUE",
        help="a key column: name=text, or name:=JSON (null, or an object for a window); of a store "
        "that Python keeps the key itself: text, or :=JSON (a number; an array for a tuple)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the value."""
    with Reader(config_of(arguments)) as reader:
        query = reader.query(arguments.query)
        state = query.operator(arguments.operator, arguments.store, family=arguments.family)
        at: dict[str, Any] = {"version": arguments.version, "uids": arguments.uid}
        family = state.family(**at)
        get = state.get_list if family.multi_value else state.get
        name = codec_name_of(family)
        if name == ROW_CODEC:
            key: Any = key_of(typed_row_codec(family).key, arguments.key)
        elif name is None:
            key = key_of(codec_of(family).key, arguments.key)
        else:
            key = plain_key(arguments.key)
        value = get(key, **at)
    print(json.dumps(to_json(value), ensure_ascii=False))
    return ABSENT_STATUS if value is None or (family.multi_value and not value) else 0
