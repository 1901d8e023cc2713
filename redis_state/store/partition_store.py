"""The state store over the versions of a partition: one object for each opened version."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Any, Final, NoReturn, cast

from redis_state.codec import RAW, Codec
from redis_state.errors import LimitError
from redis_state.format.ordered import PREFIX
from redis_state.format.rows import (
    FAMILY_BYTES,
    VALUE_BYTES_MAX,
    check_limits,
    join_elements,
)
from redis_state.ids import StateStoreId
from redis_state.process import elsewhere, tell_after_fork
from redis_state.store.api import (
    ListStateStore,
    Operation,
    ReadStateStore,
    Row,
    State,
    StateStore,
    StateStoreMetrics,
    following,
)
from redis_state.store.local_state import ROW_BYTES, LocalVersion
from redis_state.store.many import (
    STORED_KEY_BYTES_MAX,
    KeyEncoder,
    check_columns,
    encoded_values,
    stored_rows,
)
from redis_state.store.partition_state import PartitionState
from redis_state.store.write_set import WriteSet

_MISSING: Final = object()
_UPDATING: Final = State.UPDATING


class _Elsewhere:
    """In place of a version that was opened in another process: all that is asked of it refuses."""

    def __init__(self, id_: StateStoreId, version: int) -> None:
        self._id, self._version = id_, version

    def __getattr__(self, _name: str) -> NoReturn:
        raise elsewhere(where=str(self._id), version=self._version)


class PartitionReadStore(ReadStateStore):
    """One version, for reading; made by a provider."""

    def __init__(self, partition: PartitionState, codec: Codec, local: LocalVersion) -> None:
        self._partition = partition
        self._local = local
        self._version = local.pin.version
        self._codec = codec
        self._stored = KeyEncoder(codec)
        self._encode_key = codec.encode_key
        self._decode_value = codec.decode_value
        tell_after_fork(self)

    def after_fork(self) -> None:
        """This process has a copy of a store that its parent goes on with."""
        self._local = cast(LocalVersion, _Elsewhere(self.id, self._version))
        self._stored.forget()

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

    def get(self, key: Any) -> Any:
        """As `ReadStateStore.get`."""
        data = self._local.get(PREFIX + self._encode_key(key))
        return None if data is None else self._decode_value(data)

    def get_many(self, keys: Iterable[Any]) -> list[Any]:
        """As `ReadStateStore.get_many`."""
        return self._values(self._local.get_many(self._stored(keys)))

    def get_range(self, start: Any | None = None, end: Any | None = None) -> Iterator[Row]:
        """As `ReadStateStore.get_range`."""
        low = PREFIX if start is None else PREFIX + self._encode_key(start)
        return self._rows(low, None if end is None else PREFIX + self._encode_key(end))

    def prefix_scan(self, prefix: Any) -> Iterator[Row]:
        """As `ReadStateStore.prefix_scan`."""
        low, high = self._codec.prefix_range(prefix)
        return self._rows(PREFIX + low, None if high is None else PREFIX + high)

    @property
    def metrics(self) -> StateStoreMetrics:
        """Counts of this store and its provider."""
        return StateStoreMetrics(
            num_keys=self._local.live,
            memory_bytes=self._local.memory_bytes,
            custom=self._partition.values(),
        )

    def _values(self, found: list[bytes | None]) -> list[Any]:
        if self._codec is RAW:
            return found
        decode = self._decode_value
        return [None if data is None else decode(data) for data in found]

    def _rows(self, low: bytes, high: bytes | None) -> Iterator[Row]:
        return self._decoded(self._local.rows_between(low, high))

    def _decoded(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[Row]:
        if self._codec is RAW:
            return ((key[FAMILY_BYTES:], value) for key, value in rows)
        return self._objects(rows)

    def _objects(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[Row]:
        decode_key, decode_value = self._codec.decode_key, self._decode_value
        for key, value in rows:
            yield decode_key(key[FAMILY_BYTES:]), decode_value(value)


class PartitionStore(PartitionReadStore, StateStore):
    """One version and changes over it; made by a provider, used by one thread at a time."""

    def __init__(
        self, partition: PartitionState, codec: Codec, local: LocalVersion, *, held: bool
    ) -> None:
        super().__init__(partition, codec, local)
        self._encode_value = codec.encode_value
        # Bytes as they are need no call for each key and value.
        self._raw = codec is RAW
        self._held = held
        self._state = State.OPEN
        self._changes = WriteSet()
        self._changed = self._changes.rows
        self._uid = uuid.uuid4().hex

    def after_fork(self) -> None:
        """As of a version for reading; its changes are its parent's to commit."""
        super().after_fork()
        if self._state not in (State.COMMITTED, State.ABORTED):
            self._state = State.LEFT
        self._forget_changes()

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, state={self._state.value!r})"

    def get(self, key: Any) -> Any:
        """As `ReadStateStore.get`."""
        stored = PREFIX + self._encode_key(key)
        data = self._changed.get(stored, _MISSING)
        if data is _MISSING:
            data = self._local.get(stored)
        return None if data is None else self._decode_value(data)  # type: ignore[arg-type]  # the marker

    def get_many(self, keys: Iterable[Any]) -> list[Any]:
        """As `ReadStateStore.get_many`."""
        stored = self._stored(keys)
        return self._values(self._local.get_many(stored, self._changed))

    def put(self, key: Any, value: Any) -> None:
        """As `StateStore.put`."""
        if self._raw and type(key) is bytes and type(value) is bytes:
            stored, data = PREFIX + key, value
        else:
            stored, data = PREFIX + self._encode_key(key), self._encode_value(value)
        if len(stored) > STORED_KEY_BYTES_MAX or len(data) > VALUE_BYTES_MAX:
            check_limits(stored, data)
        if self._state is not _UPDATING:
            self._update()
        self._changed[stored] = data

    def put_many(self, keys: Any, values: Any = None, /) -> None:
        """As `StateStore.put_many`."""
        self._changed.update(self._rows_to_put(keys, values))

    def remove(self, key: Any) -> None:
        """As `StateStore.remove`."""
        stored = PREFIX + self._encode_key(key)
        if self._state is not _UPDATING:
            self._update()
        if self._changed.get(stored) is not None or self._local.get(stored) is not None:
            self._changed[stored] = None

    def remove_many(self, keys: Iterable[Any]) -> None:
        """As `StateStore.remove_many`."""
        stored = self._stored(keys)
        if stored and self._state is not _UPDATING:
            self._update()
        found = self._local.get_many(stored, self._changed)
        there = (key for key, value in zip(stored, found, strict=True) if value is not None)
        self._changed.update(dict.fromkeys(there))

    def commit(self) -> int:
        """As `StateStore.commit`."""
        self._move(Operation.COMMIT)
        try:
            if not self._held:
                self._partition.acquire(self._local.pin)
                self._held = True
            self._changes.settle()
            self._local = self._partition.commit(self._local, self._changes, self._uid)
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

    def _rows(self, low: bytes, high: bytes | None) -> Iterator[Row]:
        above = self._changes.between(low, high) if self._changed else {}
        return self._decoded(self._local.rows_between(low, high, above))

    def _rows_to_put(self, keys: Any, values: Any) -> Iterable[tuple[bytes, bytes]]:
        """Stored keys and encoded values, none of which is refused any more."""
        rows: Iterable[tuple[bytes, bytes]]
        if values is None:
            given = stored_rows(self._codec, keys)
            count, rows = len(given), given.items()
        else:
            stored, data = self._stored(keys), encoded_values(self._codec, values)
            check_columns(stored, data)
            count, rows = len(data), zip(stored, data, strict=True)
        if count and self._state is not _UPDATING:
            self._update()
        return rows

    def _update(self) -> None:
        self._move(Operation.UPDATE)
        if not self._held:
            try:
                self._partition.acquire(self._local.pin)
            except BaseException:
                self._state = State.OPEN
                raise
            self._held = True

    def _move(self, operation: Operation) -> None:
        self._state = following(self._state, operation, id_=self.id, version=self._version)

    def _forget_changes(self) -> None:
        self._changes = WriteSet()
        self._changed = self._changes.rows
        self._stored.forget()


