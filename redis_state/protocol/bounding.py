"""Files and bound of a Python store, settled before its first acquire."""

from __future__ import annotations

from functools import partial

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.config import Config
from redis_state.files import Folder
from redis_state.ids import PartitionId
from redis_state.places import declare, needs_files, places_by
from redis_state.places.moving import rows_of
from redis_state.places.room import share_of
from redis_state.places.writer import mark_folder
from redis_state.protocol.registry import counted_partitions, parse_operators

_USED = "u"


def declare_files(client: Client, gen: str, config: Config, *, tenant: str = "") -> None:
    """Writes into the query where its files are, and marks their folder; see `declare`."""
    partitions = partial(partitions_of, client, gen, tenant=tenant)
    declare(client, gen, config, partitions, tenant=tenant)
    mark_files(client, gen, config, tenant=tenant)


def mark_files(client: Client, gen: str, config: Config, *, tenant: str = "") -> bool:
    """Marks the folder that this process declared; see `redis_state.places.writer`."""
    if not needs_files(config):
        return True
    places = places_by(config)

    def is_gone(folder: Folder) -> bool:
        return places.is_local and any(
            (folder / row.file.partition("/")[0]).items() is None
            for id_ in partitions_of(client, gen, tenant=tenant)
            for row in rows_of(client, id_)
            if row.state == _USED
        )

    return mark_folder(places, gen, is_gone)


def share_by(client: Client, gen: str, config: Config, *, tenant: str = "") -> int:
    """Returns the share of each partition by `redisMemory`; 0 without a bound.

    Raises:
        ConfigError: The shares of all partitions are too small.
    """
    if config.redis_memory is None:
        return 0
    count = len(partitions_of(client, gen, tenant=tenant))
    return share_of(config.redis_memory, max(1, count))


def partitions_of(client: Client, gen: str, *, tenant: str = "") -> list[PartitionId]:
    """Returns the partitions of all stores of a checkpoint."""
    what: Command = ("HGETALL", keys.query(gen, tenant=tenant))
    (query,) = client.call("listing the stores of a checkpoint", [what])
    stores = parse_operators(query).values()
    return counted_partitions(client, gen, stores, tenant=tenant)
