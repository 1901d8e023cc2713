"""`redis-state show`: prints one query with its operators, stores and partitions."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.arguments.place import add_query
from redis_state.cli.help import example
from redis_state.cli.look.queries import row_of, state_of
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Column, PrintedRow, Sheet, column, numbers
from redis_state.errors import FormatError, StateError
from redis_state.format.header import Family
from redis_state.live import Reader
from redis_state.protocol.pins import FORK
from redis_state.reader import PartitionStatus, Query, QueryStatus, StoreStatus
from redis_state.status import figures
from redis_state.status.query_status import PinStatus

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "show",
        help="show a query: operators, stores, families, partitions",
        description="Show one query: its newest run, its operators and stores with their "
        "column families, and each partition with its versions, rows, bytes, the process that "
        "serves it, and what holds its oldest version. With --json one object a line, with its "
        "'kind': the query, each store, each partition.",
        epilog=example("redis-state show flights --url redis://localhost:6379/0"),
    )
    add_query(parser)
    printing.add_arguments(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the query."""
    with Reader(config_of(arguments)) as reader:
        query = reader.query(arguments.query)
        status = query.status()
        notes = status.problems
        families = {
            (one.operator, one.store): families_of(query, one, notes) for one in status.stores
        }
    whole = {
        "kind": "query",
        "run": status.run,
        "driver_ms": status.driver_ms,
        **row_of(status),
        "bytes_max": status.bytes_max,
        "prefix_bytes": status.prefix_bytes,
        "prefix_bytes_max": status.prefix_bytes_max,
        "pinned_bytes": status.pinned_bytes,
        "foreign_bytes": status.foreign_bytes,
        "file_bytes": status.file_bytes,
        "pins": [asdict(one) for one in status.pins],
    }
    if printing.format_of(arguments) == printing.TABLE:
        sheets = [Sheet(_facts(whole, status), _FACTS, heading=False)]
    else:
        sheets = [Sheet([whole])]
    sheets.append(Sheet([_store(one, families) for one in status.stores], _STORES))
    partitions = [partition_row(status, of, one) for of in status.stores for one in of.partitions]
    sheets.append(Sheet(partitions, _PARTITIONS, notes=notes))
    printing.emit(arguments, *sheets)
    return 0


def families_of(query: Query, store: StoreStatus, notes: list[str]) -> list[Family]:
    """Returns the column families of a store, from the headers of its newest version.

    Without a readable version they come from the list that the query keeps.

    Args:
        notes: Receives the reason why a version cannot be read.
    """
    if any(one.confirmed for one in store.partitions):
        try:
            found = query.operator(store.operator, store.store).families()
            return found or list(store.families)
        except (StateError, FormatError) as error:
            notes.append(f"The list of families is that of the query's registration: {error}")
    return list(store.families)


def partition_row(status: QueryStatus, of: StoreStatus, one: PartitionStatus) -> dict[str, Any]:
    """Returns the members that JSON has of a partition."""
    owner = one.owner
    return {
        "kind": "partition",
        "operator": one.operator,
        "store": one.store,
        "partition": one.partition,
        "confirmed": one.confirmed,
        "confirmed_batch": of.batch_of(one.confirmed),
        "newest": one.newest,
        "newest_batch": of.batch_of(one.newest),
        "oldest": one.oldest,
        "kept": one.kept,
        "wanted": one.wanted,
        "held_by": one.held_by,
        "rows": one.rows,
        "internal_rows": one.internal_rows,
        "bytes": one.bytes,
        "snapshot": one.snapshot,
        "snapshot_bytes": one.snapshot_bytes,
        "delta_bytes": one.delta_bytes,
        "pinned_bytes": one.pinned_bytes,
        "foreign_bytes": one.foreign_bytes,
        "file_bytes": one.file_bytes,
        "share": one.share,
        "share_bytes": one.share_bytes,
        "written_ms": one.written_ms,
        "now_ms": status.now_ms,
        "run": one.run,
        "host": None if owner is None else owner.host,
        "executor": None if owner is None else owner.executor_id,
        "problem": one.problem,
    }


def _store(one: StoreStatus, families: dict[tuple[int, str], list[Family]]) -> dict[str, Any]:
    listed = families[one.operator, one.store]
    return {
        "kind": "store",
        "operator": one.operator,
        "store": one.store,
        "name": one.name,
        "partitions": len(one.partitions),
        "rows": one.rows,
        "internal_rows": one.internal_rows,
        "bytes": one.bytes,
        "families": [family.name for family in listed if not family.internal],
        "internal_families": [family.name for family in listed if family.internal],
        "ttl_families": [family.name for family in listed if family.ttl],
        "watermark_ms": one.watermark_ms,
    }


