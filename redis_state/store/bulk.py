"""Encoding of bulk calls: all rows are encoded and checked before any row is put."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from types import NoneType
from typing import Any, Final

from redis_state.codec import RAW, Codec
from redis_state.errors import UsageError
from redis_state.format.ordered import PREFIX
from redis_state.format.rows import (
    FAMILY_BYTES,
    KEY_BYTES_MAX,
    VALUE_BYTES_MAX,
    check_limits,
)
from redis_state.store.api import RowPairs

STORED_KEY_BYTES_MAX: Final = FAMILY_BYTES + KEY_BYTES_MAX
_REMEMBERED_MAX = 1 << 16
_BYTES: Final = frozenset({bytes})
_UNCHANGEABLE: Final = frozenset({bytes, str, int, float, bool, NoneType})


class KeyEncoder:
    """Encodes keys as stored keys, and remembers those of the last call.

    Callers that read the values of many keys often put new values for the same keys next.
    """

    __slots__ = ("_codec", "_last")

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._last: tuple[list[Any], list[bytes]] = [], []

    def __call__(self, keys: Iterable[Any]) -> list[bytes]:
        """Returns the stored keys, which the caller must not change.

        Raises:
            UsageError: A key has no encoding; the message names its position.
        """
        given = list(keys)
        before, known = self._last
        if len(given) == len(before) and all(map(operator.is_, given, before)):
            return known
        kinds = set(map(type, given))
        codec = self._codec
        encoded = _encoded(codec, codec.encode_key, given, kinds, place="keys")
        stored = [PREFIX + key for key in encoded]
        # A mutable object may have another encoding at the next call.
        if len(given) <= _REMEMBERED_MAX and kinds <= _UNCHANGEABLE:
            self._last = given, stored
        return stored

    def forget(self) -> None:
        """Forgets the keys of the last call."""
        self._last = [], []


def encoded_values(codec: Codec, values: Iterable[Any]) -> list[bytes]:
    """Encodes values, in their order.

    Raises:
        UsageError: A value has no encoding; the message names its position.
    """
    given = list(values)
    return _encoded(codec, codec.encode_value, given, set(map(type, given)), place="values")


def _encoded(
    codec: Codec,
    encode: Callable[[Any], bytes],
    given: list[Any],
    kinds: Set[type],
    *,
    place: str,
) -> list[bytes]:
    # Raw bytes need no call for each value.
    if codec is RAW and kinds <= _BYTES:
        return given
    encoded: list[bytes] = []
    try:
        for one in given:
            encoded.append(encode(one))  # noqa: PERF401  # the length gives the position
    except UsageError as error:
        raise _at(f"{place}[{len(encoded)}]", error) from None
    return encoded


def check_columns(stored: Sequence[bytes], data: Sequence[bytes]) -> None:
    """Checks that keys and values have the same number and allowed sizes.

    Raises:
        UsageError: The numbers differ.
        LimitError: A key or value is too large.
    """
    if len(stored) != len(data):
        raise UsageError(
            "putting many rows",
            found=f"{len(stored)} keys and {len(data)} values",
            advice="Give one value for each key.",
        )
    check_all_limits(stored, data)


def stored_rows(codec: Codec, pairs: RowPairs) -> dict[bytes, bytes]:
    """Encodes pairs as values by stored key; a later pair replaces an earlier one of its key.

    Raises:
        UsageError: A key or value has no encoding; the message names the pair's position.
        LimitError: A key or value is too large.
    """
    given = pairs.items() if isinstance(pairs, Mapping) else pairs
    raw = codec is RAW
    encode_key, encode_value = codec.encode_key, codec.encode_value
    rows: dict[bytes, bytes] = {}
    place = 0
    try:
        # One pass without a list of the pairs: keeping the tuples alive costs more than the
        # encoding.
        for place, (key, value) in enumerate(given):  # noqa: B007  # for the error
            if raw and type(key) is type(value) is bytes:
                rows[PREFIX + key] = value
            else:
                rows[PREFIX + encode_key(key)] = encode_value(value)
    except UsageError as error:
        raise _at(f"pairs[{place}]", error) from None
    check_all_limits(rows, rows.values())
    return rows


def check_all_limits(stored: Collection[bytes], data: Collection[bytes]) -> None:
    """Checks the sizes of keys and values.

    Raises:
        LimitError: A key or value is too large.
    """
    longest = max(map(len, stored), default=0), max(map(len, data), default=0)
    if longest[0] > STORED_KEY_BYTES_MAX or longest[1] > VALUE_BYTES_MAX:
        for key, value in zip(stored, data, strict=True):
            check_limits(key, value)


def _at(place: str, error: UsageError) -> UsageError:
    return UsageError(error.attempted, found=error.found, advice=error.advice, where=place)
