"""Arguments that name a server, and the options of a connection."""

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
# A command with arguments, or the only one that needs none. A bare name is only mentioned.
_PRINTED = re.compile(r"`(redis-state (?:queries|[a-z-]+(?: [^\s`]+)+))`")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of a connection. None is a password: other users could see it."""
    group = parser.add_argument_group(
        "connection",
        f"The server is named by --url or --profile, else by {URL_VARIABLE}, else by the profile "
        f"that {PROFILE_VARIABLE} names. A password is read from --password-file, else from "
        f"{PASSWORD_VARIABLE}.",
    )
    group.add_argument("--url", help="redis://host:port/db or rediss://…")
    group.add_argument(
        "--profile", metavar="NAME", help="a table of ~/.config/redis-state/profiles.toml"
    )
    group.add_argument("--username", help="ACL user")
    group.add_argument("--password-file", metavar="PATH", help="file that holds the password")
    group.add_argument("--key-prefix", metavar="PREFIX", help="the option keyPrefix of the query")
    group.add_argument("--tls-ca-file", metavar="PATH", help="PEM file of trusted certificates")
    group.add_argument("--tls-cert-file", metavar="PATH", help="PEM file of a client certificate")
    group.add_argument("--tls-key-file", metavar="PATH", help="PEM file of its private key")
    group.add_argument(
        "--signing-key-file",
        metavar="PATH",
        help="file that holds the secret by which the query signs its blocks",
    )
    group.add_argument(
        "--deadline",
        metavar="DURATION",
        help=f"how long to retry when the server does not respond (default: {_DEADLINE})",
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
    """Returns the connection arguments for another command, for advice that can be pasted."""
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
    """Returns the text of an error, with the server of this command added to its commands.

    The code that raises an error does not know the arguments of the command.
    """
    if not hasattr(arguments, "profile"):
        return text
    server = command_of(arguments)
    return _PRINTED.sub(rf"`\g<1> {_escaped(server)}`", text) if server else text


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\")


def options_of(arguments: argparse.Namespace, *, url: str | None = None) -> dict[str, Any]:
    """Returns the given options of a connection, without a password from the environment.

    Args:
        url: A server other than that of the arguments.

    Raises:
        ConfigError: An option is wrong, or no server is named.
    """
    options = {"deadline": _DEADLINE, **server_options(url or arguments.url, arguments.profile)}
    given = {name: getattr(arguments, name) for name in _OPTIONS}
    return options | {name: value for name, value in given.items() if value is not None}


def add_files(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a query by which state goes into files, past Redis."""
    parser.add_argument(
        "--redis-memory",
        metavar="BYTES",
        help="the option redisMemory of the query, such as 1g: all but small partitions go into "
        "files, past Redis",
    )
    parser.add_argument(
        "--places-folder",
        metavar="FOLDER",
        help="the option placesFolder of the query: where files go; also without --redis-memory",
    )


def config_of(arguments: argparse.Namespace) -> Config:
    """Returns the checked options of a connection, and those that `add_files` adds.

    An argument overrides the profile. A password file of either overrides the environment, since
    it was given on purpose.

    Raises:
        ConfigError: An option is wrong, or no server is named.
    """
    options = options_of(arguments)
    given = {name: getattr(arguments, name, None) for name in ("redis_memory", "places_folder")}
    options |= {name: value for name, value in given.items() if value is not None}
    if "password_file" not in options:
        options["password"] = os.environ.get(PASSWORD_VARIABLE) or None
    return parse(options)


class ProgressLine:
    """Line on standard error with the progress of long work; only on a terminal."""

    def __init__(self) -> None:
        self._shown = False
        self._active = sys.stderr.isatty()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Shows that `done` of `total` are done."""
        if self._active:
            print(f"\r\x1b[K{what}: {done:,} of {total:,}", end="", file=sys.stderr, flush=True)
            self._shown = True

    def end(self) -> None:
        """Removes the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False
