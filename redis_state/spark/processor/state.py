"""State variables of a processor, with the members of PySpark's, on the rows of a `FamilyStore`.

Rows of a variable are found by the key of the current group, which all variables of a task share.
For their layout see docs/format.md, section 10.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming import stateful_processor as pyspark_state

from redis_state.codec.ordered_key import decode_first, encode_key
from redis_state.codec.typed_row import TypedKey, TypedRow
from redis_state.errors import UsageError
from redis_state.format.ordered import family_range
from redis_state.format.rows import family_of, join_elements, split_elements

if TYPE_CHECKING:
    from redis_state.store.family_store import FamilyStore

_ABOVE = b"\xff"
_NO_LISTS = (str, bytes, bytearray, Mapping, Set)  # their items are not rows, or are unordered


class CurrentGroup:
    """The group that the processor is called for.

    Attributes:
        key: Its encoded key.
        now_ms: Processing time of the batch.
    """

    __slots__ = ("key", "now_ms")

    def __init__(self, now_ms: int) -> None:
        self.key = b""
        self.now_ms = now_ms


class TimeToLive:
    """Index of a variable's rows by their expiry.

    Its rows are ``expiry ‖ key of the row``. An outdated entry is removed when its time has come.

    Attributes:
        duration_ms: ``None`` for a variable that had a time to live: only rows written then expire.
    """

    __slots__ = ("_group", "_prefix", "_store", "duration_ms")

    def __init__(
        self, store: FamilyStore, prefix: bytes, group: CurrentGroup, duration_ms: int | None
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._group = group
        self.duration_ms = duration_ms

    def begins(self) -> int | None:
        """Returns the expiry of a row that is written now."""
        return None if self.duration_ms is None else self._group.now_ms + self.duration_ms

    def begin(self, row: bytes, before: int | None) -> int | None:
        """Indexes a row that is written now, returns its expiry; `before` is its former expiry."""
        expiry = self.begins()
        if expiry is None:
            self.end(row, before)
        elif before != expiry:
            if before is not None:
                self._store.remove(self._prefix + encode_key(before) + row)
            self._store.put(self._prefix + encode_key(expiry) + row, b"")
        return expiry

    def end(self, row: bytes, before: int | None) -> None:
        """Removes a deleted row from the index."""
        if before is not None:
            self._store.remove(self._prefix + encode_key(before) + row)

    def due(self) -> Iterator[bytes]:
        """Removes the due entries from the index, and yields the keys of their rows."""
        prefix, store = self._prefix, self._store
        for stored, _ in store.rows(prefix, prefix + encode_key(self._group.now_ms + 1)):
            store.remove(stored)
            yield stored[decode_first(stored, len(prefix))[1] :]

    def is_over(self) -> bool:
        """Returns whether no entry is left and none will be added."""
        if self.duration_ms is not None:
            return False
        return next(self._store.rows(self._prefix, self._prefix + _ABOVE), None) is None


class _Variable:
    """Common fields of state variables."""

    def __init__(
        self,
        store: FamilyStore,
        prefix: bytes,
        group: CurrentGroup,
        row: TypedRow,
        ttl: TimeToLive | None,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._group = group
        self._row = row
        self._ttl = ttl
        # Bound once: they are called for every row of a query.
        self._load, self._put = store.get, store.put
        self._encode, self._decode = row.encode, row.decode_with_expiry

    @property
    def prefix(self) -> bytes:
        """Returns the prefix of its stored keys, which the key of a group follows."""
        return self._prefix

    def _stored(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields places and values of all groups, as of the call."""
        for stored, data in self._store.rows(*family_range(family_of(self._prefix))):
            yield stored[len(self._prefix) :], data


