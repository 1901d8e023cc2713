"""Decides whether files of a query may be deleted, by the log of Spark (docs/format.md, 17)."""

from __future__ import annotations

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import RedisStateError
from redis_state.files import Folder
from redis_state.ids import PartitionId
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
        try:
            gen = marker_of(self._checkpoint).gen
            newest = newest_commit(self._checkpoint)
        except RedisStateError as error:
            return f"the checkpoint could not be read: {error}"
        if gen != id_.store.gen:
            return f"the marker file of {self._checkpoint} names another checkpoint, {gen}"
        if newest is None:
            return f"the commit log of {self._checkpoint} is empty"
        what = "comparing a partition with the commit log"
        (opened,) = self._client.call(what, [("HGET", keys.meta(id_), "o")])
        if number_or_zero(opened) < newest:
            return (
                f"this Redis has opened version {number_or_zero(opened)}, and the commit log has "
                f"batch {newest}: it is older than the log, or a copy"
            )
        return ""
