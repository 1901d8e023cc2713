"""Arguments that name a query, one of its stores, a version and a key."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Protocol, get_args

from redis_state.cli.arguments.newer import tell_uncommitted
from redis_state.errors import ConfigError
from redis_state.ids import DEFAULT_STORE, text_number
from redis_state.live import Reader
from redis_state.protocol.kept import is_keep_name
from redis_state.reader import OperatorState, Query, QueryView
from redis_state.reader.family import DEFAULT_FAMILY
from redis_state.reader.version_request import CONFIRMED, LATEST, UNCOMMITTED
from redis_state.types.decoding import Variants

ABSENT_STATUS = 3
"""Exit status of a command that does not find its key."""

QUERY_HELP = "name or id of the query, or a gen"
_KEY_HELP = (
    "a key column: name=text, or name:=JSON (null, or an object for a window). The key of a store "
    "that Python keeps is one column named key: key=text, or key:=JSON (a number; an array for a "
    "tuple)"
)


class Adds(Protocol):
    """Parser, or a group of one."""

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """Adds an argument, like `argparse.ArgumentParser.add_argument`."""


def add_query(parser: Adds, *, optional: str = "") -> None:
    """Adds the query, which is the first positional argument of every command that has one.

    Args:
        optional: The help text of a command that works without a query; empty for others.
    """
    parser.add_argument(
        "query",
        nargs="?" if optional else None,
        metavar="QUERY",
        help=optional or QUERY_HELP,
    )


def add_store(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that name a store, and how its values are printed."""
    parser.add_argument("--operator", type=int, default=0, help="Spark's operator id (default: 0)")
    parser.add_argument(
        "--store", default=DEFAULT_STORE, help=f"Spark's store name (default: {DEFAULT_STORE})"
    )
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
        help="print a VARIANT as its JSON text, or as its two binaries (default: json)",
    )


def add_text(parser: argparse.ArgumentParser) -> None:
    """Adds `--text`."""
    parser.add_argument(
        "--text",
        choices=("strict", "replace"),
        default="strict",
        help="fail on text that is not UTF-8, or print U+FFFD for each wrong byte "
        "(default: strict)",
    )


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Adds `--columns`, which chooses value columns."""
    parser.add_argument(
        "--columns",
        metavar="NAMES",
        help="only these value columns, separated by commas",
    )


def add_place(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that name a store and a version of it."""
    add_store(parser)
    which = parser.add_mutually_exclusive_group()
    add_at(which)
    which.add_argument(
        "--version",
        type=int,
        help="a state version instead; for Spark's own operators, the number of the batch plus one",
    )


def state_of(
    reader: Reader, arguments: argparse.Namespace, columns: Sequence[str] | None = None
) -> OperatorState:
    """Returns the store that the arguments name.

    Args:
        columns: The columns to parse; ``None`` means all.

    Raises:
        NotFoundError: There is no such query.
    """
    query = reader.query(arguments.query)
    source: Query | QueryView = query
    if getattr(arguments, "at", CONFIRMED) == UNCOMMITTED and arguments.version is None:
        source = query.view(arguments.operator, at=UNCOMMITTED)
        tell_uncommitted(source)
    return source.operator(
        arguments.operator,
        arguments.store,
        family=arguments.family,
        text=arguments.text,
        variant=arguments.variant,
        columns=columns,
    )


def state_with_columns(reader: Reader, arguments: argparse.Namespace) -> OperatorState:
    """Returns the store that the arguments name, with the value columns of `--columns`.

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
    """Returns the version that the arguments name, as keywords of a reader's methods.

    Raises:
        ConfigError: `--at` is neither a batch nor the name of a version.
    """
    if arguments.version is not None:
        return {"version": arguments.version}
    if arguments.at == UNCOMMITTED:
        # Of the view that `state_of` has opened.
        return {}
    return {"at": at_of(arguments.at)}


def at_of(text: str) -> str | int:
    """Returns the batch or the name of a version that `--at` holds.

    Raises:
        ConfigError: The text is neither.
    """
    if text in (CONFIRMED, LATEST, UNCOMMITTED):
        return text
    batch = text_number(text)
    if batch is not None:
        return batch
    if not is_keep_name(text):
        raise ConfigError(
            "choosing the version to read",
            found="--at is neither a number nor the name of a version",
            advice=f"Give the id of a batch, such as --at 41, or {CONFIRMED}, {LATEST} or "
            f"{UNCOMMITTED}, or the name of a kept version.",
        )
    return text


def add_at(parser: Adds) -> None:
    """Adds `--at`."""
    parser.add_argument(
        "--at",
        default=CONFIRMED,
        metavar="BATCH",
        help="the state after this batch; or the name of a kept version; or "
        f"'{CONFIRMED}', the newest version that the query has confirmed; or '{LATEST}', "
        f"the newest one that every partition has published; or '{UNCOMMITTED}', that one with "
        f"the rows that the running batch has published so far (default: {CONFIRMED})",
    )


def add_key(parser: argparse.ArgumentParser, *, beginning: str = "") -> None:
    """Adds the words of a key, which `keys_of` parses.

    Args:
        beginning: What the beginning of a key means, of a command that accepts one.
    """
    parser.add_argument(
        "key",
        nargs="*",
        default=[],
        metavar="COLUMN=VALUE",
        help=f"{_KEY_HELP}{beginning and f'. {beginning}'}",
    )
