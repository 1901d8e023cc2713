"""`redis-state scan`: prints the rows of a store."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.arguments.keys_of import beginning_of
from redis_state.cli.arguments.newer import reads_confirmed, tell_if_newer
from redis_state.cli.arguments.place import add_key, add_place, add_query, state_of, which_of
from redis_state.cli.help import example
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Sheet
from redis_state.cli.output.state_types import Types, row_types
from redis_state.errors import ConfigError
from redis_state.live import Reader
from redis_state.reader import OperatorState
from redis_state.reader.version_request import LATEST
from redis_state.rows.text_values import has_columns

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

_SHOWN = 100
_LOOKED_AT_MAX = 10_000
"""Rows of a newer version that are read for a note: it must not cost a second scan."""
_VALUE, _VALUES = "value", "values"


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "scan",
        help="print the rows of a store",
        description="Print the rows of one store, in no order: the key columns, then the value "
        "columns. List state has one column 'values' instead. A value column with the name of a "
        "key column is called 'value.<name>'. Stores that Python keeps have the columns 'key' and "
        "'value'.",
        epilog=example(
            "redis-state scan flights --url redis://localhost:6379/0 --limit 10",
            "redis-state scan flights carrier=UA --columns carrier,count --json",
            "redis-state scan flights --at 41 --format parquet --output flights.parquet",
        ),
    )
    add_query(parser)
    add_place(parser)
    parser.add_argument(
        "--columns", metavar="NAMES", help="only these columns, separated by commas"
    )
    parser.add_argument(
        "--limit",
        type=int,
        metavar="ROWS",
        help=f"print at most this many; 0 means all (default: {_SHOWN} in a table, otherwise all)",
    )
    printing.add_arguments(parser, files=True)
    add_arguments(parser)
    add_key(
        parser,
        beginning=(
            "Only rows whose keys begin with these columns: all key columns, or the first ones. "
            "For a store that Python keeps: the beginning of a text, or the first parts of a tuple"
        ),
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the rows."""
    limit, table = arguments.limit, printing.format_of(arguments) == printing.TABLE
    if limit is not None and limit < 0:
        raise ConfigError("scanning a store", found="--limit is below 0", advice="Give 0 or more.")
    if limit is None:
        limit = _SHOWN if table else 0
    with Reader(config_of(arguments)) as reader:
        which = which_of(arguments)
        state = state_of(reader, arguments)
        if needed := _needed(state, which, arguments):
            state = state_of(reader, arguments, needed)
        rows = _chosen(_rows(state, which, arguments.key), arguments.columns)
        first = next(rows, None)
        sheet = Sheet(
            itertools.islice(
                itertools.chain(() if first is None else (first,), rows), limit or None
            ),
            types=lambda: _chosen_types(row_types(state, which), arguments.columns),
        )
        if table and limit and arguments.limit is None:
            found = list(sheet.rows)
            sheet = Sheet(found)
            if len(found) == limit:
                sheet.notes = [f"The first {limit} rows; --limit 0 prints all."]
        printing.emit(arguments, sheet)
        if first is None and reads_confirmed(arguments):
            newest = _items(state, {"at": LATEST}, arguments.key, limit=_LOOKED_AT_MAX)
            tell_if_newer(
                lambda: next(newest, None) is not None,
                what="such rows",
                advice="read them with --at latest",
            )
    return 0


def _needed(
    state: OperatorState, which: dict[str, Any], arguments: argparse.Namespace
) -> list[str] | None:
    """Returns the columns that `--columns` and the key words name; ``None`` means all columns."""
    if arguments.columns is None:
        return None
    key, value = state.types(**which)
    if key is None or value is None or not (key.distinct and value.distinct):
        return None
    values = {f"{_VALUE}.{name}" if name in key.names else name for name in value.names}
    wanted = {name.strip() for name in arguments.columns.split(",")}
    if _VALUES in wanted and state.family(**which).multi_value:
        wanted = wanted - {_VALUES} | values
    if not wanted <= {*key.names, *values}:
        return None
    wanted |= {pair.partition("=")[0].removesuffix(":") for pair in arguments.key}
    # The name of a value column depends on whether the key has one of the same name.
    wanted |= {name.removeprefix(f"{_VALUE}.") for name in wanted & values} & {*key.names}
    return [name for name in (*key.names, *values) if name in wanted]


def _rows(
    state: OperatorState, which: dict[str, Any], words: list[str]
) -> Iterator[dict[str, Any]]:
    """Returns the rows whose keys begin as the words say."""
    family = state.family(**which)
    row = _columns if has_columns(family) else _pair
    named = _VALUES if family.multi_value else _VALUE
    return (row(key, value, named) for key, value in _items(state, which, words))


def _items(
    state: OperatorState, which: dict[str, Any], words: list[str], *, limit: int | None = None
) -> Iterator[tuple[Any, Any]]:
    """Yields the keys that begin as the words say, with their values.

    Args:
        limit: How many rows to read at most; ``None`` means all.
    """
    family = state.family(**which)
    begins = beginning_of(family, words)
    items = state.list_items if family.multi_value else state.items
    for key, value in itertools.islice(items(**which), limit):
        if begins(key):
            yield key, value


def _pair(key: Any, value: Any, named: str) -> dict[str, Any]:
    return {"key": key, named: value}


def _columns(key: Mapping[str, Any], value: Any, named: str) -> dict[str, Any]:
    row = dict(key)
    if not isinstance(value, Mapping):
        return row | {named: value}
    return row | {f"value.{name}" if name in row else name: one for name, one in value.items()}


def _chosen_types(types: Types, columns: str | None) -> Types:
    if columns is None:
        return types
    return {name: types.get(name) for name in map(str.strip, columns.split(","))}


def _chosen(rows: Iterator[dict[str, Any]], columns: str | None) -> Iterator[dict[str, Any]]:
    if columns is None:
        yield from rows
        return
    names = [name.strip() for name in columns.split(",")]
    for row in rows:
        unknown = [name for name in names if name not in row]
        if unknown:
            raise ConfigError(
                f"choosing column '{unknown[0]}'",
                found="the store has no such column",
                advice=f"Columns: {', '.join(row)}.",
            )
        yield {name: row[name] for name in names}
