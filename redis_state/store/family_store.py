"""Store of a partition with many families: one object for each opened version."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from redis_state.errors import LimitError, UsageError
from redis_state.format.header import FAMILY_ID_MAX, Family
from redis_state.format.ordered import OrderedRows, family_range
from redis_state.format.rows import (
    FAMILY_BYTES,
    VALUE_BYTES_MAX,
    check_limits,
    family_of,
    join_elements,
    stored_key,
)
from redis_state.store.api import Operation, State, following
from redis_state.store.bulk import STORED_KEY_BYTES_MAX, check_all_limits
from redis_state.store.local.families import Families
from redis_state.store.local.prefetch import is_here, prefetch
from redis_state.store.local.version import LocalVersion
from redis_state.store.write_session import Partition, WriteSession

_MISSING: Final = object()
_UPDATING: Final = State.UPDATING
_KIND = "range"
_PARAMS = (0,)
_ONLY_NAME = "default"


class FamilyStore(WriteSession):
    """One version of a partition with many families, for changing into the next version.

    Rows are bytes. A stored key begins with the prefix of its family, which `declare` returns. Made
    by a provider, used by one thread at a time. Life cycle and errors are those of `StateStore`,
    except where a method documents otherwise.
    """

    def __init__(self, partition: Partition, local: LocalVersion, *, held: bool) -> None:
        super().__init__(partition, local, held=held)
        self._by_name = {family.name: family for family in self._families.table}
        self._lists = self._prefixes_of_lists()

    @property
    def families(self) -> Mapping[str, Family]:
        """Returns the current family table, by name."""
        return MappingProxyType(self._by_name)

    def declare(
        self,
        name: str,
        *,
        key_schema: str,
        value_schema: str,
        multi_value: bool = False,
        internal: bool = False,
    ) -> bytes:
        """Declares a family; a family of a new name begins without rows.

        Args:
            key_schema: JSON text that describes the encoding of keys. This schema and the values'
                schema may change.
            multi_value: True if values are lists, to which `append` adds.
            internal: True if its keys do not count as keys of the store.

        Returns:
            Prefix of the family's stored keys.

        Raises:
            UsageError: The name is empty or used by a family of another kind; a schema is not valid
                JSON; the store has ended.
            LimitError: The partition had too many families.
        """
        known = self._by_name.get(name)
        if known is None:
            known = self._new(name, multi_value=multi_value, internal=internal)
        elif (known.multi_value, known.internal) != (multi_value, internal):
            raise UsageError(
                f"declaring family '{name}'",
                found=f"it has {_sort(known)} in version {self._version}",
                advice="Declare it as before, choose another name, or drop the family first.",
                where=str(self.id),
                version=self._version,
            )
        family = replace(known, key_schema=key_schema, value_schema=value_schema)
        if self._by_name.get(name) != family:
            for schema in (key_schema, value_schema):
                _check_json(name, schema)
            self._check_open()
            self._change({**self._by_name, name: family})
        return stored_key(family.id, b"")

    def drop(self, name: str) -> bool:
        """Removes a family and all of its rows; returns false if the name is unknown.

        The id is never reused: a family declared later under this name is a different family.

        Raises:
            UsageError: The store has ended.
            ConflictError: Another run took the partition.
        """
        family = self._by_name.get(name)
        if family is None:
            return False
        if self._state is not _UPDATING:
            self._update()
        for stored in [key for key, _ in self.rows(*family_range(family.id))]:
            self._changes.replace(stored, None)
        self._change({key: one for key, one in self._by_name.items() if key != name})
        return True

    def get(self, stored: bytes) -> bytes | None:
        """Returns the value of a stored key; ``None`` if the key is absent."""
        data = self._changed.get(stored, _MISSING)
        if data is _MISSING:
            # Rows of the previous version are often read next: checking its layer saves a call.
            data = self._top.get(stored, _MISSING)
            return self._below(stored) if data is _MISSING else data  # type: ignore[return-value]
        if self._growing and stored in self._growing:
            return bytes(self._growing[stored])
        return data  # type: ignore[return-value]  # the marker is never stored

    def put(self, stored: bytes, data: bytes) -> None:
        """Sets the value of a stored key.

        Raises:
            LimitError: Key or value is too large.
            ConflictError: Another run took the partition.
        """
        if len(stored) > STORED_KEY_BYTES_MAX or len(data) > VALUE_BYTES_MAX:
            check_limits(stored, data)
        if self._state is not _UPDATING:
            self._update()
        if self._appended_to:
            self._changes.replace(stored, data)
        else:
            self._changed[stored] = data

    def remove(self, stored: bytes) -> None:
        """Removes a stored key; an absent key is ignored."""
        if self._state is not _UPDATING:
            self._update()
        data = self._changed.get(stored, _MISSING)
        if (self._below(stored) if data is _MISSING else data) is not None:
            self._changes.replace(stored, None)

    def append(self, stored: bytes, element: bytes) -> None:
        """Appends an element to a list, which is created if absent; only the element is sent.

        Args:
            stored: A key of a family of lists.

        Raises:
            UsageError: The family's values are not lists.
            LimitError: The key or the whole list is too large.
        """
        if stored[:FAMILY_BYTES] not in self._lists:
            raise UsageError(
                "appending to a list",
                found=f"family {family_of(stored)} has no lists",
                advice="Declare it with multi_value=True.",
                where=str(self.id),
            )
        data = join_elements((element,))
        check_limits(stored, data)
        if self._state is not _UPDATING:
            self._update()
        below = None if stored in self._changed else self._below(stored)
        size = len(data) + self._changes.size(stored, below)
        if size > VALUE_BYTES_MAX:
            raise LimitError("appending to a list", found=f"the list would have {size} bytes")
        self._appended_to = True
        self._changes.append(stored, data, below)

    def get_many(self, stored: Sequence[bytes]) -> list[bytes | None]:
        """Returns the values of stored keys in their order, read in few round trips."""
        self._changes.settle()
        return self._local.get_many(stored, self._changed)

    def prefetch(self, stored: Sequence[bytes]) -> int:
        """Reads rows together; see `ReadStateStore.prefetch`."""
        return prefetch(self._local, stored)

    @property
    def is_here(self) -> bool:
        """Returns whether all rows of the opened version are in memory."""
        return is_here(self._local)

    def put_many(self, rows: Mapping[bytes, bytes]) -> None:
        """Sets the values of many stored keys; no value is set if a row is too large."""
        check_all_limits(rows, rows.values())
        if rows and self._state is not _UPDATING:
            self._update()
        if self._appended_to:
            for stored, data in rows.items():
                self._changes.replace(stored, data)
        else:
            self._changed.update(rows)

    def remove_many(self, stored: Sequence[bytes]) -> None:
        """Removes many stored keys, like calls of `remove`."""
        if stored and self._state is not _UPDATING:
            self._update()
        for key, value in zip(stored, self.get_many(stored), strict=True):
            if value is not None:
                self._changes.replace(key, None)

    def rows(self, low: bytes, high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Iterates over rows from `low` up to, not including, `high`, in key order, as of the call.

        Args:
            high: ``None`` is open, so the rows of all later families follow.
        """
        above = self._changes.between(low, high) if self._changed else {}
        return self._local.rows_between(low, high, above)

    def _new(self, name: str, *, multi_value: bool, internal: bool) -> Family:
        what = f"declaring family '{name}'"
        if not name or name == _ONLY_NAME:
            raise UsageError(
                what,
                found="the name is empty, or reserved for stores with a single family",
                advice="Choose another name.",
            )
        id_ = self._families.highest_id + 1
        if id_ > FAMILY_ID_MAX:
            raise LimitError(
                what,
                found=f"the partition has already had {FAMILY_ID_MAX} families",
                advice="Begin a new store: ids of dropped families are not used again.",
            )
        return Family(id_, name, _KIND, _PARAMS, "", "", multi_value, internal)

    def _check_open(self) -> None:
        """Checks that the store is open; the first row or the commit acquires the partition."""
        following(self._state, Operation.UPDATE, id_=self.id, version=self._version)

    def _change(self, families: dict[str, Family]) -> None:
        self._by_name = families
        table = tuple(families.values())
        highest_id = max([self._families.highest_id, *(family.id for family in table)])
        self._families = Families(table, highest_id)
        self._lists = self._prefixes_of_lists()

    def _prefixes_of_lists(self) -> frozenset[bytes]:
        return frozenset(stored_key(id_, b"") for id_ in self._families.lists)

    def _forget_changes(self) -> None:
        super()._forget_changes()
        # Bound once: `get` is called for every row of a query.
        self._growing = self._changes.growing
        self._below = self._local.get
        layers = self._local.parts[0]
        self._top: OrderedRows = layers[0].rows if layers else {}
        self._appended_to = False


def _sort(family: Family) -> str:
    values = "lists" if family.multi_value else "single values"
    return f"{values} and internal keys" if family.internal else values


def _check_json(name: str, schema: str) -> None:
    try:
        json.loads(schema)
    except ValueError as error:
        raise UsageError(
            f"declaring family '{name}'",
            found="a schema is not valid JSON",
            advice="Describe in JSON how keys and values are written.",
        ) from error
