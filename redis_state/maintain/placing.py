"""Adds a snapshot where it fits: in Redis, or in a file from the first (docs/format.md, 18)."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from redis_state.errors import ConfigError, RedisStateError
from redis_state.format.entry import Entry
from redis_state.ids import Pin
from redis_state.places.born import write_snapshot
from redis_state.places.room import bound_of, folder_for
from redis_state.protocol import PartitionClient
from redis_state.protocol.room import RoomError

_LOG = logging.getLogger("redis_state.maintain")


class SnapshotSource(Protocol):
    """Rows of a version as the blocks of one snapshot; used once."""

    def blocks(self, writer: str) -> Iterator[Mapping[str, bytes]]:
        """Yields the blocks of the snapshot by this writer, the header last."""
        ...

    def entry(self) -> Entry:
        """Returns the entry, once all blocks were taken."""
        ...


def place_snapshot(
    partition: PartitionClient,
    pin: Pin,
    cost: Callable[[], int],
    new_source: Callable[[], SnapshotSource],
) -> Entry | None:
    """Adds a snapshot of a version.

    Args:
        cost: Returns the room that the snapshot takes at most, about; only a bound asks for it.

    Returns:
        The entry; ``None`` if nobody wants the snapshot any more.

    Raises:
        RedisStateError: The server refuses, or does not answer; or the folder does not.
    """
    bound = bound_of(partition.client, partition.id)
    # A larger one would leave too little room for the changes above it.
    if bound is None or cost() <= bound.share // 2:
        try:
            return _in_redis(partition, pin, new_source(), is_bounded=bound is not None)
        except RoomError:
            _LOG.info("%s: a snapshot does not fit into the share", partition.id)
    return _in_file(partition, pin, new_source())


def _in_redis(
    partition: PartitionClient, pin: Pin, source: SnapshotSource, *, is_bounded: bool
) -> Entry | None:
    writer = uuid.uuid4().hex
    ident = f"s:{pin.version}:{writer}"
    try:
        for fields in source.blocks(writer):
            partition.stage_snapshot(ident, fields, is_bounded=is_bounded)
        entry = source.entry()
        added = partition.add_snapshot(pin, writer, entry)
    except (RoomError, RedisStateError):
        partition.abort_snapshot(ident)
        raise
    return entry if added else None


def _in_file(partition: PartitionClient, pin: Pin, source: SnapshotSource) -> Entry | None:
    client = partition.client
    try:
        folder = folder_for(client, partition.id)
    except ConfigError as error:
        # A query of Spark writes its own files; a Python store is maintained where its folder is.
        _LOG.info("%s: no snapshot: %s", partition.id, error)
        return None
    born = write_snapshot(client, partition.id, folder, pin, source.blocks, source.entry)
    if born is None or not partition.add_filed_snapshot(born):
        return None
    return born.segment.entry
