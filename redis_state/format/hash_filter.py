"""Filters over bucketing hashes in directory blocks of files (docs/format.md, section 17)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from redis_state.errors import FormatError
from redis_state.format import block
from redis_state.format.bucketing import hashes_in
from redis_state.format.rows import columns

BYTES_MAX = 1 << 20
"""Longest filter of one directory block."""
REGION_BYTES_MAX = 32 << 20
"""Most bytes of all filters of a region."""

_LINE_BYTES = 32
_HASH_BITS = 10
_WORD_MAX = (1 << 32) - 1
_LONG_MAX = (1 << 64) - 1
_SALTS = (
    0x47B6137B,
    0x44974D91,
    0x8824AD5B,
    0xA2B7289D,
    0x705495C7,
    0x2DF1424B,
    0x9EFC4947,
    0x5C6BFB31,
)


def make_filter(hashes: Iterable[int]) -> bytes | None:
    """Returns the filter of some hashes; ``None`` if it would be too long."""
    distinct = set(hashes)
    lines = max(1, -(-_HASH_BITS * len(distinct) // (8 * _LINE_BYTES)))
    if lines * _LINE_BYTES > BYTES_MAX:
        return None
    found = bytearray(lines * _LINE_BYTES)
    for hash_ in distinct:
        for at, bit in _bits(hash_, lines):
            found[at] |= bit
    return bytes(found)


def denies(raw: bytes, hash_: int) -> bool:
    """Returns whether a filter says that no row has a hash."""
    return not all(raw[at] & bit for at, bit in _bits(hash_, len(raw) // _LINE_BYTES))


def check_filter(raw: object) -> bytes:
    """Returns the content of the key `b` of a directory block.

    Raises:
        FormatError: It cannot be a filter.
    """
    if not isinstance(raw, bytes) or not raw or len(raw) % _LINE_BYTES or len(raw) > BYTES_MAX:
        raise FormatError("reading a directory", found="a filter has a wrong length")
    return raw


def _bits(hash_: int, lines: int) -> list[tuple[int, int]]:
    """Returns the bits of a hash, each with the place of its byte."""
    mixed = (hash_ * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _LONG_MAX
    mixed ^= mixed >> 32
    mixed = mixed * 0xD6E8FEB86659FD93 & _LONG_MAX
    mixed ^= mixed >> 32
    line = ((mixed >> 32) * lines >> 32) * _LINE_BYTES
    low = mixed & _WORD_MAX
    found = []
    for word, salt in enumerate(_SALTS):
        bit = (low * salt & _WORD_MAX) >> 27
        found.append((line + 4 * word + (bit >> 3), 1 << (bit & 7)))
    return found


class FilterMaker:
    """Makes filters of the blocks of a segment that are written.

    Args:
        buckets: Number of buckets of the segment.
        plain: Returns the block in the value of a field, without its signature.
    """

    def __init__(self, ident: str, buckets: int, plain: Callable[[str, bytes], bytes]) -> None:
        self._ident, self._buckets, self._plain = ident, buckets, plain
        self._left = REGION_BYTES_MAX
        self._hashes: set[int] = set()
        self._is_whole = True

    def add(self, field: str, bucket: int, value: bytes) -> None:
        """Adds the rows of a block; a damaged one is left to readers."""
        if not self._is_whole or self._left <= 0:
            return
        try:
            keys, _ = columns(block.decode(self._ident, field, self._plain(field, value)))
            for key in keys:
                self._hashes |= hashes_in(key, bucket=bucket, buckets=self._buckets)
        except FormatError:
            self._is_whole = False

    def end(self) -> bytes | None:
        """Returns the filter of the rows since the last call; ``None`` if there can be none."""
        hashes, is_whole = self._hashes, self._is_whole and self._left > 0
        self._hashes, self._is_whole = set(), True
        made = make_filter(hashes) if is_whole and hashes else None
        if made is not None:
            self._left -= len(made)
        return made if self._left >= 0 else None
