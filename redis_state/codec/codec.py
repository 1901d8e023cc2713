"""Encodes and decodes keys and values of Python stores (docs/format.md, section 10)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any

import msgpack  # type: ignore[import-untyped]  # the package ships no types

from redis_state.codec.ordered_key import decode_key, encode_key, prefix_range
from redis_state.errors import FormatError, UsageError
from redis_state.format.rows import join_elements, split_elements

Range = tuple[bytes, bytes | None]
"""Encoded keys from the first up to, not including, the second; ``None`` means no upper end."""


@dataclass(frozen=True, slots=True)
class Codec:
    """Encoding of a store's keys and values; all functions are pure.

    Attributes:
        name: Stored with the state, which can be opened only with the codec that wrote it.
        prefix_range: Returns the encoded keys that a `prefix_scan` reads.
    """

    name: str
    encode_key: Callable[[Any], bytes]
    decode_key: Callable[[bytes], Any]
    encode_value: Callable[[Any], bytes]
    decode_value: Callable[[bytes], Any]
    prefix_range: Callable[[Any], Range]

    def with_values(self, kind: type) -> Codec:
        """Returns a codec for values of a dataclass (stored as a map) or named tuple (an array).

        Fields that are missing in a stored value take their defaults. Stored fields that the class
        no longer has are ignored.

        Raises:
            UsageError: The class is neither a dataclass nor a named tuple.
        """
        to_plain, from_plain = _plain(kind, by_name=is_dataclass(kind))
        encode, decode = self.encode_value, self.decode_value
        return replace(
            self,
            encode_value=lambda value: encode(to_plain(value)),
            decode_value=lambda data: from_plain(decode(data)),
        )

    def with_lists(self) -> Codec:
        """Returns a codec for lists of this codec's values, as a `ListStateStore` stores them."""
        encode, decode = self.encode_value, self.decode_value
        return replace(
            self,
            encode_value=lambda values: join_elements(map(encode, values)),
            decode_value=lambda data: [decode(element) for element in split_elements(data)],
        )

    def with_keys(self, kind: type) -> Codec:
        """Returns a codec for keys of a dataclass or named tuple, stored as tuples of their fields.

        Raises:
            UsageError: The class is neither a dataclass nor a named tuple.
        """
        to_plain, from_plain = _plain(kind, by_name=False)
        encode, decode = self.encode_key, self.decode_key
        return replace(
            self,
            encode_key=lambda key: encode(to_plain(key)),
            decode_key=lambda data: from_plain(decode(data)),
        )


def unencodable(what: str, value: object, *, found: str = "") -> UsageError:
    """Returns the error for a value without an encoding. It names the type, never the value."""
    return UsageError(
        f"encoding {what}",
        found=found or f"its type is {_name(type(value))}, which has no encoding",
        advice="Nothing was written. docs/python-store.md lists the types; a codec adds others.",
    )


def _name(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _plain(kind: type, *, by_name: bool) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    if is_dataclass(kind):
        names = tuple(one.name for one in fields(kind) if one.init)
        optional = {
            one.name
            for one in fields(kind)
            if one.default is not MISSING or one.default_factory is not MISSING
        }
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = tuple(kind._fields)
        optional = set(getattr(kind, "_field_defaults", {}))
    else:
        raise UsageError(
            "making a codec",
            found=f"{_name(kind)} is neither a dataclass nor a named tuple",
            advice="Give such a class, or a Codec with functions of your own.",
        )

    def to_plain(value: Any) -> Any:
        if type(value) is not kind:
            raise unencodable(f"a {_name(kind)}", value)
        items = [getattr(value, name) for name in names]
        return dict(zip(names, items, strict=True)) if by_name else tuple(items)

    def from_plain(plain: Any) -> Any:
        found = plain if by_name else dict(zip(names, plain, strict=False))
        missing = [name for name in names if name not in found and name not in optional]
        if missing:
            raise FormatError(
                f"decoding a {_name(kind)}",
                found=f"field '{missing[0]}' is missing from the written row, and has no default",
                advice="Give the field a default.",
            )
        return kind(**{name: found[name] for name in names if name in found})

    return to_plain, from_plain


def _as_bytes(what: str) -> Callable[[Any], bytes]:
    def encode(value: Any) -> bytes:
        if type(value) is bytes:
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        raise unencodable(what, value)

    return encode


def _same(data: bytes) -> bytes:
    return data


def _bytes_prefix(prefix: Any) -> Range:
    encoded = _as_bytes("a prefix")(prefix)
    kept = encoded.rstrip(b"\xff")
    return encoded, kept[:-1] + bytes([kept[-1] + 1]) if kept else None


class _Packers(threading.local):
    """MessagePack packer of each thread: packers are not thread-safe, and costly to create."""

    def __init__(self) -> None:
        self.pack = msgpack.Packer(use_bin_type=True, strict_types=True, default=_default).pack


def _default(value: object) -> object:
    if type(value) is tuple:
        return list(value)
    if type(value) is int:
        raise unencodable("a value", value, found="it has a whole number of more than 64 bits")
    raise unencodable("a value", value)


_packers = _Packers()


def _pack(value: Any) -> bytes:
    try:
        packed: bytes = _packers.pack(value)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        # `_default` rejects unknown types; only broken text, deep nesting and large sizes remain.
        broken = isinstance(error, UnicodeEncodeError)
        found = (
            "a text that UTF-8 cannot encode" if broken else "nesting or a size that is too large"
        )
        raise unencodable("a value", value, found=f"its {_name(type(value))} has {found}") from None
    return packed


def _unpack(data: bytes) -> Any:
    try:
        try:
            return msgpack.unpackb(data, raw=False, strict_map_key=False)
        except TypeError:  # A list cannot be the key of a dict, a tuple can.
            return msgpack.unpackb(
                data, raw=False, strict_map_key=False, object_pairs_hook=_with_tuples
            )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise FormatError("decoding a value", found="the bytes are not MessagePack") from error


def _with_tuples(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    return {_as_tuple(key): value for key, value in pairs}


def _as_tuple(key: Any) -> Any:
    return tuple(map(_as_tuple, key)) if type(key) is list else key


RAW = Codec("raw", _as_bytes("a key"), _same, _as_bytes("a value"), _same, _bytes_prefix)
"""Keys and values are bytes; keys are ordered as unsigned bytes."""

MSGPACK = Codec("msgpack", encode_key, decode_key, _pack, _unpack, prefix_range)
"""Keys are plain Python values in their natural order; values are any that MessagePack can hold."""
