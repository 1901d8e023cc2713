"""Detaching a fork: its partitions get snapshots of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import ConflictError, Kind, UnavailableError
from redis_state.format.place import foreign_segments
from redis_state.ids import PartitionId
from redis_state.maintain.compaction import add_snapshot
from redis_state.maintain.pinned import described_owners
from redis_state.progress import Progress, silent
from redis_state.protocol.partition import PartitionClient
from redis_state.protocol.registry import counted_partitions, parse_operators

_TRIES_MAX = 5
_WHAT = "detaching a fork"


def detach_all(
    client: Client, gens: Sequence[str], *, tenant: str, progress: Progress = silent
) -> int:
    """Writes a snapshot of each partition, and drops the segments of the parent; may be repeated.

    A day later, maintenance ends the pins of the parent.

    Args:
        gens: Checkpoints of the fork.

    Returns:
        The number of partitions. None of them names a foreign segment.

    Raises:
        ConflictError: Forks or kept versions of the fork still need segments of its parent.
        UnavailableError: The fork's query kept writing snapshots at the same time.
        RedisStateError: See `add_snapshot`.
    """
    ids = [id_ for gen in gens for id_ in _partitions(client, gen, tenant)]
    lowest = _lowest(client, ids)
    for number, id_ in enumerate(ids, 1):
        _detach(client, id_, lowest[id_])
        progress("writing snapshots", number, len(ids))
    metas = [keys.meta(id_) for id_ in ids if _foreign(client, id_).aside]
    if metas:
        raise ConflictError(
            _WHAT,
            found="others need segments of its parent through it: "
            + "; ".join(described_owners(client, metas, tenant=tenant)),
            advice="The fork is complete, and has a snapshot of its own. Drop its kept versions "
            "with `redis-state keep QUERY --drop NAME`, purge its forks or run the command that "
            "made each of them again with --detach, wait a day, and then run this command again.",
            kind=Kind.PINNED,
        )
    return len(ids)


def _partitions(client: Client, gen: str, tenant: str) -> list[PartitionId]:
    """Returns the partitions of a checkpoint that were ever written."""
    (raw,) = client.call(_WHAT, [("HGETALL", keys.query(gen, tenant=tenant))])
    ids = counted_partitions(client, gen, parse_operators(raw).values(), tenant=tenant)
    there = client.call(_WHAT, [("EXISTS", keys.meta(id_)) for id_ in ids]) if ids else []
    return [id_ for id_, is_there in zip(ids, there, strict=True) if is_there]


def _lowest(client: Client, ids: Sequence[PartitionId]) -> dict[PartitionId, int]:
    """Returns the version of each partition that has to stay.

    Amid a batch the partitions of a query have opened two neighbouring versions. The lower one is
    confirmed in all of them, so readers ask for it.
    """
    found = client.call(_WHAT, [("HGET", keys.meta(id_), "o") for id_ in ids]) if ids else []
    opened = {id_: int(raw or 0) for id_, raw in zip(ids, found, strict=True)}
    return {
        id_: min(other for of, other in opened.items() if of.store == id_.store and at - other <= 1)
        for id_, at in opened.items()
    }


def _detach(client: Client, id_: PartitionId, lowest: int) -> None:
    partition = PartitionClient(client, id_, versions_to_retain=1)
    for tries in range(_TRIES_MAX):
        found = _foreign(client, id_)
        if not found.named:
            if found.aside:
                partition.retain()
            return
        newest = partition.open("", None)
        base = newest
        if not tries and 0 < lowest < newest.pin.version and lowest >= newest.floor:
            base = partition.open("", lowest)
        add_snapshot(partition, base)
        partition.retain(retained=newest.pin.version - base.pin.version)
    if _foreign(client, id_).named:
        raise UnavailableError(
            _WHAT,
            found="it still names segments of its parent: its query writes at the same time",
            advice="The fork is complete. Stop its query, or run the command again later.",
            where=str(id_),
        )


@dataclass(frozen=True, slots=True)
class _Foreign:
    """Segments of the parent in the manifest of a partition.

    Attributes:
        named: Number of those that versions are read from.
        aside: Number of those that are held only for forks and kept versions of the fork.
    """

    named: int
    aside: int


def _foreign(client: Client, id_: PartitionId) -> _Foreign:
    (raw,) = client.call(_WHAT, [("HGETALL", keys.meta(id_))])
    idents = foreign_segments(raw)
    aside = sum(f"z:{ident}".encode() in raw for ident in idents)
    return _Foreign(len(idents) - aside, aside)
