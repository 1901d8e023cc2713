"""The keys and rows of calls that take many: encoded and checked before the first one counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from redis_state.codec import RAW, Codec
from redis_state.errors import LimitError, UsageError
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
    return [PREFIX + key for key in _encoded("keys", codec.encode_key, given)]


def stored_rows(codec: Codec, pairs: Pairs) -> dict[bytes, bytes]:
    """Encoded values by stored key; of two pairs with one key the later one counts.

    Raises:
        UsageError: A key or value has no encoding; the pair is named by its place.
        LimitError: A key or value is too large; the pair is named by its place.
    """
    if isinstance(pairs, Mapping):
        pairs = pairs.items()
    given = pairs if isinstance(pairs, (list, tuple)) else list(pairs)
    rows: dict[bytes, bytes] = {}
    if codec is RAW:
        rows = {PREFIX + key: value for key, value in given if type(key) is type(value) is bytes}
    if len(rows) < len(given):
        # Another codec or kind of bytes, something without encoding, or a key that comes twice.
        keys = _encoded("pairs", codec.encode_key, [key for key, _ in given])
        values = _encoded("pairs", codec.encode_value, [value for _, value in given])
        stored = [PREFIX + key for key in keys]
        _check_limits(stored, values)
        return dict(zip(stored, values, strict=True))
    _check_limits(rows, rows.values())
    return rows


def _check_limits(keys: Iterable[bytes], values: Iterable[bytes]) -> None:
    """The longest ones tell whether it is worth looking at each."""
    longest = max(map(len, keys), default=0), max(map(len, values), default=0)
    if longest[0] <= STORED_KEY_BYTES_MAX and longest[1] <= VALUE_BYTES_MAX:
        return
    for place, (key, value) in enumerate(zip(keys, values, strict=True)):
        try:
            check_limits(key, value)
        except LimitError as error:
            raise LimitError(error.attempted, found=error.found, where=f"pairs[{place}]") from None


def _encoded(what: str, encode: Callable[[Any], bytes], given: Sequence[Any]) -> list[bytes]:
    encoded: list[bytes] = []
    add = encoded.append
    try:
        for one in given:
            add(encode(one))
    except UsageError as error:
        raise UsageError(
            error.attempted,
            found=error.found,
            advice=error.advice,
            where=f"{what}[{len(encoded)}]",
        ) from None
    return encoded
