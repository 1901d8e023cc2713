"""Detaches a fork: gives its partitions snapshots of their own."""

from __future__ import annotations

from collections.abc import Sequence

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import UnavailableError
from redis_state.forks.state import StateFork
from redis_state.ids import PartitionId
from redis_state.maintain.compaction import add_snapshot
from redis_state.progress import Progress
from redis_state.protocol.partition import PartitionClient

_FOREIGN = b"a:"
_TRIES_MAX = 5
_WHAT = "detaching a fork"


def detach_all(client: Client, forks: Sequence[StateFork], progress: Progress) -> int:
    """Writes a snapshot of each partition, and drops the segments of the parent; may be repeated.

    The parent lets its segments go a day later, when maintenance has noted that the fork names none
    of them.

    Returns:
        The number of partitions that name no foreign segment any more.

    Raises:
        UnavailableError: Other workers were faster again and again.
        RedisStateError: See `add_snapshot`.
    """
    ids = [id_.of_gen(each.gen) for each in forks for id_ in each.ids]
    for number, id_ in enumerate(ids, 1):
        _detach(client, id_)
        progress("writing snapshots", number, len(ids))
    return len(ids)


def _detach(client: Client, id_: PartitionId) -> None:
    partition = PartitionClient(client, id_, versions_to_retain=1)
    for _ in range(_TRIES_MAX):
        if not _foreign(client, id_):
            return
        add_snapshot(partition, partition.open("", None))
        partition.retain(retained=0)
    if _foreign(client, id_):
        raise UnavailableError(
            _WHAT,
            found="it still names segments of its parent: its query writes at the same time",
            advice="The fork is complete. Stop its query, or run the command again later.",
            where=str(id_),
        )


def _foreign(client: Client, id_: PartitionId) -> int:
    (raw,) = client.call(_WHAT, [("HGETALL", keys.meta(id_))])
    return sum(name.startswith(_FOREIGN) for name in raw)
