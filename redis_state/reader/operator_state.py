"""The state of one operator: single keys, and all rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from redis_state.backend.client import Client
from redis_state.errors import FormatError
from redis_state.format.header import Family
from redis_state.reader.codec import Codec, KeyValues, codec_of
from redis_state.reader.lookup import Found, look_up
from redis_state.reader.murmur3 import partition_of
from redis_state.reader.partition import Opened
from redis_state.reader.registry import OperatorInfo
from redis_state.reader.scan import rows_of

if TYPE_CHECKING:
    from redis_state.reader.query import Query

_FAMILY = 0


class OperatorState:
    """State as the query itself has confirmed it; `Query.operator` makes it.

    A version is confirmed once Spark has logged the batch that wrote it. Each call reads the newest
    confirmed version of every partition, unless it names one.
    """

    def __init__(self, client: Client, query: Query, operator: int, store: str) -> None:
        self._client = client
        self._query = query
        self._operator = operator
        self._store = store
        # Whether a key was found elsewhere than where it was looked for first.
        self._scattered = False

    def get(
        self, key: KeyValues, version: int | None = None, *, uids: Sequence[str] | None = None
    ) -> dict[str, Any] | None:
        """The value columns of one key by name, or ``None`` if there is no such key.

        Args:
            key: Values of the key columns, by name or in their order.
            version: A state version, which is the number of the batch plus one.
            uids: Spark's unique ids of the version, one for each partition in their order, as the
                commit log has them under checkpoint format 2; ``None`` means the version that the
                query went on with.

        Raises:
            ConfigError: A key column is missing, unknown, or of a type that has no lookup; ids do
                not fit the partitions.
            NotFoundError: There is no such operator or store.
            StateError: The version is not there.
            UnavailableError: Redis gave no answer before the deadline.
        """
        known = self._query.known(self._operator, self._store)
        if known is None or self._scattered:
            info, opened = self._query.open(self._operator, self._store, version, uids=uids)
            likely = self._likely(info, key)
            opened.sort(key=lambda one: one.id.partition != likely)
            return self._find(info, opened, key, likely=likely)
        likely = self._likely(known, key)
        value = self._open_and_find([likely], key, version, uids, likely)
        if value is not None:
            return value
        others = [number for number in range(known.partitions) if number != likely]
        return self._open_and_find(others, key, version, uids, likely) if others else None

    def items(
        self, version: int | None = None, *, uids: Sequence[str] | None = None
    ) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Key columns and value columns of every row, partition by partition, in no order.

        Memory is bounded by the changes since the last snapshot of one partition and a chunk of
        blocks. Rows should be taken within ten minutes: then a dropped version expires.

        Raises:
            As `get`; `UnavailableError` also if the version expired while it was read.
        """
        _, partitions = self._query.open(self._operator, self._store, version, uids=uids)
        for opened in partitions:
            codec: Codec | None = None
            for key, value, families in rows_of(self._client, opened):
                if codec is None:
                    codec = codec_of(_family(families))
                if int.from_bytes(key[:2], "big") == codec.family.id:
                    yield codec.decode_key(key), codec.decode_value(value)

    def _likely(self, info: OperatorInfo, key: KeyValues) -> int:
        """Where Spark's shuffle puts the key if it groups by the key columns, as most operators do.

        It is only where to look first: a join shuffles by some of the columns.
        """
        schema = codec_of(_family(info.families)).key
        return partition_of(schema, key, partitions=info.partitions)

    def _open_and_find(
        self,
        partitions: Sequence[int],
        key: KeyValues,
        version: int | None,
        uids: Sequence[str] | None,
        likely: int,
    ) -> dict[str, Any] | None:
        info, opened = self._query.open(
            self._operator, self._store, version, uids=uids, only=partitions
        )
        return self._find(info, opened, key, likely=likely)

    def _find(
        self, info: OperatorInfo, partitions: Sequence[Opened], key: KeyValues, *, likely: int
    ) -> dict[str, Any] | None:
        codec = codec_of(_family(info.families))
        for one in self._look_up(partitions, codec, key):
            own = codec_of(_family(one.families)) if one.families else codec
            if not _same_keys(own, codec):
                # The registry describes another layout of keys than this version has.
                (one,) = self._look_up([one.opened], own, key)
            if one.value is not None:
                self._scattered |= one.opened.id.partition != likely
                return own.decode_value(one.value)
        return None

    def _look_up(
        self, partitions: Sequence[Opened], codec: Codec, key: KeyValues
    ) -> Iterator[Found]:
        stored = codec.encode_key(key)
        return look_up(self._client, partitions, stored, kind=codec.family.kind)


def _family(families: Sequence[Family]) -> Family:
    found = next((family for family in families if family.id == _FAMILY), None)
    if found is None:
        raise FormatError("reading a family table", found="it has no default family")
    return found


def _same_keys(one: Codec, other: Codec) -> bool:
    first, second = one.family, other.family
    return (first.kind, first.params, one.key) == (second.kind, second.params, other.key)
