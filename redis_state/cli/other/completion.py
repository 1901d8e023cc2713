"""`redis-state completion`: prints a script that completes this command in a shell."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from redis_state.cli.help import example
from redis_state.errors import ConfigError

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

SHELLS = ("bash", "zsh")
_FILES = ("FILE", "PATH")


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "completion",
        help="print a script that completes this command in bash or zsh",
        description="Print a script for the shell, which completes commands, options and paths. "
        "The command needs the package of redis-state[completion].",
        epilog=example(
            "redis-state completion bash > ~/.local/share/bash-completion/completions/redis-state",
            "redis-state completion zsh > /usr/local/share/zsh/site-functions/_redis-state",
        ),
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the script."""
    try:
        import shtab
    except ModuleNotFoundError as error:
        raise ConfigError(
            "printing a completion",
            found="the package shtab is missing",
            advice="Run `pip install 'redis-state[completion]'`.",
        ) from error
    parser: argparse.ArgumentParser = arguments.parser
    for command in commands_of(parser).values():
        for action in command._actions:
            if action.metavar in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined] # shtab looks for it
    print(shtab.complete(parser, arguments.shell))
    return 0


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Returns the parser of each command, by its name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}
