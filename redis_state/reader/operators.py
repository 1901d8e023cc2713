"""How the state of an operator is taken, of a query and of its views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from redis_state.backend.client import Client
from redis_state.codec import Codec
from redis_state.ids import DEFAULT_STORE
from redis_state.reader.family import DEFAULT_FAMILY
from redis_state.reader.operator_state import OperatorState
from redis_state.reader.source import Stores
from redis_state.rows.decoding import Texts, Variants, decoding_of


class _Owner(Stores, Protocol):
    _client: Client


class Operators:
    """What has operators; each class of it is a `Stores`."""

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
        """The state of one operator; nothing is asked of Redis yet.

        Args:
            operator: Spark's id of the operator: 0 for the first of the query.
            store: Spark's name of the store; only stream-stream joins have several.
            family: Name of the column family; only `transformWithState` has several, one for each
                state variable, named as the variable is; `OperatorState.families` lists them.
            codec: What a program in Python writes the store with; ``None`` means the one of its
                name, `MSGPACK` or `RAW`.
            text: How texts are read whose bytes are not UTF-8: ``"strict"`` raises
                `UnreadableError`, ``"replace"`` reads U+FFFD, ``"surrogates"`` lone surrogates
                that give the bytes back.
            variant: A VARIANT is its JSON text, or with ``"binary"`` its two binaries.
            columns: The columns of keys and values, named as in `scan`, that every call gives;
                others are not parsed. ``None`` means all.

        Raises:
            ConfigError: There is no such choice of `text` or `variant`.
        """
        decoding = decoding_of(text, variant, columns)
        return OperatorState(self._client, self, operator, store, family, codec, decoding)
