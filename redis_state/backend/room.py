"""Checks that Redis has enough memory before a large write starts."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from redis_state.backend.client import Client
from redis_state.errors import ConfigError, FullError, Kind

_LOG = logging.getLogger(__name__)
_NEEDED_OF_STORED = 1.25
"""Factor for the names and tables that Redis keeps with the blocks."""


def check_room(client: Client, stored: int, *, what: str) -> None:
    """Rejects a write that exceeds the servers' free memory.

    The limit of a server is its `maxmemory`, or else the memory of its machine. A user that may not
    call `INFO` only gets a warning, because a full server refuses writes itself.

    Args:
        stored: Bytes of the blocks.

    Raises:
        FullError: The free memory of all masters together is too small.
    """
    needed = int(stored * _NEEDED_OF_STORED)
    free = list(client.over_parts(what, _free))
    if not free or None in free:
        return
    there = sum(one for one in free if one is not None)
    if needed > there:
        raise FullError(
            what,
            found=(
                f"the state takes about {needed:,} bytes of memory in Redis, and {there:,} are free"
            ),
            advice=(
                "Nothing was changed. Raise maxmemory, or purge checkpoints that are no longer "
                "needed, and try again."
            ),
        )


def _free(client: Client) -> Iterator[int | None]:
    """Yields the free bytes of a server; ``None`` if unknown."""
    try:
        (info,) = client.call("looking for free memory", [("INFO", "memory")])
    except ConfigError as error:
        if error.kind is not Kind.PERMISSION:
            raise
        _LOG.warning("%s: its free memory could not be checked: %s", client.url, error)
        yield None
        return
    if not isinstance(info, Mapping):
        yield None
        return
    most = int(info.get("maxmemory") or 0) or int(info.get("total_system_memory") or 0)
    yield max(0, most - int(info.get("used_memory") or 0)) if most else None
