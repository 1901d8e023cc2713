"""A bounded `SCAN` of each server, for keys that nothing names.

No other module scans.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from redis_state.backend.client import Client
from redis_state.backend.failures import ServersChangedError
from redis_state.errors import ConfigError, Kind, UnavailableError
from redis_state.ids import text_number
from redis_state.progress import Progress

_COUNT = 1000
# A scan takes about (keys / count) calls; a resize of the table can double them.
_CALLS_SPARE = 1000
_CALLS_FACTOR = 4

_LOG = logging.getLogger("redis_state.backend")


def scan(client: Client, attempted: str, pattern: str, progress: Progress) -> Iterator[list[str]]:
    """Yields keys that match a glob pattern, in batches, server by server; some may come twice.

    A cursor is invalid on a restarted server, and on a replica that replaced its master, because
    each orders keys by its own secret. The scan then starts again.

    Raises:
        UnavailableError: The scan did not end.
    """
    return client.over_parts(attempted, lambda part: _scan_one(part, attempted, pattern, progress))


def _start_of(client: Client, attempted: str) -> object:
    """Returns an id of the server's start; ``None`` if the user may not ask."""
    try:
        (info,) = client.call(attempted, [("INFO", "server")])
    except ConfigError as error:
        if error.kind is not Kind.PERMISSION:
            raise
        _LOG.warning("a restart of the server during the scan will not be noticed: %s", error)
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
        # The cursor may be bytes or a number, depending on the client.
        if text_number(cursor.decode() if isinstance(cursor, bytes) else str(cursor)) == 0:
            if _start_of(client, attempted) != began:
                raise ServersChangedError(
                    attempted, found="the server was restarted during the scan"
                )
            return
    raise UnavailableError(attempted, found=f"the scan did not end after {calls_max} calls")
