"""An opened version, and its life while it is changed: first change, commit, abort."""

from __future__ import annotations

import uuid
from typing import NoReturn, Protocol, cast

from redis_state.ids import Pin, StateStoreId, StateStoreProviderId
from redis_state.process import elsewhere, tell_after_fork
from redis_state.store.api import Operation, State, StateStoreMetrics, following
from redis_state.store.families import Families
from redis_state.store.local_state import LocalVersion, Parts
from redis_state.store.memory_budget import ROW_BYTES
from redis_state.store.write_set import WriteSet


class Partition(Protocol):
    """What a store asks of the partition that it is a version of; see `PartitionState`."""

    @property
    def id(self) -> StateStoreProviderId:
        """Which partition, and which run."""

    def families(self, local: LocalVersion) -> Families:
        """The family table with which the next version begins."""

    def acquire(self, pin: Pin, families: Families) -> None:
        """Take the partition before the first change."""

    def commit(
        self, local: LocalVersion, changes: WriteSet, families: Families, uid: str
    ) -> LocalVersion:
        """Publish the next version."""

    def abort(self, version: int, uid: str) -> None:
        """Drop what an attempt sent."""

    def values(self) -> dict[str, int]:
        """Figures of the partition, by their names."""


class _Elsewhere:
    """In place of a version that was opened in another process: all that is asked of it refuses."""

    parts: Parts = (), None
    """For those who keep what is read most at hand: nothing, and a method that refuses."""

    def __init__(self, id_: StateStoreId, version: int) -> None:
        self._id, self._version = id_, version

    def get(self, _stored: bytes) -> NoReturn:
        """Refuses."""
        raise elsewhere(where=str(self._id), version=self._version)

    def __getattr__(self, _name: str) -> NoReturn:
        raise elsewhere(where=str(self._id), version=self._version)


class OpenedVersion:
    """One version of a partition that was opened."""

    def __init__(self, partition: Partition, local: LocalVersion) -> None:
        self._partition = partition
        self._local = local
        self._version = local.pin.version
        tell_after_fork(self)

    def after_fork(self) -> None:
        """This process has a copy of a store that its parent goes on with."""
        self._local = cast(LocalVersion, _Elsewhere(self.id, self._version))

    @property
    def id(self) -> StateStoreId:
        """Which partition this is."""
        return self._partition.id.store_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id}, version={self._version})"

    @property
    def version(self) -> int:
        """The version that was opened."""
        return self._version

    @property
    def metrics(self) -> StateStoreMetrics:
        """Counts of this store and its provider."""
        return StateStoreMetrics(
            num_keys=self._local.live - self._local.internal,
            memory_bytes=self._local.memory_bytes,
            custom=self._partition.values(),
        )


class WriteSession(OpenedVersion):
    """One version and changes over it, used by one thread at a time.

    Args:
        held: Whether the run holds the partition.
    """

    def __init__(self, partition: Partition, local: LocalVersion, *, held: bool) -> None:
        OpenedVersion.__init__(self, partition, local)
        self._held = held
        self._state = State.OPEN
        self._uid = uuid.uuid4().hex
        self._families = partition.families(local)
        self._forget_changes()

    def after_fork(self) -> None:
        """As of a version for reading; its changes are its parent's to commit."""
        super().after_fork()
        if self._state not in (State.COMMITTED, State.ABORTED):
            self._state = State.LEFT
        self._forget_changes()

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, state={self._state.value!r})"

    def commit(self) -> int:
        """As `StateStore.commit`."""
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
        """As `StateStore.abort`."""
        if self._state is State.COMMITTING:
            # Another thread is in the middle of it: what comes of it is known there.
            return
        was = self._state
        self._move(Operation.ABORT)
        if self._state is State.ABORTED and was is not State.ABORTED:
            self._forget_changes()
            if was is State.FAILED:
                self._partition.abort(self._version + 1, self._uid)

    @property
    def has_committed(self) -> bool:
        """Whether `commit` succeeded."""
        return self._state is State.COMMITTED

    @property
    def metrics(self) -> StateStoreMetrics:
        """Counts of this store and its provider."""
        found = super().metrics
        changed = sum(map(len, self._changed)) + ROW_BYTES * len(self._changed)
        return StateStoreMetrics(found.num_keys, found.memory_bytes + changed, found.custom)

    def _update(self) -> None:
        """Before the first change."""
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