class SingleRows(_Variable):
    """Single rows by their places, the part of a stored key after the variable's prefix."""

    def begin_expiries(self) -> None:
        """Adds an expiry to each row without one, counted from this batch."""
        ttl = self._ttl
        expiry = None if ttl is None else ttl.begins()
        if ttl is None or expiry is None:
            return
        for place, data in self._stored():
            if self._row.expiry(data) is None:
                ttl.begin(place, None)
                self._put(self._prefix + place, self._row.with_expiry(data, expiry))

    def expire(self) -> None:
        """Removes the expired values."""
        if self._ttl is not None:
            for place in self._ttl.due():
                expiry = self._expiry(place)
                if expiry is not None and expiry <= self._group.now_ms:
                    self._store.remove(self._prefix + place)

    def _at(self, place: bytes) -> tuple[Any, ...] | None:
        data = self._load(self._prefix + place)
        if data is None:
            return None
        expiry, row = self._decode(data)
        return None if expiry is not None and expiry <= self._group.now_ms else row

    def _set(self, place: bytes, value: Any) -> None:
        if self._ttl is None:
            self._put(self._prefix + place, self._encode(value))
            return
        # Encoded before the index is changed: a value that has no encoding must not reach the
        # index.
        self._encode(value)
        expiry = self._ttl.begin(place, self._expiry(place))
        self._put(self._prefix + place, self._encode(value, expiry))

    def _drop(self, place: bytes) -> None:
        if self._ttl is not None:
            self._ttl.end(place, self._expiry(place))
        self._store.remove(self._prefix + place)

    def _expiry(self, place: bytes) -> int | None:
        data = self._load(self._prefix + place)
        return None if data is None else self._row.expiry(data)


class ValueState(SingleRows, pyspark_state.ValueState):
    """One row for each group; implements PySpark's `ValueState`."""

    def exists(self) -> bool:
        """Returns whether the group has a value."""
        return self.get() is not None

    def get(self) -> tuple[Any, ...] | None:
        """Returns the value; ``None`` if it is absent or has expired."""
        return self._at(self._group.key)

    def update(self, newValue: Any) -> None:  # noqa: N803  # PySpark's name
        """Sets the value: a tuple with a value for each column.

        Raises:
            UsageError: A value does not fit its column; nothing was changed.
        """
        self._set(self._group.key, newValue)

    def clear(self) -> None:
        """Removes the value."""
        self._drop(self._group.key)


class ListState(_Variable, pyspark_state.ListState):
    """A list of rows for each group; implements PySpark's `ListState`."""

    def exists(self) -> bool:
        """Returns whether the list has an element that has not expired."""
        if self._ttl is None:
            return self._load(self._prefix + self._group.key) is not None
        return next(self.get(), None) is not None

    def get(self) -> Iterator[tuple[Any, ...]]:
        """Yields the elements, oldest first."""
        data = self._load(self._prefix + self._group.key)
        now = self._group.now_ms
        for element in split_elements(data) if data is not None else ():
            expiry, row = self._decode(element)
            if expiry is None or expiry > now:
                yield row

    def put(self, newState: list[Any]) -> None:  # noqa: N803  # PySpark's name
        """Sets the list.

        Raises:
            UsageError: An element does not fit the columns; nothing was changed.
        """
        elements = self._encoded(newState)
        if not elements:
            self.clear()
            return
        self._put(self._prefix + self._group.key, join_elements(elements))
        self._note()

    def appendValue(self, newState: Any) -> None:  # noqa: N802, N803  # PySpark's names
        """Appends an element, without reading the list.

        Raises:
            UsageError: The element does not fit the columns; nothing was changed.
        """
        self._store.append(self._prefix + self._group.key, self._encoded((newState,))[0])
        self._note()

    def appendList(self, newState: list[Any]) -> None:  # noqa: N802, N803  # PySpark's names
        """Appends elements, without reading the list.

        Raises:
            UsageError: An element does not fit the columns; nothing was changed.
        """
        stored = self._prefix + self._group.key
        elements = self._encoded(newState)
        for element in elements:
            self._store.append(stored, element)
        if elements:
            self._note()

    def begin_expiries(self) -> None:
        """Adds an expiry to each element without one, counted from this batch."""
        ttl, row = self._ttl, self._row
        expiry = None if ttl is None else ttl.begins()
        if ttl is None or expiry is None:
            return
        for place, data in self._stored():
            elements = split_elements(data)
            timed = [one if row.expiry(one) else row.with_expiry(one, expiry) for one in elements]
            if timed != elements:
                ttl.begin(place, None)
                self._put(self._prefix + place, join_elements(timed))

    def clear(self) -> None:
        """Removes the list."""
        self._store.remove(self._prefix + self._group.key)

    def expire(self) -> None:
        """Removes the expired elements."""
        now = self._group.now_ms
        for key in self._ttl.due() if self._ttl is not None else ():
            data = self._load(self._prefix + key)
            elements = split_elements(data) if data is not None else []
            left = [one for one in elements if (self._row.expiry(one) or now + 1) > now]
            if not left:
                self._store.remove(self._prefix + key)
            elif len(left) < len(elements):
                self._put(self._prefix + key, join_elements(left))

    def _encoded(self, rows: Iterable[Any]) -> list[bytes]:
        if isinstance(rows, _NO_LISTS) or not isinstance(rows, Iterable):
            raise UsageError(
                f"writing {self._row.what}",
                found=f"the elements are a {type(rows).__name__}, not a list",
                advice="Give a list of tuples. Nothing was changed.",
            )
        expiry = None if self._ttl is None else self._ttl.begins()
        return [self._encode(row, expiry) for row in rows]

    def _note(self) -> None:
        if self._ttl is not None:
            # Elements expire one by one, so the index keeps the entries of older elements.
            self._ttl.begin(self._group.key, None)


