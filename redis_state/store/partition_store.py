"""Implementation of `StateStore`: one object for each opened version of a partition."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from redis_state.codec import RAW, Codec
from redis_state.errors import LimitError
from redis_state.format.ordered import PREFIX
from redis_state.format.rows import (
    FAMILY_BYTES,
    VALUE_BYTES_MAX,
    check_limits,
    join_elements,
)
from redis_state.store.api import KeyValue, ListStateStore, ReadStateStore, State, StateStore
from redis_state.store.bulk import (
    STORED_KEY_BYTES_MAX,
    KeyEncoder,
    check_columns,
    encoded_values,
    stored_rows,
)
from redis_state.store.local.prefetch import prefetch
from redis_state.store.local.version import LocalVersion
from redis_state.store.write_session import OpenedVersion, Partition, WriteSession

_MISSING: Final = object()
_UPDATING: Final = State.UPDATING


class PartitionReadStore(OpenedVersion, ReadStateStore):
    """One version, for reading; made by a provider."""

    def __init__(self, partition: Partition, codec: Codec, local: LocalVersion) -> None:
        OpenedVersion.__init__(self, partition, local)
        self._use(codec)

    def _use(self, codec: Codec) -> None:
        self._codec = codec
        self._stored = KeyEncoder(codec)
        self._encode_key = codec.encode_key
        self._decode_value = codec.decode_value

    def after_fork(self) -> None:
        """Makes the child's copy refuse; the parent process keeps its store."""
        super().after_fork()
        self._stored.forget()

    def get(self, key: Any) -> Any:
        """Implements `ReadStateStore.get`."""
        data = self._local.get(PREFIX + self._encode_key(key))
        return None if data is None else self._decode_value(data)

    def get_many(self, keys: Iterable[Any]) -> list[Any]:
        """Implements `ReadStateStore.get_many`."""
        return self._values(self._local.get_many(self._stored(keys)))

    def prefetch(self, keys: Iterable[Any]) -> int:
        """Implements `ReadStateStore.prefetch`."""
        return prefetch(self._local, self._stored(keys))

    def get_range(self, start: Any | None = None, end: Any | None = None) -> Iterator[KeyValue]:
        """Implements `ReadStateStore.get_range`."""
        low = PREFIX if start is None else PREFIX + self._encode_key(start)
        return self._rows(low, None if end is None else PREFIX + self._encode_key(end))

    def prefix_scan(self, prefix: Any) -> Iterator[KeyValue]:
        """Implements `ReadStateStore.prefix_scan`."""
        low, high = self._codec.prefix_range(prefix)
        return self._rows(PREFIX + low, None if high is None else PREFIX + high)

    def _values(self, found: list[bytes | None]) -> list[Any]:
        if self._codec is RAW:
            return found
        decode = self._decode_value
        return [None if data is None else decode(data) for data in found]

    def _rows(self, low: bytes, high: bytes | None) -> Iterator[KeyValue]:
        return self._decoded(self._local.rows_between(low, high))

    def _decoded(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[KeyValue]:
        if self._codec is RAW:
            return ((key[FAMILY_BYTES:], value) for key, value in rows)
        return self._objects(rows)

    def _objects(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[KeyValue]:
        decode_key, decode_value = self._codec.decode_key, self._decode_value
        for key, value in rows:
            yield decode_key(key[FAMILY_BYTES:]), decode_value(value)


class PartitionStore(WriteSession, PartitionReadStore, StateStore):
    """One version and changes over it; made by a provider, used by one thread at a time."""

    def __init__(
        self, partition: Partition, codec: Codec, local: LocalVersion, *, held: bool
    ) -> None:
        self._use(codec)
        WriteSession.__init__(self, partition, local, held=held)

    def _use(self, codec: Codec) -> None:
        super()._use(codec)
        self._encode_value = codec.encode_value
        # Raw bytes need no call for each key and value.
        self._raw = codec is RAW

    def get(self, key: Any) -> Any:
        """Implements `ReadStateStore.get`."""
        stored = PREFIX + self._encode_key(key)
        data = self._changed.get(stored, _MISSING)
        if data is _MISSING:
            data = self._local.get(stored)
        return None if data is None else self._decode_value(data)  # type: ignore[arg-type]  # the marker

    def get_many(self, keys: Iterable[Any]) -> list[Any]:
        """Implements `ReadStateStore.get_many`."""
        stored = self._stored(keys)
        return self._values(self._local.get_many(stored, self._changed))

    def put(self, key: Any, value: Any) -> None:
        """Implements `StateStore.put`."""
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
        """Implements `StateStore.put_many`."""
        self._changed.update(self._rows_to_put(keys, values))

    def remove(self, key: Any) -> None:
        """Implements `StateStore.remove`."""
        stored = PREFIX + self._encode_key(key)
        if self._state is not _UPDATING:
            self._update()
        if self._changed.get(stored) is not None or self._local.get(stored) is not None:
            self._changed[stored] = None

    def remove_many(self, keys: Iterable[Any]) -> None:
        """Implements `StateStore.remove_many`."""
        stored = self._stored(keys)
        if stored and self._state is not _UPDATING:
            self._update()
        found = self._local.get_many(stored, self._changed)
        there = (key for key, value in zip(stored, found, strict=True) if value is not None)
        self._changed.update(dict.fromkeys(there))

    def _rows(self, low: bytes, high: bytes | None) -> Iterator[KeyValue]:
        above = self._changes.between(low, high) if self._changed else {}
        return self._decoded(self._local.rows_between(low, high, above))

    def _rows_to_put(self, keys: Any, values: Any) -> Iterable[tuple[bytes, bytes]]:
        """Returns stored keys and encoded values, checked, so that none is refused later."""
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

    def _forget_changes(self) -> None:
        super()._forget_changes()
        self._stored.forget()


class PartitionListStore(PartitionStore, ListStateStore):
    """One version of lists and changes over it; made by a provider."""

    def __init__(
        self, partition: Partition, codec: Codec, local: LocalVersion, *, held: bool
    ) -> None:
        super().__init__(partition, codec.with_lists(), local, held=held)
        self._encode_element = codec.encode_value

    def get(self, key: Any) -> Any:
        """Implements `ReadStateStore.get`."""
        self._changes.settle()
        return super().get(key)

    def get_many(self, keys: Iterable[Any]) -> list[Any]:
        """Implements `ReadStateStore.get_many`."""
        self._changes.settle()
        return super().get_many(keys)

    def put(self, key: Any, value: Any) -> None:
        """Implements `StateStore.put`; the value is the elements of the list."""
        stored = PREFIX + self._encode_key(key)
        data = self._encode_value(value)
        check_limits(stored, data)
        if self._state is not _UPDATING:
            self._update()
        self._changes.replace(stored, data)

    def put_many(self, keys: Any, values: Any = None, /) -> None:
        """Implements `StateStore.put_many`; each value is the elements of a list."""
        for stored, data in self._rows_to_put(keys, values):
            self._changes.replace(stored, data)

    def append(self, key: Any, value: Any) -> None:
        """Implements `ListStateStore.append`."""
        stored = PREFIX + self._encode_key(key)
        element = join_elements((self._encode_element(value),))
        check_limits(stored, element)
        if self._state is not _UPDATING:
            self._update()
        below = None if stored in self._changed else self._local.get(stored)
        size = len(element) + self._changes.size(stored, below)
        if size > VALUE_BYTES_MAX:
            raise LimitError("appending to a list", found=f"the list would have {size} bytes")
        self._changes.append(stored, element, below)

    def remove(self, key: Any) -> None:
        """Implements `StateStore.remove`."""
        self._changes.settle()
        super().remove(key)
        self._changes.forget_end(PREFIX + self._encode_key(key))

    def remove_many(self, keys: Iterable[Any]) -> None:
        """Implements `StateStore.remove_many`."""
        given = list(keys)
        self._changes.settle()
        super().remove_many(given)
        for stored in self._stored(given):
            self._changes.forget_end(stored)

    def _rows(self, low: bytes, high: bytes | None) -> Iterator[KeyValue]:
        self._changes.settle()
        return super()._rows(low, high)
