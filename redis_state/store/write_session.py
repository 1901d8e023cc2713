"""An opened version, and its life cycle during changes: first change, commit, abort."""

from __future__ import annotations

import uuid
from typing import NoReturn, Protocol, cast

from redis_state.ids import Pin, StateStoreId, StateStoreProviderId
from redis_state.process import elsewhere, tell_after_fork
from redis_state.store.api import Operation, State, StateStoreMetrics, following
from redis_state.store.local.base import Base
from redis_state.store.local.families import Families
from redis_state.store.local.memory_budget import ROW_BYTES
from redis_state.store.local.version import LocalVersion, Parts
from redis_state.store.write_set import WriteSet


class Partition(Protocol):
    """Operations that a store needs of its partition; see `PartitionState`."""

    @property
    def id(self) -> StateStoreProviderId:
        """Returns the ids of the partition and the run."""

    def families(self, local: LocalVersion) -> Families:
        """Returns the family table with which the next version begins."""

    def acquire(self, pin: Pin, families: Families) -> None:
        """Acquires the partition before the first change."""

    def commit(
        self, local: LocalVersion, changes: WriteSet, families: Families, uid: str
    ) -> LocalVersion:
        """Publishes the next version."""

    def abort(self, version: int, uid: str) -> None:
        """Drops the staged bytes of an attempt."""

    def values(self) -> dict[str, int]:
        """Returns figures of the partition, by their names."""


class _Elsewhere:
    """Stand-in for a version that was opened in another process; every access raises.

    Attributes:
        parts: No layers, for callers that bind them once; the base is a stand-in, too.
    """

    def __init__(self, id_: StateStoreId, version: int) -> None:
        self._id, self._version = id_, version
        self.parts: Parts = (), cast(Base, self)

    def get(self, _stored: bytes) -> NoReturn:
        """Raises an error that names the store."""
        raise elsewhere(where=str(self._id), version=self._version)

    def __getattr__(self, _name: str) -> NoReturn:
        raise elsewhere(where=str(self._id), version=self._version)


class OpenedVersion:
    """One opened version of a partition."""

    def __init__(self, partition: Partition, local: LocalVersion) -> None:
        self._partition = partition
        self._local = local
        self._version = local.pin.version
        tell_after_fork(self)

    def after_fork(self) -> None:
        """Disables the child's copy of a store that the parent keeps using."""
        self._local = cast(LocalVersion, _Elsewhere(self.id, self._version))

    @property
    def id(self) -> StateStoreId:
        """Returns the id of the partition."""
        return self._partition.id.store_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id}, version={self._version})"

    @property
    def version(self) -> int:
        """Returns the opened version."""
        return self._version

    @property
    def metrics(self) -> StateStoreMetrics:
        """Returns the metrics of this store and its provider."""
        return StateStoreMetrics(
            num_keys=self._local.live - self._local.internal,
            memory_bytes=self._local.memory_bytes,
            custom=self._partition.values(),
        )


class WriteSession(OpenedVersion):
    """One version and changes over it, used by one thread at a time.

    Args:
        held: True if the run holds the partition.
    """

    def __init__(self, partition: Partition, local: LocalVersion, *, held: bool) -> None:
        OpenedVersion.__init__(self, partition, local)
        self._held = held
        self._state = State.OPEN
        self._uid = uuid.uuid4().hex
        self._families = partition.families(local)
        self._forget_changes()

    def after_fork(self) -> None:
        """Disables the child's copy; only the parent can commit its changes."""
        super().after_fork()
        if self._state not in (State.COMMITTED, State.ABORTED):
            self._state = State.LEFT
        self._forget_changes()

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, state={self._state.value!r})"

    def commit(self) -> int:
        """Implements `StateStore.commit`."""
        self._move(Operation.COMMIT)
        try:
            if not self._held:
                self._acquire()
            self._changes.settle()
            self._local = self._partition.commit(
                self._local, self._changes, self._families, self._uid
            )
        except BaseException:
            self._move(Operation.FAIL)
            raise
        self._forget_changes()
        self._move(Operation.SUCCEED)
        return self._local.pin.version

    def abort(self) -> None:
        """Implements `StateStore.abort`."""
        if self._state is State.COMMITTING:
            # Another thread is inside `commit`, which reports the outcome to its own caller.
            return
        was = self._state
        self._move(Operation.ABORT)
        if self._state is State.ABORTED and was is not State.ABORTED:
            self._forget_changes()
            if was is State.FAILED:
                self._partition.abort(self._version + 1, self._uid)

    @property
    def has_committed(self) -> bool:
        """Returns whether `commit` succeeded."""
        return self._state is State.COMMITTED

    @property
    def metrics(self) -> StateStoreMetrics:
        """Returns the metrics of this store and its provider."""
        found = super().metrics
        changed = sum(map(len, self._changed)) + ROW_BYTES * len(self._changed)
        return StateStoreMetrics(found.num_keys, found.memory_bytes + changed, found.custom)

    def _update(self) -> None:
        """Acquires the partition before the first change."""
        self._move(Operation.UPDATE)
        if not self._held:
            try:
                self._acquire()
            except BaseException:
                self._state = State.OPEN
                raise

    def _acquire(self) -> None:
        self._partition.acquire(self._local.pin, self._families)
        self._held = True

    def _move(self, operation: Operation) -> None:
        self._state = following(self._state, operation, id_=self.id, version=self._version)

    def _forget_changes(self) -> None:
        self._changes = WriteSet()
        self._changed = self._changes.rows
