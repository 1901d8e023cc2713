"""`redis-state sql`: runs one SQL statement over live state."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.arguments.place import add_at, add_text, at_of
from redis_state.cli.help import example
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Sheet
from redis_state.cli.output.state_types import Types
from redis_state.live import SQL_MEMORY, Reader
from redis_state.reader.version_request import UNCOMMITTED
from redis_state.rows.arrow_objects import objects
from redis_state.types.schema import free_name

if TYPE_CHECKING:
    import pyarrow as pa

    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "sql",
        help="print the answer to a SQL statement over live state",
        description="Print the rows of one SELECT, SHOW TABLES or DESCRIBE, which DuckDB runs. A "
        "table is named after its query, followed by the number of the operator, the store and "
        "the state variable where they are not the default ones. SHOW TABLES lists the tables.",
        epilog=example(
            'redis-state sql --url redis://localhost:6379/0 "select * from flights where carrier = '
            "'UA'\"",
            "redis-state sql --url redis://localhost:6379/0 --format csv 'select count(*) from "
            "flights'",
            "redis-state sql --url redis://localhost:6379/0 'show tables'",
        ),
    )
    parser.add_argument(
        "statement", metavar="STATEMENT", help="one SELECT, SHOW TABLES or DESCRIBE"
    )
    add_at(parser)
    add_text(parser)
    parser.add_argument(
        "--memory",
        default=SQL_MEMORY,
        metavar="SIZE",
        help=f"the most memory that DuckDB uses, without the answer (default: {SQL_MEMORY})",
    )
    printing.add_arguments(parser, files=True)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the answer."""
    with Reader(config_of(arguments)) as reader:
        at = at_of(arguments.at)
        if at == UNCOMMITTED:
            print("Uncommitted: rows of running batches may be taken back.", file=sys.stderr)
        found = reader.sql(arguments.statement, at=at, memory=arguments.memory, text=arguments.text)
    found = found.rename_columns(_different(found.column_names))
    names: Types = dict.fromkeys(found.column_names)
    printing.emit(arguments, Sheet(_rows(found), types=lambda: names, answer=found))
    return 0


def _different(names: Sequence[str]) -> list[str]:
    """Returns the names, with a number behind those that occur again, as in tables of state."""
    found: list[str] = []
    for name in names:
        found.append(free_name(name, [*found, *names] if name in found else found))
    return found


def _rows(found: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in found.to_batches():
        columns = [objects(column) for column in batch.columns]
        for row in zip(*columns, strict=True):
            yield dict(zip(found.column_names, row, strict=True))
