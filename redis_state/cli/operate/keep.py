"""`redis-state keep`: keeps a version readable under a name; lists and drops such versions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.arguments.place import add_query
from redis_state.cli.help import example
from redis_state.cli.output import printing
from redis_state.cli.output.printing import Column, PrintedRow, Sheet, column, numbers
from redis_state.config import Option, duration_ms
from redis_state.errors import ConfigError
from redis_state.forks.keep import drop_with, keep_with, kept_with
from redis_state.protocol.kept import KeptVersion
from redis_state.status import figures

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

_MINUTE_MS = 60_000
_YEARS_MS = 10 * 365 * 86_400_000
_FOR = Option("--for", "duration", None, "", "0.2.0", minimum=_MINUTE_MS, maximum=_YEARS_MS)


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "keep",
        help="keep a version readable under a name, or list and drop such versions",
        description="Give a version of a query a name, under which it stays readable however many "
        "batches follow: --at NAME reads it. No state is copied, and the query may run. Its "
        "segments stay in Redis until the name is dropped or expires.",
        epilog=example(
            "redis-state keep flights --name before-deploy --url redis://localhost:6379/0",
            "redis-state keep flights --name last-night --at-batch 41 --for 30d",
            "redis-state keep flights --list",
            "redis-state keep flights --drop before-deploy",
        ),
    )
    add_query(parser)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--name", metavar="NAME", help="keep a version under this name")
    which.add_argument("--list", action="store_true", help="list the kept versions")
    which.add_argument("--drop", metavar="NAME", help="drop a kept version")
    parser.add_argument(
        "--at-batch",
        type=int,
        metavar="N",
        help="the state after this batch (default: the newest version that the query has "
        "confirmed)",
    )
    parser.add_argument(
        "--for",
        dest="time",
        metavar="DURATION",
        help="drop the name after this time, such as 12h or 30d (default: never)",
    )
    printing.add_arguments(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Keeps, lists or drops, and prints the versions concerned."""
    config, query = config_of(arguments), arguments.query
    if arguments.name is None and (arguments.at_batch is not None or arguments.time is not None):
        raise ConfigError(
            "keeping a version",
            found="--at-batch and --for need --name",
            advice="Omit them, or give a name to keep a version.",
        )
    notes: list[str] = []
    if arguments.name is not None:
        time_ms = 0 if arguments.time is None else duration_ms(_FOR, arguments.time)
        batch = arguments.at_batch
        name = arguments.name
        found = [keep_with(config, query, name=name, at_batch=batch, keep_ms=time_ms)]
    elif arguments.list:
        found = kept_with(config, query)
        notes = [] if found else ["The query has no kept version."]
    else:
        found = [drop_with(config, query, arguments.drop)]
        notes = ["The name is dropped. The next maintenance removes what only it needed."]
    printing.emit(arguments, Sheet([_row(one) for one in found], _COLUMNS, notes=notes))
    return 0


def _row(one: KeptVersion) -> dict[str, Any]:
    return {
        "name": one.name,
        "batch": one.batch,
        "version": one.version,
        "at_ms": one.at_ms,
        "expires_ms": one.expires_ms or None,
    }


def _until(row: PrintedRow) -> str:
    return figures.moment(row["expires_ms"]) if row["expires_ms"] else "dropped"


_COLUMNS = (
    column("name"),
    numbers("batch"),
    numbers("version"),
    Column("KEPT SINCE", lambda row: figures.moment(row["at_ms"])),
    Column("UNTIL", _until),
)
