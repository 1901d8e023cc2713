"""Assigns rows to buckets (docs/format.md, section 4.3)."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from redis_state.errors import FormatError
from redis_state.format.entry import BUCKETS_MAX
from redis_state.format.rows import FAMILY_BYTES

ROWS_A_BUCKET = 128
BYTES_A_BUCKET = 16 << 10
_LENGTH_BYTES = 4
_TIMESTAMP_BYTES = 8
_HASHED_KINDS = ("none", "prefix", "ts-postfix")


def bucketing_hash(key: bytes, *, kind: str) -> int:
    """Returns the CRC-32 of the family id and the bucketing bytes of a stored key.

    Raises:
        FormatError: The key is too short for its encoder kind.
    """
    return zlib.crc32(key[: _used(key, kind)])


def bucketing_hashes(keys: Sequence[bytes], *, kind: str) -> list[int]:
    """Returns `bucketing_hash` of many keys.

    Raises:
        FormatError: A key is too short for its encoder kind.
    """
    if kind == "none" and min(map(len, keys), default=0) >= FAMILY_BYTES:
        return list(map(zlib.crc32, keys))
    return [bucketing_hash(key, kind=kind) for key in keys]


def hashes_in(key: bytes, *, bucket: int, buckets: int) -> set[int]:
    """Returns the hashes of a stored key, by every kind of family that leads to its bucket.

    Args:
        buckets: A power of two.
    """
    lengths = {_length(key, kind) for kind in _HASHED_KINDS}
    found = {zlib.crc32(key[: FAMILY_BYTES + length]) for length in lengths if length >= 0}
    return {hash_ for hash_ in found if hash_ & (buckets - 1) == bucket}


def bucket_of(key: bytes, *, kind: str, buckets: int) -> int:
    """Returns the bucket of a stored key; `buckets` is a power of two.

    Raises:
        FormatError: The key is too short for its encoder kind.
    """
    return bucketing_hash(key, kind=kind) & (buckets - 1)


def buckets_for(rows: int, raw_bytes: int) -> int:
    """Returns the smallest power of two with at most 128 rows and 16 KiB a bucket on average."""
    wanted = max(-(-rows // ROWS_A_BUCKET), -(-raw_bytes // BYTES_A_BUCKET), 1)
    return min(1 << (wanted - 1).bit_length(), BUCKETS_MAX)


def _used(key: bytes, kind: str) -> int:
    if kind not in _HASHED_KINDS:
        raise FormatError("finding a bucket", found=f"families of kind {kind[:20]} have no buckets")
    used = _length(key, kind)
    if used < 0:
        encoded = len(key) - FAMILY_BYTES
        raise FormatError(
            "finding a bucket", found=f"a key of {encoded} bytes is too short for the kind {kind}"
        )
    return FAMILY_BYTES + used


def _length(key: bytes, kind: str) -> int:
    """Returns the length of the bucketing bytes; a negative number if the key is too short."""
    encoded = len(key) - FAMILY_BYTES
    used = encoded
    if kind == "prefix":
        used = -1
        if encoded >= _LENGTH_BYTES:
            start, end = FAMILY_BYTES, FAMILY_BYTES + _LENGTH_BYTES
            prefix = int.from_bytes(key[start:end], "little", signed=True)
            if 0 <= prefix <= encoded - _LENGTH_BYTES:
                used = _LENGTH_BYTES + prefix
    elif kind == "ts-postfix":
        used = encoded - _TIMESTAMP_BYTES
    return used
