"""`redis-state why-growing`: prints why a state grows, from metadata alone."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.arguments.place import add_query
from redis_state.cli.help import example
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from redis_state.cli.output import printing
from redis_state.cli.output.causes import show_cause
from redis_state.cli.output.printing import Sheet
from redis_state.live import Reader

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

_NONE = (
    "Nothing that manifests, headers and the registry show makes this state grow. They do not show "
    "Spark's watermark (eventTime.watermark in query.lastProgress), how keys are spread within "
    "a partition, or how large single values are."
)


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "why-growing",
        help="print why the state of a query grows",
        description=(
            "Name the causes that metadata shows: keys that are never removed, a watermark that "
            "is missing or stuck, old keys, fat keys, uneven partitions, too many retained "
            "versions, late maintenance. No row is read."
        ),
        epilog=example(
            "redis-state why-growing flights --url redis://localhost:6379/0",
            before=f"Exit status: 0 no cause was seen, 1 an error, {PROBLEMS_STATUS} one or more.",
        ),
    )
    add_query(parser)
    printing.add_arguments(parser)
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the causes."""
    with Reader(config_of(arguments)) as reader:
        causes = reader.query(arguments.query).why_growing()
    if printing.format_of(arguments) == printing.TABLE:
        console = printing.console_of()
        for one in causes:
            show_cause(console, one)
        if not causes:
            console.print(_NONE)
    else:
        printing.emit(arguments, Sheet(asdict(one) for one in causes))
    return PROBLEMS_STATUS if causes else 0