class PartitionListStore(PartitionStore, ListStateStore):
    """The same for lists; made by a provider."""

    def __init__(
        self, partition: PartitionState, codec: Codec, local: LocalVersion, *, held: bool
    ) -> None:
        super().__init__(partition, codec.with_lists(), local, held=held)
        self._encode_element = codec.encode_value

    def get(self, key: Any) -> Any:
        """As `ReadStateStore.get`."""
        self._changes.settle()
        return super().get(key)

    def get_many(self, keys: Iterable[Any]) -> list[Any]:
        """As `ReadStateStore.get_many`."""
        self._changes.settle()
        return super().get_many(keys)

    def put(self, key: Any, value: Any) -> None:
        """As `StateStore.put`, with the elements of the list."""
        stored = PREFIX + self._encode_key(key)
        data = self._encode_value(value)
        check_limits(stored, data)
        if self._state is not _UPDATING:
            self._update()
        self._changes.replace(stored, data)

    def put_many(self, keys: Any, values: Any = None, /) -> None:
        """As `StateStore.put_many`, with the elements of the lists."""
        for stored, data in self._rows_to_put(keys, values):
            self._changes.replace(stored, data)

    def append(self, key: Any, value: Any) -> None:
        """As `ListStateStore.append`."""
        stored = PREFIX + self._encode_key(key)
        element = join_elements((self._encode_element(value),))
        check_limits(stored, element)
        if self._state is not _UPDATING:
            self._update()
        below = None if stored in self._changed else self._local.get(stored)
        size = len(element) + self._changes.size(stored, below)
        if size > VALUE_BYTES_MAX:
            raise LimitError("appending to a list", found=f"it would have {size} bytes")
        self._changes.append(stored, element, below)

    def remove(self, key: Any) -> None:
        """As `StateStore.remove`."""
        self._changes.settle()
        super().remove(key)
        self._changes.forget_end(PREFIX + self._encode_key(key))

    def remove_many(self, keys: Iterable[Any]) -> None:
        """As `StateStore.remove_many`."""
        given = list(keys)
        self._changes.settle()
        super().remove_many(given)
        for stored in self._stored(given):
            self._changes.forget_end(stored)

    def _rows(self, low: bytes, high: bytes | None) -> Iterator[Row]:
        self._changes.settle()
        return super()._rows(low, high)
