"""`redis-state exporter`: serves metrics to Prometheus."""

from __future__ import annotations

import argparse
import signal
import threading
from typing import TYPE_CHECKING

from redis_state.cli.arguments.connection import add_arguments, config_of
from redis_state.cli.help import example
from redis_state.errors import ConfigError
from redis_state.live import Reader

if TYPE_CHECKING:
    from redis_state.cli.command import Subparsers

_ADDRESS = "127.0.0.1"
_PORT = 9464
_PORT_MAX = 65535


def add_to(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "exporter",
        help="serve metrics of all queries to Prometheus",
        description=(
            "Serve metrics of a server's queries at /metrics, until Ctrl-C or SIGTERM. Each "
            "scrape reads Redis once, and only metadata: no key or value of a state. The exporter "
            "listens on loopback; with another address in --listen, everybody who can reach it "
            "sees names and sizes of queries."
        ),
        epilog=example(
            "redis-state exporter --url redis://localhost:6379/0",
            "redis-state exporter --profile production --listen 0.0.0.0 "
            "--serve-cert-file exporter.pem --serve-key-file exporter.key",
        ),
    )
    parser.add_argument(
        "--listen",
        default=_ADDRESS,
        metavar="ADDRESS",
        help=f"address to listen on (default: {_ADDRESS})",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=_PORT,
        help=f"port to listen on; 0 means any free one (default: {_PORT})",
    )
    parser.add_argument(
        "--serve-cert-file", metavar="PATH", help="PEM file of a certificate: serve TLS"
    )
    parser.add_argument("--serve-key-file", metavar="PATH", help="PEM file of its private key")
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serves until a signal."""
    _check(arguments)
    try:
        from prometheus_client import CollectorRegistry

        from redis_state.cli.operate.metrics_server import MetricsServer
        from redis_state.exporter import QueryCollector
    except ImportError as error:
        raise ConfigError(
            "serving metrics",
            found="the package prometheus-client is not installed",
            advice="Run `pip install 'redis-state[exporter]'`.",
        ) from error
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with Reader(config_of(arguments)) as reader:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(QueryCollector(reader))
        try:
            server = MetricsServer(
                registry,
                arguments.listen,
                arguments.port,
                cert_file=arguments.serve_cert_file,
                key_file=arguments.serve_key_file,
            )
        except OSError as error:
            raise ConfigError(
                f"serving metrics on {arguments.listen} port {arguments.port}",
                found=str(error),
                advice="Give another --port or --listen, and files that this user can read.",
            ) from error
        scheme = "https" if arguments.serve_cert_file else "http"
        host = f"[{arguments.listen}]" if ":" in arguments.listen else arguments.listen
        print(f"{scheme}://{host}:{server.server_port}/metrics", flush=True)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        ended.wait()
        server.stop()
        thread.join()
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if not 0 <= arguments.port <= _PORT_MAX:
        raise ConfigError(
            "serving metrics",
            found="--port is not a port number",
            advice=f"Give one of 0 to {_PORT_MAX}.",
        )
    if bool(arguments.serve_cert_file) != bool(arguments.serve_key_file):
        raise ConfigError(
            "serving metrics by TLS",
            found="one of --serve-cert-file and --serve-key-file is missing",
            advice="Give both or neither.",
        )
