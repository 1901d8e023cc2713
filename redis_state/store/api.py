"""The state store as its users see it: interfaces, metrics and the life cycle of a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, overload

from redis_state.errors import UsageError
from redis_state.ids import StateStoreId
from redis_state.process import elsewhere

KeyValue = tuple[Any, Any]
"""A key and its value, as the store's codec gives them."""

RowPairs = Iterable[KeyValue] | Mapping[Any, Any]
"""Keys and their values."""


@dataclass(frozen=True, slots=True)
class StateStoreMetrics:
    """The metrics of a store.

    Attributes:
        num_keys: Live keys without those of internal families; exact after commit, before it that
            of the version it was opened at.
        memory_bytes: About what the version and its changes take in this process.
        custom: By the names of `StateStoreProvider.supported_custom_metrics`.
    """

    num_keys: int
    memory_bytes: int
    custom: Mapping[str, int] = field(default_factory=dict)


class State(Enum):
    """The life cycle of a store."""

    OPEN = "open"
    UPDATING = "updating"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTED = "aborted"
    FAILED = "failed to commit"
    LEFT = "of another process"


class Operation(Enum):
    """The operations that change a store's state."""

    UPDATE = "update"
    COMMIT = "commit"
    SUCCEED = "finish the commit of"
    FAIL = "give up the commit of"
    ABORT = "abort"


_TRANSITIONS: Mapping[tuple[State, Operation], State] = {
    (State.OPEN, Operation.UPDATE): State.UPDATING,
    (State.UPDATING, Operation.UPDATE): State.UPDATING,
    (State.OPEN, Operation.COMMIT): State.COMMITTING,
    (State.UPDATING, Operation.COMMIT): State.COMMITTING,
    (State.COMMITTING, Operation.SUCCEED): State.COMMITTED,
    (State.COMMITTING, Operation.FAIL): State.FAILED,
    (State.OPEN, Operation.ABORT): State.ABORTED,
    (State.UPDATING, Operation.ABORT): State.ABORTED,
    (State.FAILED, Operation.ABORT): State.ABORTED,
    # Clean-up code calls abort without knowing how far the store came: what is done stays done.
    (State.ABORTED, Operation.ABORT): State.ABORTED,
    (State.COMMITTED, Operation.ABORT): State.COMMITTED,
    (State.LEFT, Operation.ABORT): State.LEFT,
}


def following(state: State, operation: Operation, *, id_: StateStoreId, version: int) -> State:
    """The state after an operation.

    Raises:
        UsageError: The operation is not allowed in this state.
    """
    found = _TRANSITIONS.get((state, operation))
    if found is None and state is State.LEFT:
        raise elsewhere(where=str(id_), version=version)
    if found is None:
        raise UsageError(
            f"cannot {operation.value} the store opened at version {version}",
            found=f"it is {state.value} already"
            if state.value[-2:] == "ed"
            else "its commit is under way",
            advice="Open the store again for further updates. Nothing was changed by this call.",
            where=str(id_),
            version=version,
            operation=operation.name.lower(),
        )
    return found


class ReadStateStore(ABC):
    """One version of one partition, for reading. Keys come in the order of the codec's encoding.

    Changing a key or value that the store returned changes nothing in the store.
    """

    @property
    @abstractmethod
    def id(self) -> StateStoreId:
        """Which partition this is."""

    @property
    @abstractmethod
    def version(self) -> int:
        """The version that was opened; a commit makes the next one."""

    @abstractmethod
    def get(self, key: Any) -> Any:
        """The value of a key; ``None`` if it has none.

        Raises:
            UsageError: The key has no encoding.
        """

    @abstractmethod
    def get_many(self, keys: Iterable[Any]) -> list[Any]:
        """The values of keys, in their order; ``None`` where one has none.

        Gives the same as one `get` for each key, in far less time, and reads what is not here yet
        in few round trips. All of the keys are held in memory.

        Raises:
            UsageError: A key has no encoding; the message names its place.
        """

    @abstractmethod
    def get_range(self, start: Any | None = None, end: Any | None = None) -> Iterator[KeyValue]:
        """Rows from `start` up to, not including, `end`, in key order; ``None`` is open.

        The rows are those at the moment of the call; changes made while they are read do not show.
        """

    @abstractmethod
    def prefix_scan(self, prefix: Any) -> Iterator[KeyValue]:
        """Rows whose keys begin with `prefix`, in key order, as of the moment of the call."""

    def iterator(self) -> Iterator[KeyValue]:
        """All rows in key order, as of the moment of the call."""
        return self.get_range(None, None)

    @property
    @abstractmethod
    def metrics(self) -> StateStoreMetrics:
        """Counts of this store."""


class StateStore(ReadStateStore):
    """One version of one partition, for changing it into the next one."""

    @abstractmethod
    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key.

        Raises:
            UsageError: Key or value has no encoding, or the store has ended.
            LimitError: Key or value is too large.
            ConflictError: Another run took the partition.
        """

    @overload
    def put_many(self, rows: RowPairs, /) -> None: ...

    @overload
    def put_many(self, keys: Iterable[Any], values: Iterable[Any], /) -> None: ...

    @abstractmethod
    def put_many(self, keys: Any, values: Any = None, /) -> None:
        """Set the values of many keys: `put_many(keys, values)`, or one argument with both.

        Does what as many calls of `put` do, in their order, in far less time. All of the rows are
        held in memory. If one is refused, or what is given raises, none of them is put.

        Args:
            keys: Or, without `values`, pairs of a key and its value, or a mapping.
            values: One for each key, in their order; less work than pairs.

        Raises:
            UsageError: A key or value has no encoding, there are more keys than values or fewer,
                or the store has ended. What is refused is named by its place.
            LimitError: A key or value is too large.
            ConflictError: Another run took the partition.
        """

    @abstractmethod
    def remove(self, key: Any) -> None:
        """Take a key out; nothing happens if it is not there.

        Raises:
            UsageError: The key has no encoding, or the store has ended.
            ConflictError: Another run took the partition.
        """

    @abstractmethod
    def remove_many(self, keys: Iterable[Any]) -> None:
        """Take many keys out, as calls of `remove` do. If one is refused, all of them stay.

        Raises:
            UsageError: A key has no encoding, and the message names its place; or the store has
                ended.
            ConflictError: Another run took the partition.
        """

    @abstractmethod
    def commit(self) -> int:
        """Make the changes the next version, which is returned.

        Raises:
            UsageError: The store has ended.
            ConflictError: Another run took the partition, or another attempt went on.
            StateError: The version under the changes was lost.
            UnavailableError: The server does not answer; nothing was changed.
            CommitOutcomeUnknownError: The server's answer to the commit did not come.
        """

    @abstractmethod
    def abort(self) -> None:
        """Discard the changes. Never raises, may come twice; after a commit it does nothing."""

    @property
    @abstractmethod
    def has_committed(self) -> bool:
        """Whether `commit` succeeded."""


class ListStateStore(StateStore):
    """A store whose values are lists, to which elements are added without reading them.

    `put` takes the elements, `get` and the scans give lists; a list without elements is a value.
    """

    @abstractmethod
    def append(self, key: Any, value: Any) -> None:
        """Add an element to the list of a key, which begins with it if it has none.

        Only the element is sent with the commit, however long the list is.

        Raises:
            UsageError: Key or element has no encoding, or the store has ended.
            LimitError: The key or the whole list is too large.
            ConflictError: Another run took the partition.
        """
