"""Checkpoints that nobody uses any more. Redis cannot see whether their files still exist."""

from __future__ import annotations

import logging
from collections.abc import Callable

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.purge import purge
from redis_state.coordinator_instances import find, partitions_of
from redis_state.errors import ConfigError, FormatError
from redis_state.maintain.checkpoint import find_partitions
from redis_state.maintain.report import Report
from redis_state.reader.registry import QueryInfo, parse_listing, parse_operators

AGE_MIN_MS = 3_600_000
_WHAT = "looking for checkpoints that nobody uses"
_LOG = logging.getLogger("redis_state.maintain")


def _silent(_what: str, _done: int, _total: int) -> None:
    return None


def vanished_checkpoints(client: Client, *, age_ms: int, tenant: str = "") -> list[QueryInfo]:
    """Checkpoints whose last run began to write longer ago than `age_ms`, by the server's clock.

    Raises:
        ConfigError: The age is below one hour.
        FormatError: The list of checkpoints is damaged.
    """
    if age_ms < AGE_MIN_MS:
        raise ConfigError(
            _WHAT,
            found="the age is below one hour",
            advice="Give an age after which nobody will want the state back, such as 30d.",
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
    """Remove checkpoints whose last run began `age_ms` ago. It cannot be undone.

    One that a process serves at the moment is left.

    Raises:
        ConfigError: As `vanished_checkpoints`.
        FormatError: As `vanished_checkpoints`.
    """
    report = Report()
    for info in vanished_checkpoints(client, age_ms=age_ms, tenant=tenant):
        called = f"{info.name or info.id} ({info.gen})"
        try:
            served = _is_served(client, info.gen, tenant)
        except FormatError as error:
            report.problem(f"{called}: not purged: {error}")
            continue
        if served:
            _LOG.info("%s: its run began long ago and goes on: not purged", called)
            continue
        found = purge(client, info.gen, tenant=tenant, progress=progress)
        report.purged += 1
        _LOG.warning("%s: purged with %d keys: nobody uses it", called, found.keys)
    return report


def _is_served(client: Client, gen: str, tenant: str) -> bool:
    """Whether a process has reported within a ttl; the age says only when a run began to write."""
    (raw,) = client.call(_WHAT, [("HGETALL", keys.query(gen, tenant=tenant))])
    ids = set(partitions_of(client, gen, tenant=tenant))
    for operator in parse_operators(raw).values():
        ids.update(find_partitions(client, gen, operator, tenant))
    return bool(find(client, sorted(ids, key=str)))
