"""Signs blocks with a key that the server does not hold (docs/format.md, section 4.7)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from redis_state.errors import FormatError
from redis_state.format.block import SIGNED_MAGIC

KEY_BYTES_MIN = 32
_TAG_BYTES = 16
_HEAD = bytes((SIGNED_MAGIC,))


class BlockSigner:
    """Signs blocks before they are stored, and verifies them when they are read.

    Args:
        key: At least `KEY_BYTES_MIN` bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def signed(self, key: str, field: str, block: bytes) -> bytes:
        """Returns the signed value to store in a field; `key` is the segment's Redis key."""
        return _HEAD + self._tag(key, field, block) + block

    def opened(self, key: str, field: str, value: bytes) -> bytes:
        """Verifies a stored value, and returns its block.

        Raises:
            FormatError: The value was not signed with this key, or was signed for another place.
        """
        tag, block = value[1 : 1 + _TAG_BYTES], value[1 + _TAG_BYTES :]
        if value[:1] != _HEAD or not hmac.compare_digest(tag, self._tag(key, field, block)):
            raise FormatError(
                f"reading field {field} of {key}",
                found="it is not signed with this key",
                advice=(
                    "A program other than this query's writers changed it, or 'signingKeyFile' "
                    "has another key than the writers'. Nothing of it was used."
                ),
            )
        return block

    def all_opened(
        self, key: str, fields: Iterable[str], values: Iterable[bytes | None]
    ) -> list[bytes | None]:
        """Verifies several fields of a segment; ``None`` stays ``None``."""
        return [
            None if value is None else self.opened(key, field, value)
            for field, value in zip(fields, values, strict=True)
        ]

    def _tag(self, key: str, field: str, block: bytes) -> bytes:
        place = b"%s\0%s\0" % (key.encode("utf-8"), field.encode("ascii"))
        return hmac.digest(self._key, place + block, hashlib.sha256)[:_TAG_BYTES]


def is_signed(value: bytes) -> bool:
    """Returns whether a stored value is signed, with this or another key."""
    return value[:1] == _HEAD
