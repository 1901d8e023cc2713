"""The keys and rows of calls that take many: encoded and checked before the first one counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from redis_state.store import Pairs

STORED_KEY_BYTES_MAX: Final = FAMILY_BYTES + KEY_BYTES_MAX


def stored_keys(codec: Codec, keys: Iterable[Any]) -> list[bytes]:
    """Stored keys, in the order of the keys.

    Raises:
        UsageError: A key has no encoding; it is named by its place.
    """
    given = keys if isinstance(keys, (list, tuple)) else list(keys)
    if codec is RAW and set(map(type, given)) <= {bytes}:
        return [PREFIX + key for key in given]
    encode, stored = codec.encode_key, list[bytes]()
    try:
        for key in given:
            stored.append(PREFIX + encode(key))
    except UsageError as error:
        raise _at(f"keys[{len(stored)}]", error) from None
    return stored


def stored_rows(codec: Codec, pairs: Pairs) -> dict[bytes, bytes]:
    """Encoded values by stored key; of two pairs with one key the later one counts.

    Raises:
        UsageError: A key or value has no encoding; the pair is named by its place.
        LimitError: A key or value is too large.
    """
    given = pairs.items() if isinstance(pairs, Mapping) else pairs
    raw = codec is RAW
    encode_key, encode_value = codec.encode_key, codec.encode_value
    rows: dict[bytes, bytes] = {}
    place = 0
    try:
        # One pass without a list of the pairs: tuples that stay cost more than what is done here.
        for place, (key, value) in enumerate(given):  # noqa: B007  # for the error
            if raw and type(key) is type(value) is bytes:
                rows[PREFIX + key] = value
            else:
                rows[PREFIX + encode_key(key)] = encode_value(value)
    except UsageError as error:
        raise _at(f"pairs[{place}]", error) from None
    _check_limits(rows)
    return rows


def _check_limits(rows: dict[bytes, bytes]) -> None:
    longest = max(map(len, rows), default=0), max(map(len, rows.values()), default=0)
    if longest[0] > STORED_KEY_BYTES_MAX or longest[1] > VALUE_BYTES_MAX:
        for key, value in rows.items():
            check_limits(key, value)


def _at(place: str, error: UsageError) -> UsageError:
    return UsageError(error.attempted, found=error.found, advice=error.advice, where=place)
