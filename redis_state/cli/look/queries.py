"""`redis-state queries`: lists the queries that keep state in a server."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.help import example
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Column, PrintedRow, Sheet, column, numbers
from redis_state.live import Reader
from redis_state.reader import QueryStatus
from redis_state.status import figures

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "queries",
        help="list the queries that keep state in a server",
        description="List the queries that keep state in a server, one for each checkpoint, the "
        "newest last, from metadata alone. 'replaced_by' (on a terminal: replaced) marks a "
        "checkpoint whose folder was deleted and created again: `redis-state purge --gen` removes "
        "its state. 'fork_of' (on a terminal: fork of) names the checkpoint that a fork was made "
        "from.",
        epilog=example("redis-state queries --url redis://localhost:6379/0"),
    )
    printing.add_arguments(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the queries."""
    with Reader(config_of(arguments)) as reader:
        rows = [row_of(one) for one in reader.status()]
    notes = [] if rows else ["No query keeps state in this Redis, database and key prefix."]
    printing.emit(arguments, Sheet(rows, COLUMNS, notes=notes))
    return 0


def row_of(status: QueryStatus) -> dict[str, Any]:
    """Returns the members that JSON has of a query."""
    row = {
        "gen": status.gen,
        "id": status.id,
        "name": status.name,
        "created_ms": status.created_ms,
        "seen_ms": status.seen_ms,
        "started_ms": status.started_ms,
        "written_ms": status.written_ms,
        "now_ms": status.now_ms,
        "confirmed_batch": status.confirmed_batch,
        "newest_batch": status.newest_batch,
        "partitions": sum(1 for _ in status.partitions),
        "served": status.served,
        "rows": status.rows,
        "bytes": status.bytes,
        "driver_alive": status.driver_alive,
        "alive": status.alive,
        "problems": status.problems,
    }
    if status.fork_of:
        row["fork_of"] = status.fork_of
        row["fork_title"] = status.fork_title
    return row | ({"replaced_by": status.replaced_by} if status.replaced_by else {})


def title_of(row: PrintedRow) -> str:
    """Returns the name of a query, or an id if it has no name."""
    return str(row["name"] or row["id"] or row["gen"])


def _title(row: PrintedRow) -> str:
    """Returns the name of a query; of a fork followed by that of its parent."""
    title = figures.plain(title_of(row))
    if not row.get("fork_of"):
        return title
    return f"{title} (fork of {figures.plain(row['fork_title']) or row['fork_of'][:6] + '…'})"


def state_of(row: PrintedRow) -> str:
    """Returns the state of a query in a word."""
    if row["problems"]:
        return "problem"
    if row.get("replaced_by"):
        return "replaced"
    return "alive" if row["alive"] else "quiet"


COLUMNS = (
    Column("QUERY", _title, shrinks=True),
    Column("STATE", state_of),
    numbers("confirmed_batch", title="BATCH"),
    numbers("rows"),
    numbers("bytes", figures.size),
    Column("SERVED", lambda row: f"{row['served']}/{row['partitions']}", right=True),
    Column("WRITTEN", lambda row: figures.ago(row["written_ms"], row["now_ms"]), right=True),
    column("gen", lambda gen: f"{gen[:6]}…", title="GEN"),
)
