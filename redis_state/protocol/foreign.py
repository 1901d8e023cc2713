"""Foreign segments, and checkpoints that no longer keep them (docs/format.md, section 14)."""

from __future__ import annotations

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_gen
from redis_state.errors import Kind, StateError
from redis_state.ids import PartitionId

FORKED_FROM = "g"
"""Field of a fork's partition: parent, version and uid with which it began."""

_WHAT = "looking for the parent of a fork"


def parent_in(began: bytes | None) -> str:
    """Returns the parent's id by the field `FORKED_FROM`; empty without one."""
    return (began or b"").decode("ascii", "replace").split(" ")[0]


def parent_problem(client: Client, id_: PartitionId, gen: str) -> tuple[str, str] | None:
    """Returns the problem of a fork whose segments another checkpoint no longer keeps.

    Args:
        id_: A partition of the fork.
        gen: The checkpoint that has the keys of foreign segments.

    Returns:
        The finding and the advice; ``None`` if the checkpoint keeps them.
    """
    of_parent = keys.meta(id_.of_gen(gen))
    (raw, pin), began = client.call(
        _WHAT,
        [("HMGET", of_parent, "f", f"x:{id_.store.gen}"), ("HGET", keys.meta(id_), FORKED_FROM)],
    )
    if raw is None:
        return (
            f"it is a fork that reads segments of checkpoint {gen}, which was purged or lost",
            "Restore the data of that Redis, or a copy of the fork; or begin with a new fork.",
        )
    if purged_gen(raw.decode("ascii", "replace")):
        return (
            f"it is a fork that reads segments of checkpoint {gen}, which was purged",
            f"Bring that back within a day of its purge: `redis-state purge --gen {gen} --recall`. "
            "Later, restore the data of that Redis, or begin with a new fork.",
        )
    if pin is None and parent_in(began) == gen:
        return (
            f"it is a fork that reads segments of checkpoint {gen}, which was restored or imported "
            "since and does not keep all of them",
            "`redis-state maintain --once` makes it keep them again if they are there. Otherwise "
            "restore a copy of the fork, or begin with a new fork.",
        )
    return None


def lost_with_parent(
    client: Client, id_: PartitionId, gen: str, *, attempted: str, where: str, version: int
) -> StateError | None:
    """Returns the error for a foreign segment that is gone; ``None`` if its checkpoint is not.

    Args:
        id_: A partition of the fork.
        gen: The checkpoint that had the segment; empty for the fork itself.
    """
    problem = parent_problem(client, id_, gen) if gen else None
    if problem is None:
        return None
    found, advice = problem
    return StateError(
        attempted,
        found=found,
        advice=advice,
        kind=Kind.STATE_LOST,
        where=where,
        version=version,
    )
