"""Partition of a row of a Python store by Spark's hash of its key columns; no pyspark.

Spark distributes the rows of a batch by `pmod(hash(key columns), partitions)`. So the hash of a
stored row gives its partition before and after a rescale.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import timezone
from typing import Any

from redis_state.codec import MSGPACK, RAW, Codec
from redis_state.codec.ordered_key import decode_first
from redis_state.codec.processor_families import EXPIRY_OF, NOTES, TIMERS
from redis_state.codec.typed_row import ROW_CODEC, TypedKey
from redis_state.errors import ConfigError, UsageError
from redis_state.format.header import Family
from redis_state.format.rows import FAMILY_BYTES
from redis_state.rows.murmur3 import hash_key
from redis_state.rows.python_codec import codec_name_of
from redis_state.rows.typed_rows import typed_row_codec
from redis_state.types.ddl import struct_of
from redis_state.types.schema import Struct, parse_schema

Hash = Callable[[bytes], int]
"""Spark's hash of the key columns of a stored key."""

GroupOf = Callable[[Any], Any]
"""Maps a key of the state to the values of its key columns: one value, or a tuple."""

_LAYOUT = re.compile(r"key (?P<columns>.*); (?:a processor.*|codec (?P<codec>.*))", re.DOTALL)
_OWN = {codec.name: codec for codec in (MSGPACK, RAW)}


class Placing:
    """Hashes of the rows of a store.

    Args:
        layout: Key columns with types, and the codec, as the registry has them.
        families: All families of a partition.
        group_of: For stores written by a user's function. ``None`` takes keys of the state that are
            the key columns, or tuples that begin with them.
        codec: Codec of such a store; ``None`` for a built-in codec.

    Raises:
        UsageError: The partition of a row cannot be determined.
    """

    def __init__(
        self,
        layout: str,
        families: Sequence[Family],
        *,
        group_of: GroupOf | None = None,
        codec: Codec | None = None,
    ) -> None:
        found = _LAYOUT.fullmatch(json.loads(layout))
        if found is None:
            raise cannot(f"its key columns are not known: {layout}")
        self.of_groups = found["codec"] is None
        self._group_of = group_of
        self._codec = codec or _OWN.get(found["codec"])
        variables = [one for one in families if codec_name_of(one) == ROW_CODEC]
        if variables:
            self._columns, self._group = _group(variables[0])
            if any(_group(one)[0] != self._columns for one in variables):
                raise cannot("its state variables do not have the same key columns")
        else:
            self._columns, self._group = _declared(found["columns"])

    def hash_of(self, family: Family) -> Hash | None:
        """Returns the hash of a family's rows; ``None`` if every partition has these rows."""
        if family.name == NOTES:
            return None
        if self.of_groups:
            by_time = family.name == TIMERS or family.name.startswith(EXPIRY_OF)
            return self._of_group(behind_time=by_time)
        return self._of_key()

    def _of_group(self, *, behind_time: bool) -> Hash:
        last, known = b"", 0
        group, columns = self._group, self._columns

        def hashed(stored: bytes) -> int:
            nonlocal last, known
            at = decode_first(stored, FAMILY_BYTES)[1] if behind_time else FAMILY_BYTES
            # Rows of a group are neighbours, and no group's bytes are a prefix of another's, so a
            # matching prefix means the same group.
            if last and stored.startswith(last, at):
                return known
            values, end = group.decode_first(stored, at)
            known, last = _hashed(columns, values), stored[at:end]
            return known

        return hashed

    def _of_key(self) -> Hash:
        if self._codec is None:
            raise cannot("its keys were written by a codec of your own", "Give it by codec=….")
        decode, columns = self._codec.decode_key, self._columns
        group_of = self._group_of or self._first_values

        def hashed(stored: bytes) -> int:
            values = group_of(decode(stored[FAMILY_BYTES:]))
            return _hashed(columns, values if isinstance(values, (tuple, list)) else (values,))

        return hashed

    def _first_values(self, key: Any) -> Any:
        wanted = len(self._columns.fields)
        return key[:wanted] if isinstance(key, (tuple, list)) else (key,)


def _hashed(columns: Struct, values: Sequence[Any]) -> int:
    if len(values) != len(columns.fields):
        raise cannot(
            f"a key of the state has {len(values)} values for {len(columns.fields)} key columns"
        )
    try:
        return hash_key(columns, values)
    except ConfigError as error:
        raise cannot(f"a key of the state does not fit the key columns: {error.found}") from error


def _group(variable: Family) -> tuple[Struct, TypedKey]:
    group = typed_row_codec(variable).keys[0]
    return group.columns, group.codec


def _declared(columns: str) -> tuple[Struct, TypedKey]:
    try:
        text = json.dumps(struct_of(columns))
        return parse_schema(text), TypedKey(text, zone=timezone.utc)
    except UsageError as error:
        raise cannot(f"its key columns are not known: {columns}") from error


def cannot(found: str, advice: str = "") -> UsageError:
    """Returns the error for a store whose rows cannot be placed."""
    return UsageError(
        "changing the number of partitions of a store",
        found=found,
        advice=advice
        or "The partition of a row cannot be determined, so nothing was changed. Give group_of=…, "
        "a function that returns the values of the key columns for a key of the state; or begin "
        "a new store.",
    )
