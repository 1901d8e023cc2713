"""Regions of files, one for each segment (docs/format.md, section 17). Does no I/O."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped]  # the package ships no types

from redis_state.errors import FormatError, InternalError
from redis_state.format import block
from redis_state.format.entry import parse_entry
from redis_state.format.hash_filter import FilterMaker, check_filter
from redis_state.format.header import FIELD as HEADER
from redis_state.format.signature import BlockSigner

MAGIC = b"rs-seg01"
CHUNK = 64
"""Buckets or blocks of one directory block."""
HEAD_BYTES_MAX = 1 << 20
"""Length up to which the head of a region contains the directory."""
TAIL = "t"
_END = struct.Struct(">I8s")
_LEB_BITS = 7
_LEB_BYTES_MAX = 6

Span = tuple[int, int]
"""Offset in the region, and length."""


@dataclass(frozen=True, slots=True)
class RegionOwner:
    """A segment and the partition that it belongs to, as the tail of its region names them.

    Attributes:
        key: Redis key of the segment, which signatures cover.
    """

    field: str
    entry: str
    ident: str
    gen: str
    operator: int
    partition: int
    store: str
    key: str

    def tail(self, header: int, at: Sequence[tuple[str, int, int]]) -> dict[str, Any]:
        """Returns the content of the tail."""
        return {
            "field": self.field,
            "entry": self.entry,
            "gen": self.gen,
            "operator": self.operator,
            "partition": self.partition,
            "store": self.store,
            "h": header,
            "at": [word for one in at for word in one],
        }


class _Group:
    """Blocks that one directory block describes; `first` is the number of the first one."""

    def __init__(self, name: str, first: int, offset: int) -> None:
        self.name = name
        self._first, self._offset = first, offset
        self._lengths: list[int] = []
        self._parts: list[Any] = []
        self.filter: bytes | None = None

    def add(self, number: int, part: int, length: int) -> None:
        """Adds the length of a block, or of a further part of the last one."""
        at = number - self._first
        self._lengths += [0] * (at + 1 - len(self._lengths))
        if part == 0:
            self._lengths[at] = length
        elif self._parts and self._parts[-2] == number:
            self._parts[-1].append(length)
        else:
            self._parts += [number, [length]]

    @property
    def payload(self) -> dict[str, Any]:
        """Content of the directory block."""
        found: dict[str, Any] = {
            "o": self._offset,
            "l": b"".join(map(_leb128, self._lengths)),
        }
        if self._parts:
            found["p"] = self._parts
        if self.filter is not None:
            found["b"] = self.filter
        return found


def sort_key(name: str) -> tuple[int, int, int]:
    """Returns the position of a field in a region.

    Raises:
        FormatError: A field of a segment cannot have this name.
    """
    family, slash, rest = name.rpartition("/")
    number, dot, part = rest.partition(".")
    words = [one for one in (family, number, part) if one]
    is_known = all(one.isdigit() and one.isascii() for one in words) and bool(number)
    if not is_known or (slash and (dot or not family)) or (dot and not part):
        raise FormatError("reading a segment", found="a field has a name that is not known")
    return (int(family) if slash else -1, int(number), int(part) if dot else 0)


class RegionWriter:
    """Builds a region whose blocks come one after the other, in the order of a region.

    Args:
        ident: Part of the segment's key after ``P:``.
        key: Redis key of the segment, which signatures cover.
        buckets: Number of buckets of the segment; ``None`` if it is not known yet. Then no filters
            are written.
        compress: See `block.encode`.
    """

    def __init__(
        self,
        ident: str,
        key: str,
        *,
        buckets: int | None = None,
        signer: BlockSigner | None = None,
        compress: bool = True,
    ) -> None:
        self._ident, self._key = ident, key
        self._signer, self._compress = signer, compress
        self._filters = None if buckets is None else FilterMaker(ident, buckets, self._plain)
        self._offset = len(MAGIC)
        self._last = (-2, 0, 0)
        self._directory: list[tuple[str, bytes]] = []
        self._group: _Group | None = None

    def add(self, name: str, value: bytes) -> None:
        """Notes the value of a field, which follows the values before it.

        Raises:
            FormatError: The name is unknown.
            InternalError: The field does not come after those before it.
        """
        at = sort_key(name)
        if at <= self._last:
            raise InternalError("writing a region", found=f"field {name} comes out of order")
        self._last = at
        family, number, part = at
        called = _directory(family, number)
        if self._group is None or self._group.name != called:
            self._end_group()
            self._group = _Group(called, number // CHUNK * CHUNK, self._offset)
        self._group.add(number, part, len(value))
        self._offset += len(value)
        if self._filters is not None and family < 0:
            self._filters.add(name, number, value)

    def end(self, owner: RegionOwner, header: bytes) -> list[bytes]:
        """Returns the rest of the region in one or two pieces; the last one is its head.

        Args:
            header: Value of the header field; empty without one.
        """
        self._end_group()
        at = []
        for name, raw in self._directory:
            at.append((name, self._offset, len(raw)))
            self._offset += len(raw)
        tail = self._sealed(TAIL, owner.tail(len(header), at))
        end = header + tail + _END.pack(len(tail), MAGIC)
        listed = b"".join(raw for _, raw in self._directory)
        return [listed + end] if len(listed) + len(end) <= HEAD_BYTES_MAX else [listed, end]

    def _end_group(self) -> None:
        if self._group is not None:
            name = self._group.name
            if self._filters is not None and "/" not in name:
                self._group.filter = self._filters.end()
            self._directory.append((name, self._sealed(name, self._group.payload)))
            self._group = None

    def _plain(self, name: str, value: bytes) -> bytes:
        return value if self._signer is None else self._signer.opened(self._key, name, value)

    def _sealed(self, name: str, payload: Mapping[str, Any]) -> bytes:
        packed = msgpack.packb(payload, use_bin_type=True)
        raw = block.encode(self._ident, name, packed, compress=self._compress)
        return raw if self._signer is None else self._signer.signed(self._key, name, raw)


def write_region(
    owner: RegionOwner,
    values: Mapping[str, bytes],
    *,
    signer: BlockSigner | None = None,
    compress: bool = True,
    filters: bool = True,
) -> Iterator[bytes]:
    """Yields the bytes of a region; the last piece is its head.

    Args:
        values: Values of all fields as Redis holds them, signatures included.
        compress: See `block.encode`.
        filters: Whether the directory has filters of the buckets.

    Raises:
        FormatError: A field has an unknown name.
    """
    buckets = parse_entry(owner.entry).buckets if filters else None
    writer = RegionWriter(owner.ident, owner.key, buckets=buckets, signer=signer, compress=compress)
    yield MAGIC
    for name in sorted((name for name in values if name != HEADER), key=sort_key):
        value = values[name]
        writer.add(name, value)
        yield value
    yield from writer.end(owner, values.get(HEADER, b""))


def _directory(family: int, number: int) -> str:
    """Returns the name of the directory block that describes a bucket or block."""
    chunk = f"i{number // CHUNK}"
    return chunk if family < 0 else f"{family}/{chunk}"


def _leb128(number: int) -> bytes:
    found = bytearray()
    while True:
        number, low = number >> _LEB_BITS, number & 0x7F
        if not number:
            found.append(low)
            return bytes(found)
        found.append(low | 0x80)


@dataclass(frozen=True, slots=True)
class RegionHead:
    """The described end of a region.

    Attributes:
        header: The value of the header field; ``None`` without one.
        at: Place of each directory block, by name.
        known: Values of the directory blocks that the head contains, by name.
    """

    owner: RegionOwner
    header: bytes | None
    at: Mapping[str, Span]
    known: Mapping[str, bytes]

    @property
    def fields(self) -> dict[str, bytes]:
        """Values that the head contains besides its tail, by name."""
        return {**self.known, **({} if self.header is None else {HEADER: self.header})}

    def directory_of(self, name: str) -> str | None:
        """Returns the name of the directory block that describes a field; ``None`` without one.

        Raises:
            FormatError: A field of a segment cannot have this name.
        """
        family, number, _ = sort_key(name)
        called = _directory(family, number)
        return called if called in self.at else None

    def spans(self, called: str, raw: bytes, signer: BlockSigner | None) -> dict[str, Span]:
        """Returns the place of each field that a directory block describes.

        Raises:
            FormatError: The directory block is damaged.
        """
        found = _opened(self.owner, called, raw, signer)
        self._filter(called, found)
        parts = found.get("p", [])
        end = min((offset for offset, _ in self.at.values()), default=0)
        family, _, chunk = called.rpartition("/")
        offset, packed = found.get("o"), found.get("l")
        if not isinstance(packed, bytes) or not isinstance(offset, int):
            raise _bad(self.owner, "a directory block is malformed")
        if not isinstance(parts, list) or len(parts) % 2:
            raise _bad(self.owner, "a directory block is malformed")
        further = _parts(self.owner, parts)
        spans: dict[str, Span] = {}
        lengths = _lengths(self.owner, packed)
        for number, length in enumerate(lengths, int(chunk[1:]) * CHUNK):
            name = f"{family}/{number}" if family else str(number)
            if length:
                spans[name] = (offset, length)
                offset += length
            for part, size in enumerate(further.pop(number, ()), 1):
                spans[f"{name}.{part}"] = (offset, size)
                offset += size
        if further or len(lengths) > CHUNK or offset > end or found["o"] < len(MAGIC):
            raise _bad(self.owner, "a directory block has a length that its region cannot have")
        return spans

    def filter(self, called: str, raw: bytes, signer: BlockSigner | None) -> bytes | None:
        """Returns the filter of the buckets that a directory block describes; ``None`` without one.

        Raises:
            FormatError: The directory block is damaged.
        """
        return self._filter(called, _opened(self.owner, called, raw, signer))

    def _filter(self, called: str, found: Mapping[str, Any]) -> bytes | None:
        if "b" not in found:
            return None
        if "/" in called:
            raise _bad(self.owner, "a directory block of ordered rows has a filter")
        return check_filter(found["b"])


def read_head(
    owner: RegionOwner, raw: bytes, *, region_bytes: int, signer: BlockSigner | None = None
) -> RegionHead:
    """Decodes the head of a region.

    Args:
        owner: The expected segment.
        raw: The end of the region.
        region_bytes: Length of the region.

    Raises:
        FormatError: The bytes are damaged, or the region is of another segment.
    """
    if len(raw) < _END.size:
        raise _bad(owner, "its head is too short")
    length, magic = _END.unpack_from(raw, len(raw) - _END.size)
    begin = len(raw) - _END.size - length
    if magic != MAGIC or begin < 0:
        raise _bad(owner, "its end is not that of a region")
    tail = _opened(owner, TAIL, raw[begin : begin + length], signer)
    header, flat = tail.get("h"), tail.get("at")
    if not isinstance(header, int) or not isinstance(flat, list) or len(flat) % 3:
        raise _bad(owner, "its tail is malformed")
    at = _places(owner, flat)
    if tail != owner.tail(header, [(name, *span) for name, span in at.items()]):
        raise _bad(owner, "it is the region of another segment")
    start = region_bytes - len(raw)
    if not 0 <= header <= begin or any(
        offset < len(MAGIC) or offset + size > start + begin - header
        for offset, size in at.values()
    ):
        raise _bad(owner, "its tail names places outside of the region")
    known = {
        name: raw[offset - start : offset - start + size]
        for name, (offset, size) in at.items()
        if offset >= start
    }
    return RegionHead(owner, raw[begin - header : begin] if header else None, at, known)


def read_region(
    owner: RegionOwner, raw: bytes, *, signer: BlockSigner | None = None
) -> dict[str, bytes]:
    """Decodes a whole region: the values of all fields as Redis has them.

    Raises:
        FormatError: The bytes are damaged, or the region is of another segment.
    """
    if raw[: len(MAGIC)] != MAGIC:
        raise _bad(owner, "it does not begin as a region")
    head = read_head(owner, raw, region_bytes=len(raw), signer=signer)
    found: dict[str, bytes] = {}
    for called, directory in head.known.items():
        for name, (offset, length) in head.spans(called, directory, signer).items():
            found[name] = raw[offset : offset + length]
    if head.header is not None:
        found[HEADER] = head.header
    return found


def _opened(
    owner: RegionOwner, name: str, raw: bytes, signer: BlockSigner | None
) -> dict[str, Any]:
    plain = raw if signer is None else signer.opened(owner.key, name, raw)
    try:
        found = msgpack.unpackb(block.decode(owner.ident, name, plain), strict_map_key=True)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise _bad(owner, f"its block {name} is malformed") from error
    if not isinstance(found, dict):
        raise _bad(owner, f"its block {name} is malformed")
    return found


def _lengths(owner: RegionOwner, packed: bytes) -> list[int]:
    found, number, shift = [], 0, 0
    for byte in packed:
        number |= (byte & 0x7F) << shift
        shift += _LEB_BITS
        if byte & 0x80:
            if shift >= _LEB_BITS * _LEB_BYTES_MAX:
                raise _bad(owner, "a length of its directory is malformed")
            continue
        found.append(number)
        number = shift = 0
    if shift:
        raise _bad(owner, "a length of its directory is cut")
    return found


def _parts(owner: RegionOwner, flat: list[Any]) -> dict[int, list[int]]:
    found = {}
    for number, lengths in zip(flat[::2], flat[1::2], strict=True):
        is_known = isinstance(number, int) and isinstance(lengths, list)
        if not is_known or not all(isinstance(one, int) and one > 0 for one in lengths):
            raise _bad(owner, "the parts of a bucket are malformed")
        found[number] = lengths
    return found


def _places(owner: RegionOwner, flat: list[Any]) -> dict[str, Span]:
    found: dict[str, Span] = {}
    for name, offset, size in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
        numbers = isinstance(offset, int) and isinstance(size, int) and size > 0
        if not isinstance(name, str) or not numbers or name in found or not _is_directory(name):
            raise _bad(owner, "its tail is malformed")
        found[name] = (offset, size)
    return found


def _is_directory(name: str) -> bool:
    family, slash, chunk = name.rpartition("/")
    digits: Callable[[str], bool] = lambda text: text.isdigit() and text.isascii()  # noqa: E731
    return chunk[:1] == "i" and digits(chunk[1:]) and (not slash or digits(family))


def _bad(owner: RegionOwner, found: str) -> FormatError:
    return FormatError(f"reading {owner.ident} from a file", found=found)
