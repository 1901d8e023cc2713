"""Digests of rows that do not depend on their order (docs/format.md, section 13)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

DIGEST_BITS = 128
DIGEST_DIGITS = DIGEST_BITS // 4
_DIGEST_BYTES = DIGEST_BITS // 8
_LENGTH_BYTES = 4


def digest_text(digest: int) -> str:
    """Formats a digest for a manifest."""
    return f"{digest:0{DIGEST_DIGITS}x}"


def digest_sum(digests: Iterable[int]) -> int:
    """Returns the digest of the union of several sets of rows."""
    return sum(digests) % (1 << DIGEST_BITS)


class RowDigest:
    """The digest of rows of one family.

    Args:
        family: Name of the family.

    Attributes:
        value: The digest of the rows so far.
        rows: Number of rows so far.
        bytes: Bytes of their keys and values.
    """

    def __init__(self, family: str) -> None:
        name = family.encode()
        self._head = len(name).to_bytes(_LENGTH_BYTES, "big") + name
        self.value = 0
        self.rows = 0
        self.bytes = 0

    def add(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Adds rows: keys without the family id, and values."""
        head, sha256, total = self._head, hashlib.sha256, 0
        for key, value in rows:
            size = len(key)
            row = sha256(head + size.to_bytes(_LENGTH_BYTES, "big") + key + value).digest()
            total += int.from_bytes(row[:_DIGEST_BYTES], "big")
            self.rows += 1
            self.bytes += size + len(value)
        self.value = digest_sum((self.value, total))
