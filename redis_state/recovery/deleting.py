"""Decides whether files of a query may be deleted, by the log of Spark (docs/format.md, 17)."""

from __future__ import annotations

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import RedisStateError
from redis_state.files import Folder
from redis_state.ids import PartitionId
from redis_state.maintain.purged_files import PurgedFiles
from redis_state.protocol.texts import number_or_zero
from redis_state.recovery.marker import marker_of
from redis_state.recovery.rewind import newest_commit


class LogGuard:
    """Compares Redis with the marker file and the commit log of a checkpoint.

    A Redis behind the log was restored or failed over, or is a copy of another one, whose files are
    in use. It deletes nothing.
    """

    def __init__(self, client: Client, checkpoint: Folder) -> None:
        self._client = client
        self._checkpoint = checkpoint

    def __call__(self, id_: PartitionId) -> str:
        """Returns why nothing of a partition may be deleted; empty if it may."""
        newest = _newest(self._checkpoint, id_.store.gen)
        if isinstance(newest, str):
            return newest
        what = "comparing a partition with the commit log"
        (opened,) = self._client.call(what, [("HGET", keys.meta(id_), "o")])
        return _behind(number_or_zero(opened), newest)


class PurgedGuard:
    """Compares what a purge noted with the marker file and the commit log of the checkpoint.

    A log that has grown since the purge belongs to a query that goes on with another Redis.
    """

    def __init__(self, checkpoint: Folder) -> None:
        self._checkpoint = checkpoint

    def __call__(self, found: PurgedFiles) -> str:
        """Returns why nothing of the checkpoint may be deleted; empty if it may."""
        newest = _newest(self._checkpoint, found.gen)
        return newest if isinstance(newest, str) else _behind(found.opened, newest)

    def was_left(self, found: PurgedFiles) -> bool:
        """Returns whether the query goes on under another id.

        A change of the number of partitions leaves the former id, or was given up and has left its
        own.
        """
        try:
            marker = marker_of(self._checkpoint)
        except RedisStateError:
            return False
        return marker.gen != found.gen and not marker.changes


def _newest(checkpoint: Folder, gen: str) -> int | str:
    """Returns the newest batch of the commit log, or why it says nothing."""
    try:
        found = marker_of(checkpoint).gen
        newest = newest_commit(checkpoint)
    except RedisStateError as error:
        return f"the checkpoint could not be read: {error}"
    if found != gen:
        return f"the marker file of {checkpoint} names another checkpoint, {found}"
    return f"the commit log of {checkpoint} is empty" if newest is None else newest


def _behind(opened: int, newest: int) -> str:
    if opened >= newest:
        return ""
    return (
        f"this Redis has opened version {opened}, and the commit log has "
        f"batch {newest}: it is older than the log, or a copy"
    )
