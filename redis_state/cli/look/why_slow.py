"""`redis-state why-slow`: prints where the time of a query's batches goes, and why it is long."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.arguments.place import add_query
from redis_state.cli.help import example
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from redis_state.cli.output import printing
from redis_state.cli.output.causes import show_cause
from redis_state.cli.output.printing import Sheet
from redis_state.live import Reader
from redis_state.reader import Slowness, TimeSpent
from redis_state.status import figures
from redis_state.status.slow_figures import PARTS

if TYPE_CHECKING:
    from rich.console import Console

    from redis_state.cli.command import Subparsers

_NONE = "Nothing in what the executors, the manifests and the server show is out of the ordinary."
_MEANINGS = {**PARTS, "background": "folds, snapshots and retention, which no batch waits for"}


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "why-slow",
        help="print where the time of a query's batches goes",
        description="Split the time of the last minutes' batches by the reports of the executors, "
        "and name what is out of the ordinary: round trips, the server, waiting, loads, memory, "
        "snapshots, encoding, partitions, or work outside of the store. Takes a second or two; no "
        "row is read.",
        epilog=example(
            "redis-state why-slow flights --url redis://localhost:6379/0",
            before=f"Exit status: 0 no cause was seen, 1 an error, {PROBLEMS_STATUS} one or more.",
        ),
    )
    add_query(parser)
    printing.add_arguments(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints times, causes and what is unknown."""
    with Reader(config_of(arguments)) as reader:
        found = reader.query(arguments.query).why_slow()
    if printing.format_of(arguments) == printing.TABLE:
        _show(printing.console_of(), found)
    else:
        printing.emit(arguments, Sheet(_lines(found)))
    return PROBLEMS_STATUS if found.causes else 0


def _lines(found: Slowness) -> Iterator[dict[str, Any]]:
    for time in found.times:
        yield {"type": "time", **asdict(time)}
    for cause in found.causes:
        yield {"type": "cause", **asdict(cause)}
    for line in found.unknown:
        yield {"type": "unknown", "found": line}


def _show(console: Console, found: Slowness) -> None:
    for (operator, store), of in groupby(found.times, lambda one: (one.operator, one.store)):
        named = "" if store == "default" else f", store {figures.plain(store)}"
        _show_times(console, f"operator {operator}{named}: a batch of one partition", list(of))
    for cause in found.causes:
        show_cause(console, cause)
    if not found.causes:
        console.print(_NONE)
    for line in found.unknown:
        console.print(f"unknown: {figures.plain(line)}", soft_wrap=not console.is_terminal)


def _show_times(console: Console, title: str, times: list[TimeSpent]) -> None:
    console.print(title, style="bold")
    rows = [
        {
            "part": one.part,
            "ms": f"{one.ms:,.1f} ms",
            "share": "" if one.part == "background" else f"{one.share:.0%}",
            "meaning": _MEANINGS[one.part],
        }
        for one in times
    ]
    columns = [
        printing.column("part"),
        printing.column("ms", right=True),
        printing.column("share", right=True),
        printing.column("meaning", folds=True),
    ]
    console.print(printing.table_of(columns, rows, heading=False))
