"""`redis-state size`: prints rows and bytes of a query by store, partition or family."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.arguments.place import add_query
from redis_state.cli.help import example
from redis_state.cli.look.show import families_of, partition_row, pin_text
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Column, Sheet, column, numbers
from redis_state.format.header import Family
from redis_state.live import Reader
from redis_state.reader import QueryStatus, StoreStatus
from redis_state.status import figures

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

_BY = ("operator", "partition", "family")
_SIZES = (
    "rows",
    "internal_rows",
    "bytes",
    "snapshot_bytes",
    "delta_bytes",
    "pinned_bytes",
    "foreign_bytes",
    "file_bytes",
    "share",
    "share_bytes",
)


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "size",
        help="show rows and bytes by operator, partition or family",
        description="Show how large a query's state is, from manifests alone. Rows are keys of the "
        "confirmed version; bytes are those of all retained versions, compressed: 'snapshot' is "
        "the newest snapshot, 'deltas' are all kept changes. Manifests count the keys of internal "
        "families apart; the other families of a store are counted together.",
        epilog=example("redis-state size flights --by partition --url redis://localhost:6379/0"),
    )
    add_query(parser)
    parser.add_argument(
        "--by", choices=_BY, default=_BY[0], help=f"print a line for each (default: {_BY[0]})"
    )
    printing.add_arguments(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the sizes."""
    with Reader(config_of(arguments)) as reader:
        query = reader.query(arguments.query)
        status = query.status()
        notes = [*status.problems, *_held(status)]
        if arguments.by == "family":
            found = [(of, families_of(query, of, notes)) for of in status.stores]
            rows = [row for of, families in found for row in _by_family(of, families)]
            printing.emit(arguments, Sheet(rows, _FAMILIES, notes=notes))
            return 0
    by_partition = arguments.by == "partition"
    rows = list(_by_partition(status) if by_partition else map(_by_store, status.stores))
    columns = [*_PLACE, *([numbers("partition", title="PART")] if by_partition else []), *_FIGURES]
    printing.emit(arguments, Sheet(rows, columns, notes=notes))
    return 0


def _held(status: QueryStatus) -> Iterator[str]:
    """Yields notes on the bytes of pins, shares, files and a parent."""
    if status.pinned_bytes:
        whose = "; ".join(figures.plain(pin_text(one)) for one in status.pins if one.bytes)
        yield f"{figures.size(status.pinned_bytes)} are held only by pins: {whose}."
    if status.share_ratio is not None:
        most = sum(one.share for one in status.partitions)
        used = sum(one.share_bytes for one in status.partitions)
        yield (
            f"{figures.size(used)} of the {figures.size(most)} of all shares of redisMemory are "
            f"used, of the fullest share {status.share_ratio:.0%}."
        )
    if status.file_bytes:
        yield (
            f"{figures.size(status.file_bytes)} more are in files, which are not counted here: "
            "`redis-state places` shows them."
        )
    if status.foreign_bytes:
        parent = figures.plain(status.fork_title) or status.fork_of
        yield (
            f"{figures.size(status.foreign_bytes)} more are in segments of its parent {parent}, "
            "which are not counted here."
        )


def _by_store(of: StoreStatus) -> dict[str, Any]:
    sums = {name: sum(getattr(one, name) for one in of.partitions) for name in _SIZES}
    return {"operator": of.operator, "store": of.store, **sums}


def _by_partition(status: QueryStatus) -> Iterator[dict[str, Any]]:
    wanted = ("operator", "store", "partition", *_SIZES)
    for of in status.stores:
        for one in of.partitions:
            row = partition_row(status, of, one)
            yield {name: row[name] for name in wanted}


def _by_family(of: StoreStatus, families: list[Family]) -> Iterator[dict[str, Any]]:
    """Yields the two counts of manifests: keys of internal families, and all other keys."""
    place = {"operator": of.operator, "store": of.store}
    for internal, rows in ((False, of.rows), (True, of.internal_rows)):
        names = [family.name for family in families if family.internal is internal]
        if names or rows:
            yield {**place, "families": names, "internal": internal, "rows": rows}


_PLACE = (numbers("operator", title="OP"), column("store"))
_FIGURES = (
    numbers("rows"),
    numbers("internal_rows", title="INTERNAL"),
    numbers("bytes", figures.size),
    numbers("snapshot_bytes", figures.size, title="SNAPSHOT"),
    numbers("delta_bytes", figures.size, title="DELTAS"),
)
_FAMILIES = (
    *_PLACE,
    Column("FAMILIES", lambda row: figures.plain(", ".join(row["families"])) or "-", folds=True),
    Column("INTERNAL", lambda row: "yes" if row["internal"] else "no"),
    numbers("rows"),
)
