"""The state of one operator: single keys, and all rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from redis_state.backend.client import Client
from redis_state.errors import FormatError
from redis_state.format.header import Family
from redis_state.reader.codec import Codec, KeyValues, codec_of
from redis_state.reader.lookup import Found, look_up
from redis_state.reader.partition import Opened
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

    def get(self, key: KeyValues, version: int | None = None) -> dict[str, Any] | None:
        """The value columns of one key by name, or ``None`` if there is no such key.

        Args:
            key: Values of the key columns, by name or in their order.
            version: A state version, which is the number of the batch plus one.

        Raises:
            ConfigError: A key column is missing, unknown, or of a type that has no lookup.
            NotFoundError: There is no such operator or store.
            StateError: The version is not there.
            UnavailableError: Redis gave no answer before the deadline.
        """
        info, partitions = self._query.open(self._operator, self._store, version)
        codec = codec_of(_family(info.families))
        found = self._look_up(partitions, codec, key)
        stale: list[Found] = []
        for one in found:
            own = codec_of(_family(one.families)) if one.families else codec
            if not _same_keys(own, codec):
                stale.append(one)
            elif one.value is not None:
                return own.decode_value(one.value)
        return self._get_stale(stale, key)

    def items(self, version: int | None = None) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Key columns and value columns of every row, partition by partition, in no order.

        Memory is bounded by the changes since the last snapshot of one partition and a chunk of
        blocks. Rows should be taken within ten minutes: then a dropped version expires.

        Raises:
            As `get`; `UnavailableError` also if the version expired while it was read.
        """
        _, partitions = self._query.open(self._operator, self._store, version)
        for opened in partitions:
            codec: Codec | None = None
            for key, value, families in rows_of(self._client, opened):
                if codec is None:
                    codec = codec_of(_family(families))
                if int.from_bytes(key[:2], "big") == codec.family.id:
                    yield codec.decode_key(key), codec.decode_value(value)

    def _look_up(self, partitions: Sequence[Opened], codec: Codec, key: KeyValues) -> list[Found]:
        stored = codec.encode_key(key)
        return look_up(self._client, partitions, stored, kind=codec.family.kind)

    def _get_stale(self, stale: Sequence[Found], key: KeyValues) -> dict[str, Any] | None:
        """From versions whose keys are laid out otherwise than the registry says."""
        for before in stale:
            codec = codec_of(_family(before.families))
            (one,) = self._look_up([before.opened], codec, key)
            if one.value is not None:
                return codec.decode_value(one.value)
        return None


def _family(families: Sequence[Family]) -> Family:
    found = next((family for family in families if family.id == _FAMILY), None)
    if found is None:
        raise FormatError("reading a family table", found="it has no default family")
    return found


def _same_keys(one: Codec, other: Codec) -> bool:
    first, second = one.family, other.family
    return (first.kind, first.params, one.key) == (second.kind, second.params, other.key)
