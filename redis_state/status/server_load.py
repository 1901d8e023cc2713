"""Load of the servers: processor time, slow commands and round trips, as far as the user may ask.

`INFO`, `PING` and `SLOWLOG` are rights that a reader does not need for anything else, so each may
be missing. Of a slow command only its name is kept: its arguments may hold state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import redis

from redis_state.backend.client import Client

SAMPLE_S = 1.0
SLOW_WINDOW_S = 600
_PINGS = 9
_SLOW_MAX = 128
_WHAT = "asking the server for its load"


@dataclass(frozen=True, slots=True)
class SlowCommands:
    """Commands of one name in the server's slow log, of the last ten minutes."""

    name: str
    count: int
    total_us: int
    longest_us: int


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """Load of one server.

    Attributes:
        ping_us: Median round trip from this process; ``None`` if unknown.
        busy: Fraction of a second that the main thread of the server was busy; ``None`` if unknown.
        commands: Names of the commands with the most time in that second, with their shares.
        slow: Slow commands, the longest first; ``None`` if unknown.
        unknown: Reasons for what is unknown.
    """

    ping_us: int | None
    busy: float | None
    commands: tuple[tuple[str, float], ...]
    slow: tuple[SlowCommands, ...] | None
    unknown: tuple[str, ...]


def loads_of(client: Client, *, now_s: int) -> list[ServerLoad]:
    """Samples all servers over one second.

    Args:
        now_s: Time of the server, in seconds since 1970.

    Raises:
        UnavailableError: A server gives no answer.
    """
    firsts = list(client.over_parts(_WHAT, lambda part: [_First.of(part, now_s)]))
    seconds: list[_LoadSample | None] = []
    if any(one.sample is not None for one in firsts):
        client.clock.sleep_s(SAMPLE_S)
        seconds = list(client.over_parts(_WHAT, lambda part: [_LoadSample.of(part)]))
    if len(seconds) != len(firsts):
        # No server may be asked, or the servers changed.
        seconds = [None] * len(firsts)
    return [first.load(second) for first, second in zip(firsts, seconds, strict=True)]


@dataclass(frozen=True, slots=True)
class _First:
    """Replies of one server before the wait."""

    sample: _LoadSample | None
    ping_us: int | None
    slow: tuple[SlowCommands, ...] | None

    @staticmethod
    def of(client: Client, now_s: int) -> _First:
        return _First(_LoadSample.of(client), _ping_us(client), _slow(client, now_s))

    def load(self, after: _LoadSample | None) -> ServerLoad:
        busy: float | None = None
        commands: tuple[tuple[str, float], ...] = ()
        if self.sample is not None and after is not None and after.at_s > self.sample.at_s:
            spent_s = after.cpu_s - self.sample.cpu_s
            busy = min(1.0, max(0.0, spent_s / (after.at_s - self.sample.at_s)))
            commands = after.since(self.sample)
        unknown = {
            "slow commands of the server: the user has no right to SLOWLOG": self.slow is None,
            "load of the server: the user has no right to INFO": self.sample is None,
            "round trip from here: the user has no right to PING": self.ping_us is None,
        }
        said = tuple(line for line, is_missing in unknown.items() if is_missing)
        return ServerLoad(self.ping_us, busy, commands, self.slow, said)


@dataclass(frozen=True, slots=True)
class _LoadSample:
    """Counters of a server at one moment."""

    at_s: float
    cpu_s: float
    commands: Mapping[str, int]

    @staticmethod
    def of(client: Client) -> _LoadSample | None:
        cpu, stats = client.answers(_WHAT, [("INFO", "cpu"), ("INFO", "commandstats")])
        names = ("used_cpu_sys_main_thread", "used_cpu_user_main_thread")
        found = [_decimal(cpu.get(name)) for name in names] if isinstance(cpu, Mapping) else [None]
        if None in found and isinstance(cpu, Mapping):
            found = [_decimal(cpu.get(name)) for name in ("used_cpu_sys", "used_cpu_user")]
        seconds = [one for one in found if one is not None]
        if len(seconds) != len(names):
            return None
        usec = {
            str(name).removeprefix("cmdstat_"): int(one["usec"])
            for name, one in (stats.items() if isinstance(stats, Mapping) else ())
            if isinstance(one, Mapping) and isinstance(one.get("usec"), int)
        }
        return _LoadSample(client.clock.monotonic_s(), sum(seconds), usec)

    def since(self, before: _LoadSample) -> tuple[tuple[str, float], ...]:
        # CONFIG RESETSTAT or a restart in between makes counters smaller.
        spent = {
            name: max(0, usec - before.commands.get(name, 0))
            for name, usec in self.commands.items()
        }
        total = sum(spent.values())
        most = sorted(spent.items(), key=lambda one: -one[1])[:3]
        return tuple((name, usec / total) for name, usec in most if usec > 0)


def _decimal(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _ping_us(client: Client) -> int | None:
    times: list[float] = []
    for _ in range(_PINGS):
        start_s = client.clock.monotonic_s()
        (reply,) = client.answers(_WHAT, [("PING",)])
        if isinstance(reply, redis.RedisError):
            return None
        times.append(client.clock.monotonic_s() - start_s)
    return round(median(times) * 1_000_000)


def _slow(client: Client, now_s: int) -> tuple[SlowCommands, ...] | None:
    (reply,) = client.answers(_WHAT, [("SLOWLOG", "GET", str(_SLOW_MAX))])
    if not isinstance(reply, Sequence) or isinstance(reply, (bytes, str)):
        return None
    found: dict[str, list[int]] = {}
    for one in reply:
        entry = _entry(one)
        if entry is not None and entry[0] >= now_s - SLOW_WINDOW_S:
            found.setdefault(entry[2], []).append(entry[1])
    slow = (SlowCommands(name, len(us), sum(us), max(us)) for name, us in found.items())
    return tuple(sorted(slow, key=lambda one: -one.total_us))


def _entry(one: Any) -> tuple[int, int, str] | None:
    """Returns time, duration and name of a command of the slow log."""
    if not isinstance(one, Sequence) or len(one) < 4 or not one[3]:
        return None
    at, took, first = one[1], one[2], one[3][0]
    if not isinstance(at, int) or not isinstance(took, int) or not isinstance(first, bytes):
        return None
    return at, took, first.decode("ascii", "replace").lower()[:32]
