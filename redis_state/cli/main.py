"""Entry point of the `redis-state` command."""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial

from redis_state._version import __version__
from redis_state.cli.arguments.connection import with_server
from redis_state.cli.command import RunCommand
from redis_state.cli.help import Formatter, GroupedFormatter, Intermixed
from redis_state.cli.registry import GROUPS
from redis_state.errors import RedisStateError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser with all registered commands."""
    groups: dict[str, list[str]] = {}
    parser = argparse.ArgumentParser(
        prog="redis-state",
        description="Reads and operates the state that PySpark streaming queries keep in Redis.",
        formatter_class=partial(GroupedFormatter, groups=groups),
    )
    parser.add_argument("--version", action="version", version=f"redis-state {__version__}")
    # For the command that prints completions.
    parser.set_defaults(parser=parser)
    subparsers = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=Intermixed
    )
    for group in GROUPS:
        known = set(subparsers.choices)
        for command in group.commands:
            command.add_to(subparsers)
        groups[group.title] = [name for name in subparsers.choices if name not in known]
    for one in subparsers.choices.values():
        one.formatter_class = Formatter
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        The exit status: 0, or 1 after an error of redis-state, whose message goes to standard
        error. Commands may return others. Wrong usage ends the process with 2, as argparse does.
    """
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without Unicode shows other letters as escapes.
            stream.reconfigure(errors="backslashreplace")
    arguments = build_parser().parse_args(argv)
    run: RunCommand = arguments.run
    try:
        status = run(arguments)
        sys.stdout.flush()
        return status
    except RedisStateError as error:
        from redis_state.status.figures import plain

        # A name in the message may hold control characters.
        text = "\n".join(map(plain, str(error).split("\n")))
        print(with_server(text, arguments), file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of the output, such as `head`, has ended.
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


def _open_streams() -> None:
    """Opens the standard streams that the caller has closed, so that no socket has their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _drop_output() -> None:
    """Discards the output that Python still buffers."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
