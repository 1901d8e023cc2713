"""Orphans: segments that no manifest names, for example because a manifest was destroyed.

Staged bytes of an attempt expire by themselves. Orphans have no expiry, and only a scan finds them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.scan import scan
from redis_state.backend.script import script
from redis_state.maintain.report import MaintenanceReport
from redis_state.progress import silent
from redis_state.protocol.runs import STAGED_TTL_MS

_WHAT = "looking for orphans"
_ASIDE_MS = 5 * 365 * 86_400_000  # a segment that was set aside expires in ten years
_LOG = logging.getLogger("redis_state.maintain")


def sweep_orphans(
    client: Client,
    *,
    tenant: str = "",
    ttl_ms: int = STAGED_TTL_MS,
    progress: Callable[[str, int, int], None] = silent,
) -> MaintenanceReport:
    """Sets an expiry on this tenant's segments that no manifest names, by one pass of `SCAN`.

    Args:
        ttl_ms: Time for which orphans can still be inspected.

    Raises:
        UnavailableError: The server does not answer.
        ConfigError: The server refuses the user.
    """
    report = MaintenanceReport()
    for names in scan(client, _WHAT, keys.any_pattern(tenant=tenant), progress):
        # Sorted, so that results do not depend on the server's hash order.
        segments = sorted(found for name in names if (found := _segment(name, tenant)) is not None)
        expiries = client.call(_WHAT, [("PTTL", key) for key, _, _ in segments])
        for (key, meta, ident), expiry_ms in zip(segments, expiries, strict=True):
            if expiry_ms != -1 and expiry_ms < _ASIDE_MS:
                continue
            reply = client.script(_WHAT, script("orphan"), [meta, key], [ident, str(ttl_ms)])
            if reply == ["OK"]:
                report.orphans += 1
                _LOG.warning("no manifest names %s; it expires in %d s", key, ttl_ms // 1000)
    return report


def _segment(key: str, tenant: str) -> tuple[str, str, str] | None:
    """Returns a segment's key, manifest key and ident; ``None`` for any other key."""
    gen = keys.gen_in(key, tenant=tenant)
    parts = None if gen is None else keys.parse_partition_key(key, gen=gen, tenant=tenant)
    if parts is None or not parts.is_segment:
        return None
    return key, f"{parts.prefix}:m", parts.rest
