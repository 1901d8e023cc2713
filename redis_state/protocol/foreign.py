"""Foreign segments whose checkpoint was purged (docs/format.md, section 14)."""

from __future__ import annotations

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_gen
from redis_state.errors import Kind, StateError
from redis_state.ids import PartitionId

_WHAT = "looking for the parent of a fork"


def parent_problem(client: Client, id_: PartitionId, gen: str) -> tuple[str, str] | None:
    """Returns the problem of a fork whose segments are in a purged checkpoint.

    Args:
        id_: A partition of the fork.
        gen: The checkpoint that has the keys of foreign segments.

    Returns:
        The finding and the advice; ``None`` if the checkpoint is not purged.
    """
    (raw,) = client.call(_WHAT, [("HGET", keys.meta(id_.of_gen(gen)), "f")])
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
