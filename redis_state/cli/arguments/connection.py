"""The arguments by which commands reach a server."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from typing import Any

from redis_state.cli.arguments.profile import PROFILE_VARIABLE, URL_VARIABLE, server_options
from redis_state.config import PASSWORD_VARIABLE, Config, parse

_DEADLINE = "10s"
# With arguments, or the one that needs none; a bare name is a tool that is talked of.
_PRINTED = re.compile(r"`(redis-state (?:queries|[a-z-]+(?: [^\s`]+)+))`")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a connection. A password is never one of them: others could see it."""
    group = parser.add_argument_group(
        "connection",
        f"The server is that of --url, else of --profile, else of {URL_VARIABLE}, else of the "
        f"profile that {PROFILE_VARIABLE} names. A password is taken from {PASSWORD_VARIABLE} or "
        "from --password-file.",
    )
    group.add_argument("--url", help="redis://host:port/db or rediss://…")
    group.add_argument(
        "--profile", metavar="NAME", help="a table of ~/.config/redis-state/profiles.toml"
    )
    group.add_argument("--username", help="ACL user")
    group.add_argument("--password-file", metavar="PATH", help="file that holds the password")
    group.add_argument("--key-prefix", metavar="PREFIX", help="tenant prefix, as the query has it")
    group.add_argument("--tls-ca-file", metavar="PATH", help="PEM file of trusted certificates")
    group.add_argument("--tls-cert-file", metavar="PATH", help="PEM file of a client certificate")
    group.add_argument("--tls-key-file", metavar="PATH", help="PEM file of its private key")
    group.add_argument(
        "--signing-key-file", metavar="PATH", help="the secret by which the query signs its blocks"
    )
    group.add_argument(
        "--deadline",
        metavar="DURATION",
        help=f"how long to keep trying a server that gives no answer (default: {_DEADLINE})",
    )


_OPTIONS = (
    "username",
    "password_file",
    "key_prefix",
    "tls_ca_file",
    "tls_cert_file",
    "tls_key_file",
    "signing_key_file",
    "deadline",
)


def command_of(arguments: argparse.Namespace) -> str:
    """The connection arguments for another command, for advice that can be pasted."""
    names = ("url", "profile", *_OPTIONS[:6])
    given = {name: getattr(arguments, name) for name in names}
    words = [
        word
        for name, value in given.items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    return shlex.join(words)


def with_server(text: str, arguments: argparse.Namespace) -> str:
    """The text of an error, its commands with the server that this command was given.

    What raises an error does not know by which arguments its caller was started.
    """
    if not hasattr(arguments, "profile"):
        return text
    server = command_of(arguments)
    return _PRINTED.sub(rf"`\g<1> {_escaped(server)}`", text) if server else text


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\")


def options_of(arguments: argparse.Namespace, *, url: str | None = None) -> dict[str, Any]:
    """The options of a connection that were named, but for a password of the environment.

    Args:
        url: The server, if it is not the one of the arguments.

    Raises:
        ConfigError: One is wrong, or no server is named.
    """
    options = {"deadline": _DEADLINE, **server_options(url or arguments.url, arguments.profile)}
    given = {name: getattr(arguments, name) for name in _OPTIONS}
    return options | {name: value for name, value in given.items() if value is not None}


def config_of(arguments: argparse.Namespace) -> Config:
    """The checked options of a connection.

    An argument wins over the profile. A password file, of either, wins over the environment: it was
    asked for.

    Raises:
        ConfigError: One is wrong, or no server is named.
    """
    options = options_of(arguments)
    if "password_file" not in options:
        options["password"] = os.environ.get(PASSWORD_VARIABLE) or None
    return parse(options)


class ProgressLine:
    """One line on standard error that tells how far long work is; silent where nobody looks."""

    def __init__(self) -> None:
        self._shown = False
        self._active = sys.stderr.isatty()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` are done."""
        if self._active:
            print(f"\r\x1b[K{what}: {done:,} of {total:,}", end="", file=sys.stderr, flush=True)
            self._shown = True

    def end(self) -> None:
        """Take the line away."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False
