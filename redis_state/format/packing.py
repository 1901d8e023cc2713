"""MessagePack, read piece by piece. A length is not trusted before its bytes are present."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import msgpack  # type: ignore[import-untyped]  # the package ships no types

from redis_state.errors import FormatError

EXT_APPENDED = 1
_AT_ONCE_MAX = 512
_SHORT_ARRAY = 0x90
_ARRAY_SIZES = {0xDC: 2, 0xDD: 4}
"""Size of the length of a long array, by tag."""


@dataclass(frozen=True, slots=True)
class Extension:
    """A piece of an extension type."""

    code: int
    data: bytes


class ByteReader:
    """Reads the pieces of one payload in order.

    Only the header of a container is read, so no memory is allocated for the size that it claims.
    """

    def __init__(self, payload: bytes, what: str) -> None:
        self._what = what
        self._length = len(payload)
        self._unpacker = msgpack.Unpacker(
            raw=False,
            strict_map_key=True,
            ext_hook=Extension,
            max_buffer_size=len(payload) or 1,
            max_str_len=len(payload),
            max_bin_len=len(payload),
            max_ext_len=len(payload),
            max_array_len=0,
            max_map_len=0,
        )
        self._unpacker.feed(payload)

    def array_size(self) -> int:
        """Opens an array, and returns its size, which is at most what the payload can hold."""
        return self._size(self._unpacker.read_array_header, "an array", bytes_each=1)

    def map_size(self) -> int:
        """Opens a map, and returns its size."""
        return self._size(self._unpacker.read_map_header, "a map", bytes_each=2)

    def piece(self) -> Any:
        """Reads the next scalar of any type."""
        try:
            return self._unpacker.unpack()
        except (msgpack.UnpackException, ValueError) as error:
            raise self.bad("the bytes are not MessagePack of this format") from error

    def pieces(self, count: int) -> list[Any]:
        """Reads the next scalars of any type."""
        try:
            found = list(islice(self._unpacker, count))
        except (msgpack.UnpackException, ValueError) as error:
            raise self.bad("the bytes are not MessagePack of this format") from error
        if len(found) < count:
            raise self.bad("the bytes are not MessagePack of this format")
        return found

    def text(self) -> str:
        """Reads a text."""
        value = self.piece()
        if not isinstance(value, str):
            raise self.bad("a text was expected")
        return value

    def binary(self) -> bytes:
        """Reads bytes."""
        value = self.piece()
        if not isinstance(value, bytes):
            raise self.bad("bytes were expected")
        return value

    def binary_or_nil(self) -> bytes | None:
        """Reads bytes or nil."""
        value = self.piece()
        if value is not None and not isinstance(value, bytes):
            raise self.bad("bytes or nil were expected")
        return value

    def number(self, *, maximum: int) -> int:
        """Reads a whole number from 0 to `maximum`."""
        value = self.piece()
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
            raise self.bad(f"a whole number up to {maximum} was expected")
        return value

    def truth(self) -> bool:
        """Reads a boolean."""
        value = self.piece()
        if not isinstance(value, bool):
            raise self.bad("a truth value was expected")
        return value

    @property
    def ended(self) -> bool:
        """True if nothing is left."""
        return bool(self._unpacker.tell() == self._length)

    def end(self) -> None:
        """Checks that nothing is left."""
        if not self.ended:
            raise self.bad("bytes follow after the end")

    def bad(self, found: str) -> FormatError:
        """Returns an error about this payload."""
        return FormatError(f"reading {self._what}", found=found)

    def _size(self, header: Any, name: str, *, bytes_each: int) -> int:
        try:
            size = int(header())
        except (msgpack.UnpackException, ValueError) as error:
            raise self.bad(f"{name} was expected") from error
        if size * bytes_each > self._length - self._unpacker.tell():
            raise self.bad(f"{name} claims more elements than there are bytes")
        return size


def array_head(payload: bytes) -> tuple[int, int]:
    """Returns the size of an array's head and its claimed length; zeros for any other payload."""
    tag = payload[0] if payload else 0
    if tag & 0xF0 == _SHORT_ARRAY:
        return 1, tag & 0x0F
    size = _ARRAY_SIZES.get(tag, 0)
    return (1 + size, int.from_bytes(payload[1 : 1 + size], "big")) if size else (0, 0)


def scalars(payload: bytes, what: str) -> list[Any]:
    """Decodes a payload that is one array of scalars.

    A few elements may also be containers, so the caller checks their types.

    Args:
        what: Name of the payload in errors.

    Raises:
        FormatError: The bytes are not such an array.
    """
    _, claimed = array_head(payload)
    if 0 < claimed <= _AT_ONCE_MAX:
        size = len(payload)
        try:
            # A nested array may claim at most as many elements, so little memory is at risk.
            found = msgpack.unpackb(
                payload,
                raw=False,
                ext_hook=Extension,
                max_str_len=size,
                max_bin_len=size,
                max_ext_len=size,
                max_array_len=claimed,
                max_map_len=0,
            )
        except (msgpack.UnpackException, ValueError):
            pass  # reading piece by piece below finds the error
        else:
            return cast(list[Any], found)
    reader = ByteReader(payload, what)
    pieces = reader.pieces(reader.array_size())
    reader.end()
    return pieces


class Writer:
    """Writes pieces in their shortest form."""

    def __init__(self) -> None:
        self._packer = msgpack.Packer(autoreset=False, use_bin_type=True)

    def array(self, size: int) -> None:
        """Opens an array."""
        self._packer.pack_array_header(size)

    def map(self, size: int) -> None:
        """Opens a map."""
        self._packer.pack_map_header(size)

    def piece(self, value: str | bytes | int | bool | None) -> None:
        """Writes a scalar."""
        self._packer.pack(value)

    def scalars(self, values: Sequence[bytes | Extension | None]) -> None:
        """Writes an array of scalars."""
        if Extension in set(map(type, values)):
            values = [
                msgpack.ExtType(value.code, value.data) if isinstance(value, Extension) else value
                for value in values
            ]
        self._packer.pack(values)

    def result(self) -> bytes:
        """Returns all bytes written."""
        return bytes(self._packer.bytes())
