"""Entry point of the `redis-state` command."""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
from collections.abc import Sequence

from redis_state._version import __version__
from redis_state.cli.arguments.connection import with_server
from redis_state.cli.command import RunCommand
from redis_state.cli.help import Formatter, Intermixed
from redis_state.cli.registry import COMMANDS
from redis_state.errors import RedisStateError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def build_parser() -> argparse.ArgumentParser:
    """The parser with all registered commands."""
    parser = argparse.ArgumentParser(
        prog="redis-state", description="State of PySpark streaming queries, kept in Redis."
    )
    parser.add_argument("--version", action="version", version=f"redis-state {__version__}")
    # For the command that prints completions.
    parser.set_defaults(parser=parser)
    subparsers = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=Intermixed
    )
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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal of few letters shows others by their numbers.
            stream.reconfigure(errors="backslashreplace")
    arguments = build_parser().parse_args(argv)
    run: RunCommand = arguments.run
    try:
        status = run(arguments)
        sys.stdout.flush()
        return status
    except RedisStateError as error:
        from redis_state.status.figures import plain

        # A name in it may have what changes the terminal.
        text = "\n".join(map(plain, str(error).split("\n")))
        print(with_server(text, arguments), file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read, such as `head`, has enough.
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _drop_output()
        print(f"The output could not be written: {error.strerror}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _drop_output() -> None:
    """What Python still holds of it goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
