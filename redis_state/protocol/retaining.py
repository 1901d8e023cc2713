"""Carries out retention: drops the segments of a plan from the manifest, a few per call."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.format.entry import FORMATS
from redis_state.ids import PartitionId
from redis_state.protocol import retention
from redis_state.protocol.refusal import refusal

DROPPED_TTL_MS = 10 * 60 * 1000
"""Time for which a dropped segment stays for readers under way."""

_PLANS_MAX = 4
_WHAT = "retention"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetainReport:
    """Result of retention.

    Attributes:
        floor: The lowest version that is kept.
        dropped: Segments removed from the manifest.
        kept: Segments left in the manifest.
    """

    floor: int
    dropped: int
    dropped_bytes: int
    kept: int


def retain(
    client: Client, id_: PartitionId, *, retained: int | None = None, where: str = ""
) -> RetainReport:
    """Removes segments that no retained version needs from the manifest.

    Args:
        retained: Number of versions to keep below the opened one; ``None`` is that which the
            holding run wants.
        where: Name of the partition in errors.
    """
    dropped, size = 0, 0
    for _ in range(_PLANS_MAX):
        (manifest,) = client.call(_WHAT, [("HGETALL", keys.meta(id_))])
        format_ = manifest.get(b"f")
        if format_ is None:
            return RetainReport(0, 0, 0, 0)
        if format_ not in FORMATS:
            found = format_.decode("ascii", "replace")
            raise refusal(_WHAT, ["FORMAT", found], where=where, version=0)
        if retained is not None:
            manifest[b"n"] = b"%d" % retained
        plan = retention.plan(manifest)
        is_stale = False
        for floor, fields in plan.parts():
            args = [str(DROPPED_TTL_MS), plan.epoch, str(plan.opened.version), plan.opened.uid]
            args += [str(floor), str(plan.base), plan.carrier, *fields]
            match client.script(_WHAT, script("retain"), [keys.meta(id_)], args):
                case ["OK", count, of_bytes]:
                    dropped, size = dropped + int(count), size + int(of_bytes)
                case ["STALE"] | ["EMPTY"]:
                    is_stale = True
                    break
                case reply:
                    raise refusal(_WHAT, reply, where=where, version=0)
        if not is_stale:
            break
    else:
        log.info("%s: %s: other workers were faster; the next maintenance continues", id_, _WHAT)
    return RetainReport(plan.base, dropped, size, plan.kept)
