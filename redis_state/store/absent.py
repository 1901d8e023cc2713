"""Errors for a missing or replaced checkpoint."""

from __future__ import annotations

from redis_state.errors import ConflictError, Kind, StateError
from redis_state.ids import StateStoreProviderId


def check_gen(id_: StateStoreProviderId, wanted: str | None, found: str) -> None:
    """Refuses a name whose checkpoint is not the run's; ``None`` accepts any.

    Raises:
        ConflictError: The name has another checkpoint.
    """
    if wanted not in (None, found):
        raise ConflictError(
            "looking for a checkpoint by its name",
            found=(
                "the name has another checkpoint than when the batch began: the number of "
                "partitions was changed, or the store was removed and created again"
            ),
            advice="Stop the query and start it again. Nothing was changed.",
            where=str(id_.store_id),
        )


def no_checkpoint(id_: StateStoreProviderId, version: int) -> StateError:
    """Returns the error for a version of a checkpoint that Redis does not know."""
    return StateError(
        f"opening version {version} of the state",
        found="Redis knows no checkpoint of that name",
        advice=(
            "Likely: another server, database or key prefix than before, or another name. "
            "Give the values that the state was written with, or start again at version 0."
        ),
        kind=Kind.STATE_LOST,
        where=str(id_.store_id),
        version=version,
    )
