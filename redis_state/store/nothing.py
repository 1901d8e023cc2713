"""What is opened where Redis knows no checkpoint of a name: version 0, and no other."""

from __future__ import annotations

from redis_state.errors import ConflictError, Kind, StateError
from redis_state.ids import EMPTY, Pin, StateStoreProviderId
from redis_state.store.families import NO_FAMILIES
from redis_state.store.local_state import History, LocalVersion


def no_rows(id_: StateStoreProviderId) -> LocalVersion:
    """Version 0, where there is nothing to read."""

    def reload(_: Pin) -> LocalVersion:
        raise ConflictError("reading version 0", found="it has no rows", where=str(id_.store_id))

    return LocalVersion(EMPTY, 0, NO_FAMILIES, (), None, History(), reload)


def no_checkpoint(id_: StateStoreProviderId, version: int) -> StateError:
    """The error for a version of a checkpoint that Redis does not know."""
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