def _families(row: PrintedRow) -> str:
    """Returns the names of the families, with a mark for those whose rows have a time to live."""
    expiring = set(row["ttl_families"])
    return ", ".join(name + " (ttl)" * (name in expiring) for name in row["families"])


def _facts(row: PrintedRow, status: QueryStatus) -> Iterator[PrintedRow]:
    now_ms = status.now_ms
    driver = "not reported" if not status.driver_ms else figures.ago(status.driver_ms, now_ms)
    yield {"fact": "query", "value": figures.plain(status.title)}
    yield {"fact": "id", "value": figures.plain(status.id)}
    yield {"fact": "gen", "value": status.gen}
    yield {"fact": "run", "value": figures.plain(status.run) or figures.NOTHING}
    yield {"fact": "state", "value": state_of(row)}
    yield {"fact": "started", "value": figures.ago(status.started_ms, now_ms)}
    yield {"fact": "driver", "value": driver}
    yield {"fact": "written", "value": figures.ago(status.written_ms, now_ms)}
    yield {
        "fact": "batch",
        "value": f"{_batch(status.confirmed_batch)} confirmed, "
        f"{_batch(status.newest_batch)} published",
    }
    if status.bytes_max:
        yield {"fact": "limit", "value": _limit(status.bytes, status.bytes_max)}
    if status.prefix_bytes_max:
        shown = _limit(status.prefix_bytes, status.prefix_bytes_max)
        yield {"fact": "of the prefix", "value": shown}
    if status.replaced_by:
        yield {"fact": "replaced", "value": f"by {status.replaced_by}"}
    if status.fork_of:
        parent = figures.plain(status.fork_title) or status.fork_of
        yield {"fact": "fork", "value": f"of {parent}, since version {status.fork_version}"}
        if status.foreign_bytes:
            read = f"{figures.size(status.foreign_bytes)} in segments of its parent"
            yield {"fact": "reads", "value": read}
    if status.share_ratio is not None:
        yield {"fact": "bound", "value": f"{status.share_ratio:.0%} of the fullest share"}
    if status.file_bytes:
        what = "" if status.share_ratio is not None else " of older versions"
        yield {"fact": "files", "value": f"{figures.size(status.file_bytes)}{what}"}
    if status.condemned_bytes:
        value = f"{figures.size(status.condemned_bytes)} that nothing needs: `redis-state places`"
        yield {"fact": "condemned", "value": value}
    if status.moves_history and status.history_bytes:
        yield {"fact": "waiting", "value": f"{figures.size(status.history_bytes)} for a file"}
    for one in status.pins:
        yield {"fact": "pinned", "value": figures.plain(pin_text(one))}


def pin_text(pin: PinStatus) -> str:
    """Describes a pin: who holds which version until when, and what only pins hold of it."""
    who = f"fork {pin.title or pin.owner}" if pin.kind == FORK else f"kept version {pin.owner}"
    until = f" until {figures.moment(pin.expires_ms)}" if pin.expires_ms else ""
    held = f", {figures.size(pin.bytes)} not needed otherwise" if pin.bytes else ""
    return f"version {pin.version} for {who}{until}{held}"


def _limit(size: int, limit: int) -> str:
    return f"{100 * size // limit} % of {figures.size(limit)}"


def _batch(number: int | None) -> str:
    return "none" if number is None else figures.count(number)


def _owner(row: PrintedRow) -> str:
    return (
        figures.NOTHING
        if row["host"] is None
        else figures.plain(f"{row['host']}/{row['executor']}")
    )


def _or_nothing(value: object) -> str:
    return figures.NOTHING if value is None else str(value)


_FACTS = (column("fact"), column("value", folds=True))
_STORES = (
    numbers("operator", title="OP"),
    column("store"),
    column("name"),
    numbers("partitions", title="PARTS"),
    numbers("rows"),
    numbers("bytes", figures.size),
    Column("FAMILIES", lambda row: figures.plain(_families(row)), folds=True),
)
_PARTITIONS = (
    numbers("operator", title="OP"),
    column("store"),
    numbers("partition", title="PART"),
    numbers("confirmed", title="VERSION"),
    numbers("kept"),
    numbers("rows"),
    numbers("bytes", figures.size),
    column("held_by", _or_nothing, title="HELD BY"),
    Column("OWNER", _owner, folds=True),
)
