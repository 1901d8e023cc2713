"""Tokens: the position of a change feed as a text that its reader can store."""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped]  # the package ships no types

from redis_state.errors import ConfigError
from redis_state.ids import NUMBER_MAX, StoreId

_PREFIX = "rs1-"
_MARK_BYTES = 16
_CHECK_BYTES = 4
_WORDS = 6
_WHAT = "following the changes of the state"


@dataclass(frozen=True, slots=True)
class Position:
    """A version of all partitions of a store.

    Attributes:
        mark: Hash of the version's uids in all partitions, in their order; it differs between
            timelines. ``None`` if the uids are not known.
    """

    version: int
    partitions: int
    mark: bytes | None


def mark_of(uids: Iterable[str]) -> bytes:
    """Returns the hash of the uids of all partitions."""
    return hashlib.sha256(" ".join(uids).encode("ascii")).digest()[:_MARK_BYTES]


def encode(position: Position, store: StoreId) -> str:
    """Returns the token of a position, about 90 letters, digits, ``-`` and ``_``."""
    place = [bytes.fromhex(store.gen), store.operator, store.store]
    payload = msgpack.packb([*place, position.version, position.partitions, position.mark])
    check = zlib.crc32(payload).to_bytes(_CHECK_BYTES, "big")
    return _PREFIX + base64.urlsafe_b64encode(payload + check).decode("ascii").rstrip("=")


def decode(token: str, store: StoreId) -> Position:
    """Parses the token of a position in this store.

    Raises:
        ConfigError: The text is not a token, or is a token of another store.
    """
    gen, operator, name, version, partitions, mark = _read(token)
    if (gen, operator, name) != (bytes.fromhex(store.gen), store.operator, store.store):
        raise ConfigError(
            _WHAT,
            found="the token is of another checkpoint, operator or store",
            advice='Use it with the state that it came from, or start with since="start".',
        )
    return Position(version, partitions, mark)


def _read(token: str) -> list[Any]:
    try:
        text = token.removeprefix(_PREFIX)
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        payload, check = raw[:-_CHECK_BYTES], raw[-_CHECK_BYTES:]
        words = msgpack.unpackb(payload)
        sound = zlib.crc32(payload).to_bytes(_CHECK_BYTES, "big") == check
    except (ValueError, TypeError, binascii.Error, msgpack.UnpackException):
        sound, words = False, None
    if not (sound and token.startswith(_PREFIX) and _is_position(words)):
        raise ConfigError(
            _WHAT,
            found="`since` is not a token of `changes`, or was cut off",
            advice='Give the unchanged token of a batch, the number of a batch, or "start".',
        )
    return list(words)


def _is_position(words: object) -> bool:
    if not isinstance(words, list) or len(words) != _WORDS:
        return False
    *_, version, partitions, mark = words
    numbers = all(type(one) is int and 0 <= one <= NUMBER_MAX for one in (version, partitions))
    return numbers and isinstance(mark, bytes) and len(mark) == _MARK_BYTES
