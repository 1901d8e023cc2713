"""Envelope of every stored value (docs/format.md, section 4.1)."""

from __future__ import annotations

import struct
import threading
import zlib

import zstandard

from redis_state.errors import FormatError

MAGIC = 0xB7
SIGNED_MAGIC = 0xB8
CODEC_NONE = 0
CODEC_ZSTD = 1
RAW_LENGTH_MAX = 80 << 20
HEADER_BYTES = 10
CHECK_BYTES = slice(6, 10)
_LEVEL = 1
_HEADER = struct.Struct(">BBII")


class _Zstd(threading.local):
    """Compression contexts of one thread; creating one costs more than compressing a block."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=_LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_zstd = _Zstd()


def encode(ident: str, field: str, payload: bytes, *, compress: bool = True) -> bytes:
    """Encodes a payload as the block of one place.

    Args:
        ident: Part of the segment's key after ``P:``.
        field: The field of the segment's hash.
        payload: At most `RAW_LENGTH_MAX` bytes.
        compress: ``False`` stores the payload uncompressed, so that the bytes do not depend on the
            compressor's release.

    Raises:
        FormatError: The payload is too large.
    """
    if len(payload) > RAW_LENGTH_MAX:
        raise _bad(ident, field, f"a block of {len(payload)} bytes is above {RAW_LENGTH_MAX}")
    stored, codec = payload, CODEC_NONE
    if compress:
        packed = _zstd.compress(payload)
        if len(packed) < len(payload):
            stored, codec = packed, CODEC_ZSTD
    return seal(ident, field, stored, codec=codec, raw_length=len(payload))


def seal(ident: str, field: str, stored: bytes, *, codec: int, raw_length: int) -> bytes:
    """Builds a block from a payload in its stored form, without any check."""
    head = struct.pack(">BI", codec, raw_length)
    check = _check(ident, field, head, stored)
    return _HEADER.pack(MAGIC, codec, raw_length, check) + stored


def decode(ident: str, field: str, block: bytes) -> bytes:
    """Decodes the payload of a block.

    Raises:
        FormatError: The block is damaged, foreign or of another place.
    """
    if block[:1] == bytes((SIGNED_MAGIC,)):
        raise _bad(ident, field, "it is signed: give the key in 'signingKeyFile'")
    if len(block) < HEADER_BYTES or block[0] != MAGIC:
        raise _bad(ident, field, "it is not a block of redis-state")
    _, codec, raw_length, check = _HEADER.unpack_from(block)
    if raw_length > RAW_LENGTH_MAX:
        raise _bad(ident, field, f"the raw length {raw_length} is above {RAW_LENGTH_MAX}")
    stored = block[HEADER_BYTES:]
    if check != _check(ident, field, block[1:6], stored):
        raise _bad(ident, field, "the check does not match")
    if codec == CODEC_NONE:
        if len(stored) != raw_length:
            raise _bad(ident, field, "the raw length does not match")
        return stored
    if codec != CODEC_ZSTD:
        raise _bad(ident, field, f"codec {codec} is unknown to this release")
    return _decompress(ident, field, stored, raw_length)


def is_intact(ident: str, field: str, block: bytes) -> bool:
    """Returns whether the check of a block is right, without a look at its payload."""
    if len(block) < HEADER_BYTES or block[0] != MAGIC:
        return False
    check: int = _HEADER.unpack_from(block)[3]
    return check == _check(ident, field, block[1:6], block[HEADER_BYTES:])


def check_bytes(block: bytes) -> bytes:
    """Returns the four check bytes of a block, which the checksum of a segment covers.

    Raises:
        FormatError: The block is shorter than its header.
    """
    if len(block) < HEADER_BYTES:
        raise FormatError("reading a block", found="it is shorter than its header")
    return block[CHECK_BYTES]


def raw_length(block: bytes) -> int:
    """Returns the length of the payload in bytes, according to the block's header.

    Raises:
        FormatError: The block is shorter than its header.
    """
    if len(block) < HEADER_BYTES:
        raise FormatError("reading a block", found="it is shorter than its header")
    length: int = _HEADER.unpack_from(block)[2]
    return length


def _check(ident: str, field: str, head: bytes, stored: bytes) -> int:
    place = b"%s\0%s\0" % (ident.encode("ascii"), field.encode("ascii"))
    return zlib.crc32(stored, zlib.crc32(head, zlib.crc32(place)))


def _decompress(ident: str, field: str, stored: bytes, raw_length: int) -> bytes:
    try:
        # The library allocates the length in the frame, whatever limit it is given. So check it
        # first.
        if zstandard.get_frame_parameters(stored).content_size != raw_length:
            raise _bad(ident, field, "the frame does not state the raw length")
        payload = _zstd.decompress(stored, max_output_size=raw_length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise _bad(ident, field, "the payload does not decompress") from error
    if len(payload) != raw_length:
        raise _bad(ident, field, "the payload has another length than the block states")
    return payload


def _bad(ident: str, field: str, found: str) -> FormatError:
    return FormatError(f"reading field {field} of {ident}", found=found)
