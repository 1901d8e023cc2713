"""Whether Redis has the memory for what is to come; asked before anything is sent."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from redis_state.backend.client import Client
from redis_state.errors import ConfigError, FullError, Kind

_LOG = logging.getLogger(__name__)
_NEEDED_OF_STORED = 1.25
"""Redis keeps names and tables beside the blocks."""


def check_room(client: Client, stored: int, *, what: str) -> None:
    """Refuse what the servers have no memory for.

    Each server's limit is its `maxmemory`, and without one the memory of its machine. A user that
    may not ask (`INFO`) is warned, and goes on: a server that is full refuses writes by itself.

    Args:
        stored: Bytes of the blocks.

    Raises:
        FullError: There is too little, over all masters.
    """
    needed = int(stored * _NEEDED_OF_STORED)
    free = list(client.over_parts(what, _free))
    if not free or None in free:
        return
    there = sum(one for one in free if one is not None)
    if needed > there:
        raise FullError(
            what,
            found=f"it takes about {needed:,} bytes of memory in Redis, and {there:,} are free",
            advice="Nothing was changed. Raise maxmemory there, or purge what nobody needs, and "
            "try again.",
        )


def _free(client: Client) -> Iterator[int | None]:
    """Free bytes of a server; ``None`` if it does not say."""
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
