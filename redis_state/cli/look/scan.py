"""`redis-state scan`: the rows of a store."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.arguments.keys_of import beginning_of
from redis_state.cli.arguments.place import add_place, add_query, state_of, which_of
from redis_state.cli.help import example
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Sheet
from redis_state.cli.output.state_types import Types, row_types
from redis_state.errors import ConfigError
from redis_state.live import Reader
from redis_state.reader import OperatorState
from redis_state.rows.text_values import has_columns

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

_SHOWN = 100
_VALUE, _VALUES = "value", "values"


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "scan",
        help="print the rows of a store",
        description="Print the rows of one store, in no order: the key columns, then the value "
        "columns, of list state a column 'values'. A value column with the name of a key column is "
        "called 'value.<name>'. Stores that Python keeps have the columns 'key' and 'value'.",
        epilog=example(
            "redis-state scan flights --url redis://localhost:6379/0 --limit 10",
            "redis-state scan flights --prefix carrier=UA --columns carrier,count --json",
            "redis-state scan flights --at 41 --format parquet --output flights.parquet",
        ),
    )
    add_query(parser)
    add_place(parser)
    parser.add_argument(
        "--prefix",
        action="append",
        default=[],
        metavar="COLUMN=VALUE",
        help="only rows with this value, name=text or name:=JSON, in the first key column; once "
        "more for the next one; of a store that Python keeps what a text key begins with, or "
        ":=JSON, an array, for the first parts of a tuple",
    )
    parser.add_argument("--columns", metavar="NAMES", help="only these, separated by commas")
    parser.add_argument(
        "--limit",
        type=int,
        metavar="ROWS",
        help=f"stop after so many; 0 for no limit (default: {_SHOWN} in a table, else none)",
    )
    printing.add_arguments(parser, files=True)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the rows."""
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
        rows = _chosen(_rows(state, which, arguments.prefix), arguments.columns)
        sheet = Sheet(
            itertools.islice(rows, limit or None),
            types=lambda: _chosen_types(row_types(state, which), arguments.columns),
        )
        if table and limit and arguments.limit is None:
            found = list(sheet.rows)
            sheet = Sheet(found)
            if len(found) == limit:
                sheet.notes = [f"The first {limit} rows; --limit 0 prints all."]
        printing.emit(arguments, sheet)
    return 0


def _needed(
    state: OperatorState, which: dict[str, Any], arguments: argparse.Namespace
) -> list[str] | None:
    """The columns that `--columns` and `--prefix` take; ``None`` where it is not clear."""
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
    wanted |= {pair.partition("=")[0].removesuffix(":") for pair in arguments.prefix}
    # The name of a value column depends on whether the key has one of the same name.
    wanted |= {name.removeprefix(f"{_VALUE}.") for name in wanted & values} & {*key.names}
    return [name for name in (*key.names, *values) if name in wanted]


def _rows(
    state: OperatorState, which: dict[str, Any], prefix: list[str]
) -> Iterator[dict[str, Any]]:
    """The rows that `--prefix` leaves, as the reader gives them: the one call to it."""
    family = state.family(**which)
    begins = beginning_of(family, prefix)
    items = state.list_items if family.multi_value else state.items
    row = _columns if has_columns(family) else _pair
    named = "values" if family.multi_value else "value"
    return (row(key, value, named) for key, value in items(**which) if begins(key))


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
