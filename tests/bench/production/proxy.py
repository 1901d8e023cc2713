"""`python -m tests.bench.production.proxy KIND PORT ...`: a proxy as a process of its own.

It prints its port, then answers each line of its input with a line of JSON: `report`, or `delay
SECONDS`. It ends with its input.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping

from tests.bench.production.relay import Latency, Policy, Relay
from tests.bench.production.s3_requests import RequestCounts, RequestStream

LINK, OBJECTS = "link", "objects"
_STDIN = 0
_COMMAND_BYTES_MAX = 4096
_PR_SET_TIMERSLACK = 29
_NICENESS = -10


class Link:
    """A network that delays every chunk, half of a round trip in each direction."""

    bytes_per_s: float | None = None

    def __init__(self, round_trip_s: float) -> None:
        self.round_trip_s = round_trip_s

    def to_server(self) -> Latency:
        return lambda _: self.round_trip_s / 2

    def to_client(self) -> Latency:
        return self.to_server()


class Objects:
    """An object store far away: a latency for each request, a bandwidth for each connection."""

    def __init__(self, latency_s: float, bytes_per_s: float) -> None:
        self.bytes_per_s: float | None = bytes_per_s
        self.counts = RequestCounts()
        self._latency_s = latency_s

    def to_server(self) -> Latency:
        stream = RequestStream(self.counts.add)
        return lambda chunk: self._latency_s if stream.feed(chunk) else 0.0

    def to_client(self) -> Latency:
        return lambda _: 0.0


def _obeying(relay: Relay, policy: Policy) -> bool:
    words = os.read(_STDIN, _COMMAND_BYTES_MAX).decode().split()
    if not words:
        return False
    if words[0] == "delay" and isinstance(policy, Link):
        policy.round_trip_s = float(words[1])
    answer: Mapping[str, object] = {
        "late_p50_ms": relay.lateness.quantile_ms(0.5),
        "late_p99_ms": relay.lateness.quantile_ms(0.99),
        "requests": policy.counts.by_bucket() if isinstance(policy, Objects) else {},
    }
    print(json.dumps(answer), flush=True)
    return True


def _be_punctual() -> None:
    """Asks Linux for exact timers, and for a processor sooner than busy executors get one."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    with contextlib.suppress(PermissionError):
        os.nice(_NICENESS)


def main(kind: str, port: str, *numbers: str) -> int:
    # Ctrl-C is for the process that started this one, and needs the proxy until its end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _be_punctual()
    policy: Policy
    if kind == LINK:
        policy = Link(float(numbers[0]))
    else:
        policy = Objects(float(numbers[0]), float(numbers[1]))
    relay = Relay(int(port), policy)
    print(relay.port, flush=True)
    relay.run(_STDIN, lambda: _obeying(relay, policy))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
