"""A store of families that nobody keeps: in memory, without a server, for what runs once."""

from __future__ import annotations

from typing import NoReturn

from redis_state.errors import InternalError
from redis_state.ids import StateStoreProviderId
from redis_state.store.absent import no_rows
from redis_state.store.families import Families
from redis_state.store.family_store import FamilyStore
from redis_state.store.local_state import LocalVersion


def scratch_store(id_: StateStoreProviderId) -> FamilyStore:
    """A store without rows, to be changed and then aborted: it cannot be committed.

    Args:
        id_: What errors call it.
    """
    return FamilyStore(_Scratch(id_), no_rows(id_), held=True)


class _Scratch:
    """The partition of such a store."""

    def __init__(self, id_: StateStoreProviderId) -> None:
        self.id = id_

    def families(self, local: LocalVersion) -> Families:
        """None at first."""
        return local.families

    def values(self) -> dict[str, int]:
        """Nothing is counted: nothing is read or sent."""
        return {}

    def acquire(self, *_: object) -> NoReturn:
        """Refuses: there is nobody to take it from."""
        raise self._kept()

    def commit(self, *_: object) -> NoReturn:
        """Refuses."""
        raise self._kept()

    def abort(self, *_: object) -> None:
        """Nothing was sent."""

    def _kept(self) -> InternalError:
        return InternalError(
            "keeping a store that is thrown away", found="it has no server", where=str(self.id)
        )
