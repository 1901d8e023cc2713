"""An HTTP proxy that answers some requests itself, as an object store in trouble does."""

from __future__ import annotations

import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import urlsplit

SERVER_S = 60
_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")
_HOPS = frozenset({"connection", "keep-alive", "transfer-encoding", "expect", "content-length"})


class Troubles:
    """Faults of the proxy. Times are seconds of `time.monotonic`.

    Attributes:
        refused_until: Until when each request is answered by 503.
        late_s: For how long a new block file is answered by 404.
        slow_s: Pause before each request.
        met: Number of requests, by what was done to them.
    """

    def __init__(self) -> None:
        self.refused_until = 0.0
        self.late_s = self.slow_s = 0.0
        self.met: Counter[str] = Counter()
        self._created: dict[str, float] = {}

    def refuse_for(self, seconds: float) -> None:
        self.refused_until = time.monotonic() + seconds

    def status(self, method: str, path: str) -> int:
        """Returns the status to answer with, or 0 to pass the request on."""
        now, name = time.monotonic(), path.split("?", 1)[0]
        if now < self.refused_until:
            self.met["refused"] += 1
            return 503
        is_read = method in ("GET", "HEAD") and name.endswith(".seg")
        if is_read and now - self._created.get(name, -self.late_s) < self.late_s:
            self.met["late"] += 1
            return 404
        if method == "PUT":
            self._created[name] = now
        if self.slow_s:
            self.met["slow"] += 1
            time.sleep(self.slow_s)
        return 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    troubles: ClassVar[Troubles]
    host: ClassVar[str]
    port: ClassVar[int]

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status = self.troubles.status(self.command, self.path)
        if status:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._pass_on(body)

    def _pass_on(self, body: bytes) -> None:
        server = http.client.HTTPConnection(self.host, self.port, timeout=SERVER_S)
        try:
            server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOPS:
                    server.putheader(name, value)
            server.putheader("Content-Length", str(len(body)))
            server.endheaders(body or None)
            reply = server.getresponse()
            content = reply.read()
        finally:
            server.close()
        self.send_response_only(reply.status, reply.reason)
        for name, value in reply.getheaders():
            if name.lower() not in _HOPS:
                self.send_header(name, value)
        # A reply to HEAD has the length of what it leaves out.
        length = reply.headers.get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Writes nothing: there are thousands of requests."""


@contextmanager
def faulty_proxy(endpoint: str) -> Iterator[tuple[str, Troubles]]:
    """Runs a proxy before an endpoint; yields the proxy's own endpoint, and its troubles."""
    at, troubles = urlsplit(endpoint), Troubles()
    fields: dict[str, object] = {"troubles": troubles, "host": at.hostname, "port": at.port}
    fields |= {f"do_{method}": _Handler.answer for method in _METHODS}
    handler = type("Handler", (_Handler,), fields)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="faulty-proxy", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", troubles
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
