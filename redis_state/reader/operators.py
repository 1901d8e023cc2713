"""Shared `operator()` accessor of queries and views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from redis_state.backend.client import Client
from redis_state.codec import Codec
from redis_state.ids import DEFAULT_STORE
from redis_state.reader.family import DEFAULT_FAMILY
from redis_state.reader.operator_state import OperatorState
from redis_state.reader.source import Stores
from redis_state.types.decoding import Texts, Variants, decoding_of


class _Owner(Stores, Protocol):
    _client: Client


class Operators:
    """Base class of everything that has operators; each subclass is a `Stores`."""

    def operator(
        self: _Owner,
        operator: int = 0,
        store: str = DEFAULT_STORE,
        *,
        family: str = DEFAULT_FAMILY,
        codec: Codec | None = None,
        text: Texts = "strict",
        variant: Variants = "json",
        columns: Sequence[str] | None = None,
    ) -> OperatorState:
        """Returns the state of one operator, without a request to Redis.

        Args:
            operator: Spark's id of the operator: 0 for the first of the query.
            store: Spark's name of the store; only stream-stream joins have several.
            family: Name of the column family. Only `transformWithState` has several, one for each
                state variable and named like the variable; `OperatorState.families` lists them.
            codec: Codec with which a Python program writes the store; ``None`` means the codec that
                the store names, `MSGPACK` or `RAW`.
            text: Handling of texts whose bytes are not UTF-8: ``"strict"`` raises
                `UnreadableError`, ``"replace"`` reads U+FFFD, ``"surrogates"`` reads lone
                surrogates, which encode back to the same bytes.
            variant: ``"json"`` reads a VARIANT as its JSON text, ``"binary"`` as its two binaries.
            columns: Columns of keys and values that every call returns, named as in `scan`; other
                columns are not parsed. ``None`` means all.

        Raises:
            ConfigError: `text` or `variant` is not one of the choices.
        """
        decoding = decoding_of(text, variant, columns)
        return OperatorState(self._client, self, operator, store, family, codec, decoding)
