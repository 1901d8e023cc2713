"""The web server of `redis-state exporter`: no client makes another one wait, or keeps a thread."""

from __future__ import annotations

import logging
import socket
import ssl
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

CLIENT_S = 10.0
"""A client that sends or takes nothing for so long is let go."""

_LOG = logging.getLogger("redis_state.exporter")


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base's name
        """A scrape is nothing to tell of."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Listens, and answers each client in a thread of its own.

    Args:
        port: 0 takes a free one.
        cert_file: PEM file to serve by TLS with, and the file of its private key.

    Raises:
        OSError: The address cannot be opened, or a file cannot be read.
    """

    daemon_threads = True

    def __init__(
        self,
        registry: CollectorRegistry,
        address: str,
        port: int,
        *,
        cert_file: str | None = None,
        key_file: str | None = None,
    ) -> None:
        self._tls: ssl.SSLContext | None = None
        if cert_file is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(cert_file, key_file)
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        self.address_family = found[0]
        super().__init__((address, port), _Handler)
        self.set_app(make_wsgi_app(registry))

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer a client, in its thread; the handshake of TLS comes here, too."""
        request.settimeout(CLIENT_S)
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        with self._tls.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  # the base's
        """Note that a client went away, or speaks something else."""
        _LOG.debug("a client at %s got no answer", client_address, exc_info=True)
