"""Maintenance worker: one pass over all checkpoints of a server, or many passes."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.clock import SYSTEM, Clock
from redis_state.errors import NotFoundError, UnavailableError
from redis_state.maintain.checkpoint import maintain_checkpoint
from redis_state.maintain.orphans import sweep_orphans
from redis_state.maintain.report import MaintenanceReport, PassControl, Policy
from redis_state.maintain.rotation import Rotation
from redis_state.maintain.vanished import purge_vanished
from redis_state.protocol.registry import QueryInfo, parse_listing

ORPHANS_EVERY_S = 3600.0
VANISHED_EVERY_S = 3600.0
JITTER = 0.2
_LOG = logging.getLogger("redis_state.maintain")


@dataclass(frozen=True, slots=True)
class Job:
    """Scope of the maintenance.

    Attributes:
        query: Name or id of the only query, or id of its checkpoint; ``None`` for all queries.
        tenant: See `StoreId`.
        orphans: Expires segments that no manifest names; a service does so once an hour.
        vanished_ms: Expires checkpoints that were unused for this long; ``None`` for none. A
            service checks once an hour.
    """

    policy: Policy
    query: str | None = None
    tenant: str = ""
    orphans: bool = False
    vanished_ms: int | None = None


class Service:
    """Maintains the scope of a job, once or until the service is stopped.

    Args:
        control: Follows each pass, and stops the service.
        wait: Waits for this many seconds; returns true when the service is to stop.
    """

    def __init__(
        self,
        client: Client,
        job: Job,
        *,
        control: PassControl,
        wait: Callable[[float], bool],
        clock: Clock = SYSTEM,
    ) -> None:
        self._client = client
        self._job = job
        self._control = control
        self._progress, self._stopped = control.progress, control.stopped
        self._wait = wait
        self._clock = clock
        # Blocks of all segments are read in each pass where that was asked for.
        self._rotation = None if job.policy.deep else Rotation()
        self._orphans_due_s = self._vanished_due_s = clock.monotonic_s()

    def run_pass(self) -> MaintenanceReport:
        """Runs the maintenance that is due now.

        Raises:
            NotFoundError: The query does not exist.
            UnavailableError: The server does not answer.
            ConfigError: The server refuses the user.
        """
        began_s = self._clock.monotonic_s()
        report, job = MaintenanceReport(), self._job
        if self._rotation is not None:
            self._rotation.begin_pass()
        for info in self._checkpoints():
            if self._stopped():
                break
            if info.problem:
                report.problem(f"{info.title}: {info.problem}")
            if not info.is_checkpoint:
                continue
            with report.noting(info.title):
                report.add(
                    maintain_checkpoint(
                        self._client,
                        info.gen,
                        policy=job.policy,
                        tenant=job.tenant,
                        name=info.name,
                        control=self._control,
                        rotation=self._rotation,
                    )
                )
        if job.orphans and began_s >= self._orphans_due_s and not self._stopped():
            self._orphans_due_s = began_s + ORPHANS_EVERY_S
            with report.noting("looking for orphans"):
                swept = sweep_orphans(self._client, tenant=job.tenant, progress=self._progress)
                report.add(swept)
        # Last, because it writes notes: by now a full server may have room for them.
        vanished_ms = job.vanished_ms
        if vanished_ms is not None and began_s >= self._vanished_due_s and not self._stopped():
            self._vanished_due_s = began_s + VANISHED_EVERY_S
            with report.noting("looking for unused checkpoints"):
                report.add(
                    purge_vanished(
                        self._client,
                        age_ms=vanished_ms,
                        tenant=job.tenant,
                        progress=self._progress,
                    )
                )
        _LOG.debug("the pass took %.0f ms", (self._clock.monotonic_s() - began_s) * 1000)
        return report

    def run(self, interval_s: float, tell: Callable[[MaintenanceReport], None]) -> None:
        """Runs passes until `wait` returns true. An unavailable server is retried at the next pass.

        Raises:
            RedisStateError: See `run_pass`, except `UnavailableError`.
        """
        while not self._stopped():
            try:
                tell(self.run_pass())
            except UnavailableError as error:
                _LOG.error("the pass was not finished, the next one is tried: %s", error)
            if self._wait(interval_s * random.uniform(1 - JITTER, 1 + JITTER)):
                return

    def _checkpoints(self) -> list[QueryInfo]:
        listed = keys.checkpoints(tenant=self._job.tenant)
        (raw,) = self._client.call("listing the checkpoints", [("HGETALL", listed)])
        infos = parse_listing(raw)
        query = self._job.query
        if query is None:
            random.shuffle(infos)
            return infos
        found = [info for info in infos if query in (info.gen, info.id, info.name)]
        if not found:
            raise NotFoundError(
                f"looking for query '{query[:80]}'",
                found="there is no such query in this Redis, database and key prefix",
                advice="`redis-state queries` lists them.",
            )
        return found
