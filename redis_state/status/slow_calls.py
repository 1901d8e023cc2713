"""Causes of slow batches that lie in the calls to Redis: retries, round trips, durability."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from redis_state.status.server_load import ServerLoad, SlowCommands
from redis_state.status.slow_figures import SHORTEST_US, StoreFigures
from redis_state.status.slowness import SlowCause, SlowCauseKind

COMMITS_MIN = 5
SHARE = 0.2
_SLOW_US = 4_000
BUSY = 0.7
_SLOW_COMMANDS_US = 500_000
_WAIT_US = 2_000
_RETRIES = 3
_LAST_CLASS_US = 2_048_000

Servers = Sequence[ServerLoad]


def cause_of(
    of: StoreFigures, kind: SlowCauseKind, found: str, advice: str, *partitions: int
) -> SlowCause:
    """Returns a cause of one store."""
    return SlowCause(kind, found, advice, of.status.operator, of.status.store, partitions)


def ms_text(us: float) -> str:
    """Returns microseconds as milliseconds for people."""
    ms = us / 1000
    return f"{ms:,.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


def call_causes(of: StoreFigures, servers: Servers) -> Iterator[SlowCause]:
    """Yields the causes that lie in the calls of a store."""
    yield from _retries(of)
    yield from _round_trips(of, servers)
    yield from _durability(of)


def _retries(of: StoreFigures) -> Iterator[SlowCause]:
    retries = {one: of_.numbers.get("retries", 0) for one, of_ in of.processes().items()}
    worst = max(retries, key=lambda one: retries[one])
    if retries[worst] >= _RETRIES:
        yield SlowCause(
            SlowCauseKind.RETRIES,
            f"Executor {worst[1]} on {worst[0]} sent {retries[worst]:,} calls to Redis again "
            f"within {_minutes(of)}: connections broke, or the server answered that it cannot "
            "serve yet.",
            "Each try that fails costs 50 ms to 2 s. The executors' log has the reasons: look for "
            "'trying again'. Check the network, fail-overs, `maxclients`, and whether a proxy or "
            "load balancer between closes connections.",
        )


def _minutes(of: StoreFigures) -> str:
    seconds = max(one.numbers.get("ms", 0) for one in of.partitions) / 1000
    return f"{seconds / 60:.0f} min" if seconds >= 100 else f"{seconds:.0f} s"


def _round_trips(of: StoreFigures, servers: Servers) -> Iterator[SlowCause]:
    usual, least = of.open_us(0.5), of.open_us(0.1)
    if usual is None or least is None or of.share("open", "load", "miss", "publish") < SHARE:
        return
    most = of.open_us(0.9) or 0
    mean = of.number("redisUs") / max(1, of.number("roundTrips"))
    if max(most, mean) < _SLOW_US:
        return
    busy = [one for one in servers if one.busy is not None and one.busy >= BUSY]
    slow = [one for server in servers for one in server.slow or ()]
    slow_us = sum(one.total_us for one in slow)
    spread = (
        f"A round trip to open a version takes {_class(usual)} in the median, "
        f"{_class(least)} at best (a tenth), {_class(most)} at worst (a tenth)"
    )
    if busy or slow_us >= _SLOW_COMMANDS_US:
        yield SlowCause(
            SlowCauseKind.SERVER_BUSY, f"{spread}. {_load(busy, slow_us, slow)}", _BUSY_ADVICE
        )
    elif least >= _SLOW_US:
        known = [one for one in servers if one.busy is not None]
        load = max((one.busy or 0.0 for one in known), default=0.0)
        pings = [one.ping_us for one in servers if one.ping_us is not None]
        here = f" From here a PING takes {ms_text(max(pings))}." if pings else ""
        server = (
            f"The server is {load:.0%} busy, so the way to it is slow."
            if known
            else "Whether the server is busy is unknown."
        )
        yield SlowCause(
            SlowCauseKind.SLOW_NETWORK,
            f"{spread}. {server}{here}",
            "A batch makes two round trips for each partition, and one for each miss. Bring Redis "
            "into the zone of the executors, and look for proxies and TLS terminators between.",
        )
    elif usual >= _SLOW_US:
        yield SlowCause(
            SlowCauseKind.SLOW_ROUND_TRIPS,
            f"{spread}. The server is not busy now and logs no slow command, as far as this user "
            "may see. Why they take long at times is unknown.",
            "Look at the executors' CPU and garbage collection, at the network between, and at "
            "INFO persistence (a fork, a slow disk).",
        )


_BUSY_ADVICE = (
    "`SLOWLOG GET` and INFO commandstats show whose commands they are. Move other programs to a "
    "server of their own; if the load is that of redis-state, use a cluster, or longer trigger "
    "intervals."
)


def _class(us: int) -> str:
    """Returns the bounds of a class of durations."""
    if us >= _LAST_CLASS_US:
        return f"{ms_text(us)} or more"
    return f"{ms_text(us)} to {ms_text(max(SHORTEST_US, us * 2))}"


def _load(busy: Sequence[ServerLoad], slow_us: int, slow: Sequence[SlowCommands]) -> str:
    said = []
    for one in busy[:1]:
        share = ", ".join(f"{name} {part:.0%}" for name, part in one.commands)
        said.append(f"The server's main thread is {one.busy or 0:.0%} busy ({share}).")
    if slow_us >= _SLOW_COMMANDS_US:
        names = ", ".join(
            f"{one.name} {one.count} times, at most {ms_text(one.longest_us)}" for one in slow[:3]
        )
        said.append(f"Its slow log has {ms_text(slow_us)} of the last ten minutes: {names}.")
    return " ".join(said)


def _durability(of: StoreFigures) -> Iterator[SlowCause]:
    count, spent = of.number("durable"), of.number("durableUs")
    usual = of.open_us(0.5) or 0
    waits = spent / max(1, count) - 2 * usual
    if count >= COMMITS_MIN and waits >= _WAIT_US and spent >= SHARE * of.total_us:
        yield cause_of(
            of,
            SlowCauseKind.WAITING_FOR_DURABILITY,
            f"A commit that waits for replicas or the disk takes {ms_text(spent / count)}, an "
            f"opening call {_class(usual)}: {spent / of.total_us:.0%} of the time.",
            "The option `durability` asks for it. With `aof`, `appendfsync everysec` makes a "
            "commit wait up to a second: `always` on a fast disk, or `replicas:n`, is faster. With "
            "replicas look at their lag (INFO replication).",
        )
