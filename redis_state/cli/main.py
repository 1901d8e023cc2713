"""Entry point of the `redis-state` command."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from redis_state._version import __version__
from redis_state.cli.command import Run
from redis_state.cli.help import Formatter
from redis_state.cli.registry import COMMANDS
from redis_state.errors import RedisStateError


def build_parser() -> argparse.ArgumentParser:
    """The parser with all registered commands."""
    parser = argparse.ArgumentParser(
        prog="redis-state", description="State of PySpark streaming queries, kept in Redis."
    )
    parser.add_argument("--version", action="version", version=f"redis-state {__version__}")
    # For the command that prints completions.
    parser.set_defaults(parser=parser)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_to(subparsers)
    for one in subparsers.choices.values():
        one.formatter_class = Formatter
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        0, or 1 after an error of redis-state, whose message goes to standard error; the command may
        have other statuses. Wrong usage ends the process with 2, as argparse does.
    """
    arguments = build_parser().parse_args(argv)
    run: Run = arguments.run
    try:
        status = run(arguments)
        sys.stdout.flush()
        return status
    except RedisStateError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read, such as `head`, has enough. What Python still holds goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