class MapState(SingleRows, pyspark_state.MapState):
    """Rows by a user's key for each group; implements PySpark's `MapState`."""

    def __init__(
        self,
        store: FamilyStore,
        prefix: bytes,
        group: CurrentGroup,
        keys: TypedKey,
        row: TypedRow,
        ttl: TimeToLive | None,
    ) -> None:
        _Variable.__init__(self, store, prefix, group, row, ttl)
        self._keys = keys

    def exists(self) -> bool:
        """Returns whether the map has a row that has not expired."""
        return next(self.iterator(), None) is not None

    def getValue(self, key: Any) -> tuple[Any, ...] | None:  # noqa: N802  # PySpark's name
        """Returns the value of a key; ``None`` if it is absent or has expired."""
        return self._at(self._group.key + self._keys.encode(key))

    def containsKey(self, key: Any) -> bool:  # noqa: N802  # PySpark's name
        """Returns whether a key has a value."""
        return self.getValue(key) is not None

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802  # PySpark's name
        """Sets the value of a key.

        Raises:
            UsageError: Key or value does not fit its columns; nothing was changed.
        """
        self._set(self._group.key + self._keys.encode(key), value)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Yields keys and values in the order of the keys, as of the call."""
        return self._items(self._store.rows(*self._range()))

    def _items(
        self, found: Iterator[tuple[bytes, bytes]]
    ) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        at, now = len(self._prefix) + len(self._group.key), self._group.now_ms
        for stored, data in found:
            expiry, row = self._decode(data)
            if expiry is None or expiry > now:
                yield self._keys.decode_first(stored, at)[0], row

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """Yields the keys in order."""
        return (key for key, _ in self.iterator())

    def values(self) -> Iterator[tuple[Any, ...]]:
        """Yields the values in the order of their keys."""
        return (value for _, value in self.iterator())

    def removeKey(self, key: Any) -> None:  # noqa: N802  # PySpark's name
        """Removes a key and its value."""
        self._drop(self._group.key + self._keys.encode(key))

    def clear(self) -> None:
        """Removes the map."""
        for stored, _ in self._store.rows(*self._range()):
            self._drop(stored[len(self._prefix) :])

    def _range(self) -> tuple[bytes, bytes]:
        low = self._prefix + self._group.key
        return low, low + _ABOVE


class Timers:
    """Timers of all groups, indexed by time and by group."""

    def __init__(
        self, store: FamilyStore, by_time: bytes, by_group: bytes, group: CurrentGroup
    ) -> None:
        self._store = store
        self._by_time = by_time
        self._by_group = by_group
        self._group = group

    def register(self, at_ms: int) -> None:
        """Registers a timer of the group; an existing timer is ignored."""
        time, key = encode_key(at_ms), self._group.key
        self._store.put(self._by_time + time + key, b"")
        self._store.put(self._by_group + key + time, b"")

    def delete(self, at_ms: int) -> None:
        """Deletes a timer of the group; an absent timer is ignored."""
        time, key = encode_key(at_ms), self._group.key
        self._store.remove(self._by_time + time + key)
        self._store.remove(self._by_group + key + time)

    def of_group(self) -> Iterator[int]:
        """Yields the times of the group's timers in ascending order."""
        low = self._by_group + self._group.key
        for stored, _ in self._store.rows(low, low + _ABOVE):
            yield decode_first(stored, len(low))[0]

    def expired(self, until_ms: int) -> Iterator[tuple[int, bytes]]:
        """Yields time and encoded key of the timers up to a time, in the order of time."""
        low = self._by_time
        for stored, _ in self._store.rows(low, low + encode_key(until_ms + 1)):
            at_ms, end = decode_first(stored, len(low))
            yield at_ms, stored[end:]
