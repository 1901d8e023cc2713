"""Unused checkpoints. Redis cannot see whether their files still exist.

Two observations decide, with some time between them. The first notes what it saw. Only a later one
that sees the same makes the checkpoint expire, so that it can still be recalled.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import OTHER_TYPE
from redis_state.errors import ConfigError, ConflictError, FormatError
from redis_state.maintain.activity import Activity, look
from redis_state.maintain.recall import KEPT_MS, expire
from redis_state.maintain.report import MaintenanceReport
from redis_state.progress import silent
from redis_state.protocol.registry import QueryInfo, listed_partitions, parse_listing
from redis_state.protocol.texts import parse_json

AGE_MIN_MS = 3_600_000
LOOKS_APART_MS = 30 * 60_000
_WHAT = "looking for unused checkpoints"
_DAY_MS = 86_400_000
_LOG = logging.getLogger("redis_state.maintain")


@dataclass(frozen=True, slots=True)
class SeenCheckpoint:
    """A listed checkpoint and its activity at one observation.

    Attributes:
        noted_ms: Time when it was first seen in its present state; 0 if not noted.
    """

    info: QueryInfo
    activity: Activity
    noted_ms: int

    @property
    def called(self) -> str:
        """Returns name and id."""
        return f"{self.info.title} (gen {self.info.gen})"

    @property
    def is_undated(self) -> bool:
        """Returns whether it holds state that only releases without use dates have written."""
        return self.activity.partitions > 0 and not self.activity.last_ms

    @property
    def used_ms(self) -> int:
        """Returns the time of the last use; if undated, of the first look at its present state."""
        now_ms, registered_ms = self.activity.now_ms, self.activity.registered_ms
        first_seen_ms = (self.noted_ms or now_ms) if self.is_undated else 0
        return max(self.info.seen_ms, registered_ms, self.activity.last_ms, first_seen_ms)

    @property
    def why(self) -> str:
        """Explains the reasons to consider the checkpoint unused."""
        since = (self.activity.now_ms - self.used_ms) / _DAY_MS
        what = "it is unchanged" if self.is_undated else "it was not written, and no run began"
        return f"no process serves it, and {what} for {since:.1f} days"

    def is_dead(self, age_ms: int) -> bool:
        """Returns whether no process serves it, and its last use is longer ago than this."""
        return not self.activity.instances and self.activity.now_ms - self.used_ms > age_ms


def vanished_checkpoints(client: Client, *, age_ms: int, tenant: str = "") -> list[SeenCheckpoint]:
    """Returns the checkpoints unused for `age_ms`, by the server's clock; changes nothing.

    If only releases that do not note their use wrote a checkpoint, the age counts from the first
    observation of `purge_vanished`.

    Raises:
        ConfigError: The age is below one hour.
    """
    return [
        one for one in _looks(client, age_ms, tenant, MaintenanceReport()) if one.is_dead(age_ms)
    ]


def purge_vanished(
    client: Client,
    *,
    age_ms: int,
    tenant: str = "",
    progress: Callable[[str, int, int], None] = silent,
) -> MaintenanceReport:
    """Observes once; expires checkpoints that two observations found unused for `age_ms`.

    The observations are at least half an hour apart. `recall` restores an expiring checkpoint.

    Raises:
        ConfigError: See `vanished_checkpoints`.
    """
    report = MaintenanceReport()
    for number, one in enumerate(_looks(client, age_ms, tenant, report), start=1):
        progress(_WHAT, number, 0)
        now_ms, dead = one.activity.now_ms, one.is_dead(age_ms)
        if not dead and not one.is_undated:
            client.call(_WHAT, [("HDEL", keys.looks(tenant=tenant), one.info.gen)])
        elif not one.noted_ms:
            _note(client, one, tenant)
        elif dead and now_ms - one.noted_ms >= LOOKS_APART_MS:
            try:
                found = expire(client, one.info.gen, tenant=tenant, progress=progress)
            except ConflictError as error:
                report.pinned += 1
                _LOG.warning("%s: unused, but not purged: %s", one.called, error.found)
                continue
            report.purged += 1
            _LOG.warning(
                "%s: purged: %s, as %d minutes ago. Its %d keys expire in %d hours; until then "
                "`redis-state purge --gen %s --recall` brings it back",
                one.called,
                one.why,
                (now_ms - one.noted_ms) // 60_000,
                found.keys,
                KEPT_MS // 3_600_000,
                one.info.gen,
            )
            if found.files is not None:
                _LOG.warning(
                    "%s: its %d files stay in %s until `redis-state purge --gen %s --files`",
                    one.called,
                    found.files.files,
                    found.files.folder,
                    one.info.gen,
                )
    return report


def _note(client: Client, one: SeenCheckpoint, tenant: str) -> None:
    note = json.dumps({"at": one.activity.now_ms, "mark": one.activity.mark})
    client.call(_WHAT, [("HSET", keys.looks(tenant=tenant), one.info.gen, note)])
    if one.is_undated:
        _LOG.info("%s: its last use is unknown; its age counts from now", one.called)
        return
    _LOG.warning(
        "%s: seems to be unused: %s. If that is still so in %d minutes or later, it expires",
        one.called,
        one.why,
        LOOKS_APART_MS // 60_000,
    )


def _looks(
    client: Client, age_ms: int, tenant: str, report: MaintenanceReport
) -> Iterator[SeenCheckpoint]:
    if age_ms < AGE_MIN_MS:
        raise ConfigError(
            _WHAT,
            found="the age is below one hour",
            advice="Give an age after which the state is no longer needed, such as 30d.",
        )
    listed, noted = client.call(
        _WHAT,
        [("HGETALL", keys.checkpoints(tenant=tenant)), ("HGETALL", keys.looks(tenant=tenant))],
        of_other_type=OTHER_TYPE,
    )
    if listed is OTHER_TYPE or noted is OTHER_TYPE:
        report.problem("the list of checkpoints, or of earlier passes, is a key of another type")
        return
    for info in parse_listing(listed):
        if info.problem:
            # The time of its last use is unknown.
            report.problem(f"{info.title}: not purged: {info.problem}")
            continue
        try:
            ids = listed_partitions(info, tenant=tenant)
            activity = look(client, info.gen, tenant=tenant, listed=ids)
        except FormatError as error:
            report.problem(f"{info.title} ({info.gen}): not purged: {error}")
            continue
        yield SeenCheckpoint(info, activity, _noted_ms(noted, info.gen, activity))


def _noted_ms(noted: Mapping[bytes, bytes], gen: str, activity: Activity) -> int:
    """Returns the time when the checkpoint was noted in its present state; 0 if it was not."""
    found: Any = None
    with suppress(ValueError):
        found = parse_json(noted.get(gen.encode(), b"null"))
    if not isinstance(found, dict) or found.get("mark") != activity.mark:
        return 0
    at_ms = found.get("at")
    # A note from the future was written by a clock that was wrong.
    return at_ms if type(at_ms) is int and 0 < at_ms <= activity.now_ms else 0
