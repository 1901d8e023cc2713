"""`redis-state export`: writes one version of a whole query as Parquet files."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from redis_state.cli.arguments.connection import ProgressLine, add_arguments, config_of
from redis_state.cli.arguments.place import add_at, add_query, at_of
from redis_state.cli.help import example
from redis_state.exports.export import FILE_BYTES
from redis_state.exports.manifest import COLUMNS, RAW, Export
from redis_state.live import Reader

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "export",
        help="write one version of a whole query as Parquet files",
        description="Write one version of all stores of a query into a folder, as Parquet files "
        "that DuckDB, pandas and Spark read, and that `redis-state import` brings back exactly. "
        "The query may run meanwhile. The same command continues an interrupted export, and keeps "
        "its complete files. The file manifest.json is written last: without it there is no "
        "export.",
        epilog=example(
            "redis-state export flights --to /backup/flights --url redis://localhost:6379/0",
            "redis-state export flights --to s3://bucket/flights-41 --at 41",
        ),
    )
    add_query(parser)
    parser.add_argument(
        "--to",
        required=True,
        metavar="FOLDER",
        help="a new folder, or a URL of one, such as s3://bucket/flights",
    )
    add_at(parser)
    parser.add_argument(
        "--operator", type=int, metavar="N", help="only this operator's stores (default: all)"
    )
    parser.add_argument(
        "--format",
        choices=(COLUMNS, RAW),
        default=COLUMNS,
        help=f"'{COLUMNS}': the bytes of keys and values, and their columns where they are known; "
        f"'{RAW}': the bytes alone (default: {COLUMNS})",
    )
    parser.add_argument(
        "--file-bytes",
        type=int,
        default=FILE_BYTES,
        metavar="BYTES",
        help=f"size of keys and values at which a file ends (default: {FILE_BYTES})",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Exports, and prints what was written."""
    line = ProgressLine()
    with Reader(config_of(arguments)) as reader:
        try:
            found = reader.export(
                arguments.query,
                arguments.to,
                at=at_of(arguments.at),
                operator=arguments.operator,
                contents=arguments.format,
                file_bytes=arguments.file_bytes,
                progress=line,
            )
        finally:
            line.end()
    for text in told(found):
        print(text)
    return 0


def told(export: Export) -> list[str]:
    """Returns the contents of an export, a line for each store."""
    when = "" if export.batch is None else f", the state after batch {export.batch}"
    lines = [
        f"query {export.name or export.id}{when}: {export.rows:,} rows, {export.bytes:,} bytes in "
        f"{len(export.files)} files"
    ]
    lines += [
        f"operator {one.operator} store {one.store}: {one.rows:,} rows, digest {one.digest}"
        for one in export.stores
    ]
    lines += [
        f"operator {operator} store {store}: left out, it has nothing of this version"
        for operator, store in export.left_out
    ]
    return lines
