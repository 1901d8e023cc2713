"""Checkpoints that nobody has used for long. Redis cannot see whether their files still exist."""

from __future__ import annotations

import logging
from collections.abc import Callable

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.purge import purge
from redis_state.coordinator_instances import find, partitions_of
from redis_state.errors import ConfigError, FormatError
from redis_state.maintain.report import Report
from redis_state.reader.registry import QueryInfo, parse_listing

AGE_MIN_MS = 3_600_000
_WHAT = "looking for checkpoints that nobody uses"
_LOG = logging.getLogger("redis_state.maintain")


def _silent(_what: str, _done: int, _total: int) -> None:
    return None


def vanished_checkpoints(client: Client, *, age_ms: int, tenant: str = "") -> list[QueryInfo]:
    """Checkpoints that were last seen longer ago than `age_ms`, by the server's clock.

    Raises:
        ConfigError: The age is below one hour: a query that waits for data is seen no more often
            than its batches come.
        FormatError: The list of checkpoints is damaged.
    """
    if age_ms < AGE_MIN_MS:
        raise ConfigError(
            _WHAT,
            found="the age is below one hour",
            advice="Give an age that no query that still runs can reach, such as 30d.",
        )
    listed = keys.checkpoints(tenant=tenant)
    time, raw = client.call(_WHAT, [("TIME",), ("HGETALL", listed)])
    now_ms = int(time[0]) * 1000 + int(time[1]) // 1000
    return [info for info in parse_listing(raw) if now_ms - info.seen_ms > age_ms]


def purge_vanished(
    client: Client,
    *,
    age_ms: int,
    tenant: str = "",
    progress: Callable[[str, int, int], None] = _silent,
) -> Report:
    """Remove the state of checkpoints that nobody has used for `age_ms`. It cannot be undone.

    One that a process serves at the moment is left, and told as a problem.

    Raises:
        ConfigError: As `vanished_checkpoints`.
        FormatError: As `vanished_checkpoints`.
    """
    report = Report()
    for info in vanished_checkpoints(client, age_ms=age_ms, tenant=tenant):
        called = f"{info.name or info.id} ({info.gen})"
        try:
            served = bool(find(client, partitions_of(client, info.gen, tenant=tenant)))
        except FormatError as error:
            report.problem(f"{called}: not purged: {error}")
            continue
        if served:
            report.problem(f"{called}: not seen for long, but a process serves it: not purged")
            continue
        found = purge(client, info.gen, tenant=tenant, progress=progress)
        report.purged += 1
        _LOG.warning("%s: purged with %d keys: nobody has used it", called, found.keys)
    return report
