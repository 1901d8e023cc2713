"""The side of a proxy process that starts, asks and ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.production.proxy import LINK, OBJECTS
from tests.support.waiting import await_end

_ROOT = Path(__file__).resolve().parents[3]
_STOP_S = 10


class ProxyProcess:
    """A running proxy.

    Attributes:
        port: On the loopback address.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.port = int(process.stdout.readline())

    def report(self) -> dict[str, Any]:
        """Lateness of the chunks so far and, of an object proxy, requests by bucket and kind."""
        return self._ask("report")

    def set_round_trip(self, ms: float) -> None:
        """Changes the delay of a link, also for connections that are open."""
        self._ask(f"delay {ms / 1e3}")

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found


@contextmanager
def link(port: int, round_trip_ms: float) -> Iterator[ProxyProcess]:
    """A network of some round-trip time before a server."""
    with _running(LINK, str(port), str(round_trip_ms / 1e3)) as proxy:
        yield proxy


@contextmanager
def objects(port: int, latency_ms: float, mb_per_s: float) -> Iterator[ProxyProcess]:
    """A latency for each request and a bandwidth for each connection before an S3 server."""
    with _running(OBJECTS, str(port), str(latency_ms / 1e3), str(mb_per_s * 1e6)) as proxy:
        yield proxy


@contextmanager
def _running(*words: str) -> Iterator[ProxyProcess]:
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.production.proxy", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdin is not None
    try:
        yield ProxyProcess(process)
    finally:
        process.stdin.close()  # the proxy ends with its input
        await_end(process, _STOP_S)
        if process.stdout is not None:
            process.stdout.close()
