"""In-memory store of families without a server, for functions that run once."""

from __future__ import annotations

from typing import NoReturn

from redis_state.errors import InternalError
from redis_state.ids import StateStoreProviderId
from redis_state.store.family_store import FamilyStore
from redis_state.store.local.families import Families
from redis_state.store.local.version import LocalVersion, no_rows


def scratch_store(id_: StateStoreProviderId) -> FamilyStore:
    """Returns an empty store to be changed and then aborted; it cannot be committed.

    Args:
        id_: Id of the store in error messages.
    """
    return FamilyStore(_Scratch(id_), no_rows(str(id_.store_id)), held=True)


class _Scratch:
    """Partition of a scratch store."""

    def __init__(self, id_: StateStoreProviderId) -> None:
        self.id = id_

    def families(self, local: LocalVersion) -> Families:
        """Returns the families of the version, at first none."""
        return local.families

    def values(self) -> dict[str, int]:
        """Returns no figures, since nothing is read or sent."""
        return {}

    def acquire(self, *_: object) -> NoReturn:
        """Refuses to acquire, since there is no server."""
        raise self._kept()

    def commit(self, *_: object) -> NoReturn:
        """Refuses to commit."""
        raise self._kept()

    def abort(self, *_: object) -> None:
        """Does nothing, since nothing was sent."""

    def _kept(self) -> InternalError:
        return InternalError(
            "keeping a store that is thrown away", found="it has no server", where=str(self.id)
        )
