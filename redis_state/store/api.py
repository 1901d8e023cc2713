"""Public interface of the state store: stores, metrics and the life cycle of a store."""

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
"""A key and its value, as the store's codec decodes them."""

RowPairs = Iterable[KeyValue] | Mapping[Any, Any]
"""Keys and their values, as pairs or a mapping."""


@dataclass(frozen=True, slots=True)
class StateStoreMetrics:
    """Metrics of a store.

    Attributes:
        num_keys: Live keys without those of internal families. Exact after commit; before commit,
            the number of the opened version. With a time to live an upper bound: an expired row
            counts until a snapshot leaves it out.
        memory_bytes: Approximate size of the version and its changes in this process.
        custom: Figures by the names of `StateStoreProvider.supported_custom_metrics`.
    """

    num_keys: int
    memory_bytes: int
    custom: Mapping[str, int] = field(default_factory=dict)


class State(Enum):
    """States in the life cycle of a store."""

    OPEN = "open"
    UPDATING = "updating"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTED = "aborted"
    FAILED = "failed to commit"
    LEFT = "of another process"


class Operation(Enum):
    """Operations that change a store's state."""

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
    # Clean-up code calls abort without knowing how far the store came; an ended state stays.
    (State.ABORTED, Operation.ABORT): State.ABORTED,
    (State.COMMITTED, Operation.ABORT): State.COMMITTED,
    (State.LEFT, Operation.ABORT): State.LEFT,
}


def following(state: State, operation: Operation, *, id_: StateStoreId, version: int) -> State:
    """Returns the state after an operation.

    Raises:
        UsageError: The operation is not allowed in this state.
    """
    found = _TRANSITIONS.get((state, operation))
    if found is None and state is State.LEFT:
        raise elsewhere(where=str(id_), version=version)
    if found is None:
        raise UsageError(
            f"cannot {operation.value} the store opened at version {version}",
            found=f"it is already {state.value}"
            if state.value[-2:] == "ed"
            else "its commit is in progress",
            advice="Open the store again for further updates. Nothing was changed by this call.",
            where=str(id_),
            version=version,
            operation=operation.name.lower(),
        )
    return found


class ReadStateStore(ABC):
    """One version of one partition, for reading. Key order is the order of the codec's encoding.

    Changing a key or value that the store returned changes nothing in the store.
    """

    @property
    @abstractmethod
    def id(self) -> StateStoreId:
        """Returns the id of the partition."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Returns the opened version; a commit creates the next version."""

    @abstractmethod
    def get(self, key: Any) -> Any:
        """Returns the value of a key; ``None`` if the key is absent.

        Raises:
            UsageError: The key has no encoding.
        """

    @abstractmethod
    def get_many(self, keys: Iterable[Any]) -> list[Any]:
        """Returns the values of keys, in their order; ``None`` for each absent key.

        Equals one `get` for each key, but is much faster and reads missing blocks in few round
        trips. All keys are held in memory.

        Raises:
            UsageError: A key has no encoding; the message names its position.
        """

    @abstractmethod
    def prefetch(self, keys: Iterable[Any]) -> int:
        """Reads the rows of keys into memory together, as far as `localMemory` has room.

        For rows that are asked for one by one soon; `get_many` reads its rows together anyway. Rows
        in memory cost nothing. An error of Redis or of a folder is not raised here, but by the
        `get` that follows.

        Returns:
            Number of keys, from the first one on, whose rows are in memory. Give the others again
            once these were used.

        Raises:
            UsageError: A key has no encoding; the message names its position.
        """

    @abstractmethod
    def get_range(self, start: Any | None = None, end: Any | None = None) -> Iterator[KeyValue]:
        """Iterates over the rows from `start` up to, not including, `end`, in key order.

        ``None`` is open. Changes made after the call are not visible to the iterator.
        """

    @abstractmethod
    def prefix_scan(self, prefix: Any) -> Iterator[KeyValue]:
        """Iterates over the rows whose keys begin with `prefix`, in key order, as of the call."""

    def iterator(self) -> Iterator[KeyValue]:
        """Iterates over all rows in key order, as of the call."""
        return self.get_range(None, None)

    @property
    @abstractmethod
    def metrics(self) -> StateStoreMetrics:
        """Returns the metrics of this store."""


class StateStore(ReadStateStore):
    """One version of one partition, for changing into the next version."""

    @abstractmethod
    def put(self, key: Any, value: Any) -> None:
        """Sets the value of a key.

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
        """Sets the values of many keys: `put_many(keys, values)`, or one argument with both.

        Equals calls of `put` in the same order, but is much faster. All rows are held in memory. If
        a row is refused, or the given iterable raises, no row is put.

        Args:
            keys: The keys; without `values`, pairs of key and value, or a mapping.
            values: One value for each key, in their order; faster than pairs.

        Raises:
            UsageError: A key or value has no encoding; the message names its position. Also raised
                if there are more keys than values or fewer, or the store has ended.
            LimitError: A key or value is too large.
            ConflictError: Another run took the partition.
        """

    @abstractmethod
    def remove(self, key: Any) -> None:
        """Removes a key; an absent key is ignored.

        Raises:
            UsageError: The key has no encoding, or the store has ended.
            ConflictError: Another run took the partition.
        """

    @abstractmethod
    def remove_many(self, keys: Iterable[Any]) -> None:
        """Removes many keys, like calls of `remove`. If a key is refused, no key is removed.

        Raises:
            UsageError: A key has no encoding, and the message names its position; or the store has
                ended.
            ConflictError: Another run took the partition.
        """

    @abstractmethod
    def commit(self) -> int:
        """Publishes the changes as the next version and returns its number.

        Raises:
            UsageError: The store has ended.
            ConflictError: Another run took the partition, or another attempt continued.
            StateError: The version under the changes was lost.
            UnavailableError: The server does not answer; nothing was changed.
            CommitOutcomeUnknownError: The server's answer to the commit did not arrive.
        """

    @abstractmethod
    def abort(self) -> None:
        """Discards the changes. Never raises, may be repeated; after a commit it does nothing."""

    @property
    @abstractmethod
    def has_committed(self) -> bool:
        """Returns whether `commit` succeeded."""


class ListStateStore(StateStore):
    """A store of lists whose elements are appended without reading the list.

    `put` takes the elements, `get` and the scans return lists. An empty list is a value.
    """

    @abstractmethod
    def append(self, key: Any, value: Any) -> None:
        """Appends an element to the list of a key; an absent key gets a list of this element.

        Only the element is sent with the commit, however long the list is.

        Raises:
            UsageError: Key or element has no encoding, or the store has ended.
            LimitError: The key or the whole list is too large.
            ConflictError: Another run took the partition.
        """
