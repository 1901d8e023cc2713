"""`redis-state demo`: runs a streaming job that is killed half way and still ends right."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from redis_state.cli.help import example

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "demo",
        help="run a streaming job that is killed half way and still ends with the right result",
        description="Stream a year of flights through four queries with a Redis of their own, read "
        "their state live, kill the job half way, start it again, and compare every result with a "
        "plain computation. The demo takes about three minutes, needs a JDK 17 and the packages of "
        "redis-state[demo], and leaves nothing behind.",
        epilog=example("redis-state demo"),
    )
    parser.set_defaults(run=run)


def run(_arguments: argparse.Namespace) -> int:
    """Runs the demo."""
    # Imported here: the demo needs packages that other commands do not.
    from redis_state.demo import start

    return start.run()
