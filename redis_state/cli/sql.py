"""`redis-state sql`: one SQL statement over live state."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from redis_state.cli.connection import add_arguments, config_of
from redis_state.cli.help import example
from redis_state.errors import ConfigError
from redis_state.reader import Reader
from redis_state.reader.json_values import to_json
from redis_state.reader.reader import SQL_MEMORY
from redis_state.reader.versions import CONFIRMED, LATEST

if TYPE_CHECKING:
    import pyarrow as pa

    from redis_state.cli.command import Subparsers

JSON, CSV = "json", "csv"


def add_to(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "sql",
        help="print the answer to a SQL statement over live state",
        description="Print the rows of one SELECT, SHOW TABLES or DESCRIBE, by DuckDB. A table has "
        "the name of its query; behind it stand the number of the operator, the store and the "
        "state variable, where they are not the usual ones. SHOW TABLES lists them.",
        epilog=example(
            'redis-state sql --url redis://localhost:6379/0 "select * from flights where carrier = '
            "'UA'\"",
            "redis-state sql --url redis://localhost:6379/0 --format csv 'select count(*) from "
            "flights'",
            "redis-state sql --url redis://localhost:6379/0 'show tables'",
        ),
    )
    parser.add_argument("statement", metavar="STATEMENT", help="one statement, which only reads")
    parser.add_argument(
        "--at",
        default=CONFIRMED,
        metavar="BATCH",
        help="state after this batch, or 'confirmed' or 'latest' (default: confirmed)",
    )
    parser.add_argument(
        "--memory",
        default=SQL_MEMORY,
        metavar="SIZE",
        help=f"what DuckDB may take, besides the answer (default: {SQL_MEMORY})",
    )
    parser.add_argument(
        "--format", choices=(JSON, CSV), default=JSON, help="default: JSON, one object a line"
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the answer."""
    with Reader(config_of(arguments)) as reader:
        at = _version(arguments.at)
        found = reader.sql(arguments.statement, at=at, memory=arguments.memory)
    _print(found, arguments.format)
    return 0


def _version(text: str) -> str | int:
    if text in (CONFIRMED, LATEST):
        return text
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(
            "choosing the version to read",
            found="--at is neither a number nor the name of a version",
            advice=f"Give the id of a batch, such as --at 41, or {CONFIRMED}, or {LATEST}.",
        )
    return int(text)


def _print(found: pa.Table, form: str) -> None:
    """Print rows in the form that was asked for."""
    rows = _rows(found)
    if form == JSON:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
        return
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(found.schema.names)
    for row in rows:
        writer.writerow(map(_cell, row.values()))


def _rows(found: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in found.to_batches():
        yield from map(to_json, batch.to_pylist())


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else value
