"""The arguments that name a store of a query, and a version of it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Protocol, get_args

from redis_state.errors import ConfigError
from redis_state.ids import DEFAULT_STORE, text_number
from redis_state.live import Reader
from redis_state.reader import OperatorState
from redis_state.reader.family import DEFAULT_FAMILY
from redis_state.reader.versions import CONFIRMED, LATEST
from redis_state.rows.decoding import Variants

ABSENT_STATUS = 3
"""A command ends with it when there is no such key."""


class Adds(Protocol):
    """A parser, or a group of one."""

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """As `argparse.ArgumentParser.add_argument`."""


def add_query(parser: argparse.ArgumentParser) -> None:
    """Add the name of the query."""
    parser.add_argument("query", metavar="QUERY", help="name or id of the query, or a gen")


def add_store(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a store."""
    parser.add_argument("--operator", type=int, default=0, help="Spark's operator id (default: 0)")
    parser.add_argument("--store", default=DEFAULT_STORE, help="Spark's store name")
    parser.add_argument(
        "--family",
        default=DEFAULT_FAMILY,
        help="state variable of transformWithState (default: the one family of other operators)",
    )
    add_text(parser)
    parser.add_argument(
        "--variant",
        choices=get_args(Variants),
        default="json",
        help="a VARIANT is printed as its JSON text, or as its two binaries (default: json)",
    )


def add_text(parser: argparse.ArgumentParser) -> None:
    """Add `--text`."""
    parser.add_argument(
        "--text",
        choices=("strict", "replace"),
        default="strict",
        help="a text that is not UTF-8 ends the command, or is printed with U+FFFD in the place of "
        "each wrong byte (default: strict)",
    )


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Add `--columns`, of the values that a command prints beside keys."""
    parser.add_argument(
        "--columns",
        metavar="NAMES",
        help="only these value columns, separated by commas; others are not parsed",
    )


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add those, and what names a version."""
    add_store(parser)
    which = parser.add_mutually_exclusive_group()
    add_at(which)
    which.add_argument(
        "--version",
        type=int,
        help="a state version instead: with Spark's own operators the number of the batch plus one",
    )


def state_of(
    reader: Reader, arguments: argparse.Namespace, columns: Sequence[str] | None = None
) -> OperatorState:
    """The store that the arguments name.

    Args:
        columns: Those that are parsed; ``None`` means all.

    Raises:
        NotFoundError: There is no such query.
    """
    query = reader.query(arguments.query)
    return query.operator(
        arguments.operator,
        arguments.store,
        family=arguments.family,
        text=arguments.text,
        variant=arguments.variant,
        columns=columns,
    )


def state_with_columns(reader: Reader, arguments: argparse.Namespace) -> OperatorState:
    """The store that the arguments name, with the value columns of `--columns`.

    Raises:
        NotFoundError: There is no such query.
        RedisStateError: As `OperatorState.types`.
    """
    state = state_of(reader, arguments)
    if arguments.columns is None:
        return state
    key, _ = state.types()
    names = [name.strip() for name in arguments.columns.split(",")]
    return state_of(reader, arguments, [*(() if key is None else key.names), *names])


def which_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The version that is meant, as the reader takes it.

    Raises:
        ConfigError: `--at` is neither a batch nor the name of a version.
    """
    if arguments.version is not None:
        return {"version": arguments.version}
    return {"at": at_of(arguments.at)}


def at_of(text: str) -> str | int:
    """A batch, or the name of a version.

    Raises:
        ConfigError: It is neither.
    """
    if text in (CONFIRMED, LATEST):
        return text
    batch = text_number(text)
    if batch is None:
        raise ConfigError(
            "choosing the version to read",
            found="--at is neither a number nor the name of a version",
            advice=f"Give the id of a batch, such as --at 41, or {CONFIRMED}, or {LATEST}.",
        )
    return batch


def add_at(parser: Adds) -> None:
    """Add `--at`."""
    parser.add_argument(
        "--at",
        default=CONFIRMED,
        metavar="BATCH",
        help=f"the state after this batch; or '{CONFIRMED}', the newest one that the query has "
        f"confirmed; or '{LATEST}', the newest one that every partition has published (default: "
        f"{CONFIRMED})",
    )


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the words of a key, as `keys_of.key_of_family` takes them."""
    parser.add_argument(
        "key",
        nargs="*",
        default=[],
        metavar="COLUMN=VALUE",
        help="a key column: name=text, or name:=JSON (null, or an object for a window); of a store "
        "that Python keeps the key itself: text, or :=JSON (a number; an array for a tuple)",
    )
