"""One bounded pass of `SCAN` over each server: for keys that nothing names.

Nothing else in redis-state scans.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from redis_state.backend.client import Client, ServersChangedError
from redis_state.errors import ConfigError, Kind, UnavailableError
from redis_state.ids import text_number
from redis_state.progress import Progress

_COUNT = 1000
# A scan returns to its beginning after about (keys / count) calls; resizing can double that.
_CALLS_SPARE = 1000
_CALLS_FACTOR = 4

_LOG = logging.getLogger("redis_state.backend")


def scan(client: Client, attempted: str, pattern: str, progress: Progress) -> Iterator[list[str]]:
    """Keys that match a glob pattern, batch by batch and server by server; some may come twice.

    A cursor says nothing to a server that was started since, nor to the replica that took its
    place: both order their keys by another secret. Then all is scanned once more.

    Raises:
        UnavailableError: The scan did not end.
    """
    return client.over_parts(attempted, lambda part: _scan_one(part, attempted, pattern, progress))


def _start_of(client: Client, attempted: str) -> object:
    """What tells one start of a server from another; ``None`` where the user may not ask."""
    try:
        (info,) = client.call(attempted, [("INFO", "server")])
    except ConfigError as error:
        if error.kind is not Kind.PERMISSION:
            raise
        _LOG.warning("nobody will notice if the server is started anew meanwhile: %s", error)
        return None
    return info.get("run_id") if isinstance(info, Mapping) else None


def _scan_one(
    client: Client, attempted: str, pattern: str, progress: Progress
) -> Iterator[list[str]]:
    began = _start_of(client, attempted)
    (size,) = client.call(attempted, [("DBSIZE",)])
    calls_max = _CALLS_FACTOR * (size // _COUNT) + _CALLS_SPARE
    cursor: str | bytes = "0"
    for call in range(1, calls_max + 1):
        command = ("SCAN", cursor, "MATCH", pattern, "COUNT", str(_COUNT))
        ((cursor, raw),) = client.call(attempted, [command])
        yield [name.decode("utf-8", "replace") for name in raw]
        progress("scanned keys", min(call * _COUNT, size), size)
        # Clients answer the cursor as bytes or as a number.
        if text_number(cursor.decode() if isinstance(cursor, bytes) else str(cursor)) == 0:
            if _start_of(client, attempted) != began:
                raise ServersChangedError(
                    attempted, found="the server was started anew while it was scanned"
                )
            return
    raise UnavailableError(attempted, found=f"the scan did not end after {calls_max} calls")
