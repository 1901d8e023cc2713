"""`redis-state skew`: prints how uneven partitions are, from metadata alone."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.arguments.place import add_query
from redis_state.cli.help import example
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Column, PrintedRow, Sheet, column, numbers
from redis_state.live import Reader
from redis_state.reader import StoreStatus
from redis_state.status import figures

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "skew",
        help="show how uneven partitions are",
        description="Show the largest partition of each store, divided by the mean of all, by rows "
        "and by bytes; 1.0 is even. A task of a batch works on one partition, so the batch takes "
        "as long as its largest partition.",
        epilog=example("redis-state skew flights --url redis://localhost:6379/0"),
    )
    add_query(parser)
    printing.add_arguments(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the skew."""
    with Reader(config_of(arguments)) as reader:
        status = reader.query(arguments.query).status()
    rows = [skew_of(one) for one in status.stores if one.partitions]
    printing.emit(arguments, Sheet(rows, _COLUMNS, notes=status.problems))
    return 0


def skew_of(store: StoreStatus) -> dict[str, Any]:
    """Returns the largest partition divided by the mean, in rows and in bytes; 1 if both are 0."""
    row: dict[str, Any] = {
        "operator": store.operator,
        "store": store.store,
        "partitions": len(store.partitions),
    }
    row |= _named("rows", [one.rows for one in store.partitions])
    return row | _named("bytes", [one.bytes for one in store.partitions])


def _named(name: str, sizes: list[int]) -> dict[str, Any]:
    most, total = max(sizes), sum(sizes)
    return {
        f"{name}_skew": round(most * len(sizes) / total, 3) if total else 1.0,
        f"{name}_max": most,
        f"{name}_partition": sizes.index(most),
    }


def _times(name: str) -> Column:
    def show(row: PrintedRow) -> str:
        return f"{row[f'{name}_skew']:.2f}"

    return Column(f"{name.upper()} ×", show, right=True)


_COLUMNS = (
    numbers("operator", title="OP"),
    column("store"),
    numbers("partitions", title="PARTS"),
    _times("rows"),
    numbers("rows_max", title="MOST ROWS"),
    numbers("rows_partition", title="IN PART"),
    _times("bytes"),
    numbers("bytes_max", figures.size, title="MOST BYTES"),
    numbers("bytes_partition", title="IN PART"),
)
