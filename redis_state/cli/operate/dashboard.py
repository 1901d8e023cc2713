"""`redis-state dashboard`: shows the state of all queries in a browser."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.help import example
from redis_state.errors import ConfigError
from redis_state.live import Reader

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

_ADDRESS = "127.0.0.1"
_PORT = 8765
_INTERVAL_S = 10
_INTERVAL_MAX_S = 3600


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "dashboard",
        help="show all queries in a browser",
        description="Serve pages that show the status of all queries and look up keys; they change "
        "nothing. Only this machine can open them, unless --listen and --token-file are given. "
        "The server runs until SIGTERM or SIGINT. It needs the packages of "
        "redis-state[dashboard].",
        epilog=example(
            "redis-state dashboard --url redis://localhost:6379/0",
            "redis-state dashboard --url redis://localhost:6379/0 --listen 0.0.0.0 "
            "--host state.example.org --token-file token --serve-cert-file cert.pem "
            "--serve-key-file key.pem",
        ),
    )
    group = parser.add_argument_group("pages")
    group.add_argument(
        "--listen",
        default=_ADDRESS,
        metavar="ADDRESS",
        help=f"address to listen on (default: {_ADDRESS}); any other than loopback needs a token",
    )
    group.add_argument(
        "--port",
        type=int,
        default=_PORT,
        help=f"port to listen on; 0 means any free one (default: {_PORT})",
    )
    group.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="a host name by which browsers may request the pages; may be repeated",
    )
    group.add_argument(
        "--token-file", metavar="PATH", help="file that holds the token that people log in with"
    )
    group.add_argument(
        "--serve-cert-file", metavar="PATH", help="PEM file of a certificate: serve HTTPS"
    )
    group.add_argument("--serve-key-file", metavar="PATH", help="PEM file of its private key")
    group.add_argument(
        "--interval",
        type=_interval_s,
        default=_INTERVAL_S,
        metavar="SECONDS",
        help=f"time between two readings of Redis (default: {_INTERVAL_S})",
    )
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serves until a signal."""
    try:
        from redis_state.dashboard.server import serve
        from redis_state.dashboard.settings import checked
    except ModuleNotFoundError as error:
        raise ConfigError(
            "starting the dashboard",
            found=f"the package {error.name} is missing",
            advice="Run `pip install 'redis-state[dashboard]'`.",
        ) from error
    settings = checked(
        address=arguments.listen,
        port=arguments.port,
        names=tuple(arguments.host),
        token_file=arguments.token_file,
        cert_file=arguments.serve_cert_file,
        key_file=arguments.serve_key_file,
        interval_s=arguments.interval,
    )
    if not settings.loopback and not settings.tls:
        print(
            "warning: the token and the state are sent over the network unencrypted; give "
            "--serve-cert-file and --serve-key-file",
            file=sys.stderr,
        )
    with Reader(config_of(arguments)) as reader:
        shown = reader.client.url
        serve(
            reader,
            settings,
            tell=lambda address: print(f"{address} shows the queries of {shown}", flush=True),
        )
    return 0


def _interval_s(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= _INTERVAL_MAX_S):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a number of seconds from 1 to {_INTERVAL_MAX_S}"
        )
    return int(text)
