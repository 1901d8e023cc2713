"""Segments with one ordered family, many rows at a time (docs/format.md, sections 4.4 and 10).

Says the same as `segment`, which goes row by row and knows every family: a test holds the two
together. Here a block is packed and unpacked in one go, and rows are not checked one by one.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]  # the package ships no types

from redis_state.errors import FormatError, InternalError
from redis_state.format import block, header
from redis_state.format.bucketing import BYTES_A_BUCKET, ROWS_A_BUCKET
from redis_state.format.entry import Entry, Segment
from redis_state.format.header import Family, Header
from redis_state.format.packing import EXT_APPENDED
from redis_state.format.rows import Appended, Value, stored_key
from redis_state.format.segment import checksum

FAMILY_ID = 0
PREFIX = stored_key(FAMILY_ID, b"")
"""What every stored key of the family begins with."""

_ROW_BYTES = 10

Rows = Mapping[bytes, bytes | None]
"""Values by stored key; ``None`` is removed."""


_NONE: Final[dict[bytes, bytes]] = {}


class _Packers(threading.local):
    def __init__(self) -> None:
        self.pack = msgpack.Packer(use_bin_type=True).pack


_packers = _Packers()


@dataclass(frozen=True, slots=True)
class Written:
    """A segment, ready to be stored.

    Attributes:
        fields: Blocks by their names, the header included.
        raw_bytes: About what its rows take before compression.
    """

    fields: dict[str, bytes]
    entry: Entry
    raw_bytes: int


def write(
    ident: str,
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    *,
    ref: str,
    live: int,
    family: Family | None,
    appended: Mapping[bytes, bytes | bytearray] = _NONE,
    complete: bool = False,
) -> Written:
    """The segment of these rows.

    Args:
        keys: Stored keys in ascending order.
        values: Of these keys; ``None`` is removed.
        ref: As `Entry`.
        live: As `Entry`.
        family: Written into the header; ``None`` if the version below has it.
        appended: What is new at the end of values of which the rest is in the version below.
        complete: As `Entry`; then the family is needed.

    Raises:
        InternalError: The keys are not in ascending order.
    """
    fields: dict[str, bytes] = {}
    firsts: list[bytes] = []
    raw_bytes = 0
    for first, payload in _payloads(keys, values, appended):
        name = block_name(len(firsts))
        fields[name] = block.encode(ident, name, payload)
        firsts.append(first)
        raw_bytes += len(payload)
    head = Header(
        families=None if family is None else (family,),
        ordered={FAMILY_ID: tuple(firsts)} if firsts else {},
    )
    if not head.empty:
        fields[header.FIELD] = block.encode(ident, header.FIELD, header.encode(head))
    entry = Entry(
        ref,
        rows=len(keys),
        live=live,
        blocks=len(fields),
        bytes=sum(map(len, fields.values())),
        buckets=1,
        checksum=checksum(fields),
        complete=complete,
        header=not head.empty,
    )
    return Written(fields, entry, raw_bytes)


def _payloads(
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    appended: Mapping[bytes, bytes | bytearray],
) -> Iterator[tuple[bytes, bytes]]:
    """First key and payload of each block: about 128 rows or 16 KiB, whichever comes first."""
    before = b""
    for start in range(0, len(keys), ROWS_A_BUCKET):
        part = keys[start : start + ROWS_A_BUCKET]
        # Nobody could read the version, and its commit would have been reported as done.
        if not (before < part[0] and all(map(operator.lt, part, part[1:]))):
            raise InternalError("writing rows", found="their keys are not in ascending order")
        before = part[-1]
        some: Sequence[Any] = values[start : start + ROWS_A_BUCKET]
        if appended:
            some = _ends(part, some, appended)
        payload = _packed(part, some)
        if len(payload) <= BYTES_A_BUCKET:
            yield part[0], payload
        else:
            for low, high in _cuts(part, some):
                yield part[low], _packed(part[low:high], some[low:high])


def _packed(keys: Sequence[bytes], values: Sequence[Any]) -> bytes:
    flat: list[Any] = [None] * (2 * len(keys))
    flat[::2] = keys
    flat[1::2] = values
    payload: bytes = _packers.pack(flat)
    return payload


def _ends(
    keys: Sequence[bytes], values: Sequence[Any], appended: Mapping[bytes, bytes | bytearray]
) -> list[Any]:
    return [
        msgpack.ExtType(EXT_APPENDED, bytes(appended[key])) if key in appended else value
        for key, value in zip(keys, values, strict=True)
    ]


def _cuts(keys: Sequence[bytes], values: Sequence[Any]) -> Iterator[tuple[int, int]]:
    first, size = 0, 0
    for at, (key, value) in enumerate(zip(keys, values, strict=True)):
        data = value.data if type(value) is msgpack.ExtType else value or b""
        own = len(key) + len(data) + _ROW_BYTES
        if at > first and size + own > BYTES_A_BUCKET:
            yield first, at
            first, size = at, 0
        size += own
    yield first, len(keys)


@dataclass(frozen=True, slots=True)
class Index:
    """What the header of a segment says.

    Attributes:
        firsts: The first stored key of each block, in ascending order.
    """

    firsts: tuple[bytes, ...]
    head: Header

    @property
    def family(self) -> Family | None:
        """The one family; ``None`` if the segment does not say it."""
        return self.head.families[0] if self.head.families else None


def block_name(number: int) -> str:
    """The field of a block."""
    return f"{FAMILY_ID}/{number}"


def block_names(segment: Segment) -> list[str]:
    """Names of the fields of a segment whose rows all lie in order, without its header."""
    return [block_name(at) for at in range(segment.entry.blocks - segment.entry.header)]


def read_index(segment: Segment, head: Header) -> Index:
    """Where the rows of a segment are.

    Raises:
        FormatError: It has other families, or rows that are not in order.
    """
    families = head.families
    if families is not None and (
        len(families) != 1 or families[0].id != FAMILY_ID or not families[0].ordered
    ):
        raise FormatError(
            f"reading {segment.ident}",
            found="its families are not those of a Python store",
            advice="Read the state of Spark's operators with redis_state.connect.",
        )
    firsts = head.ordered.get(FAMILY_ID, ())
    if len(head.ordered) > bool(firsts) or segment.entry.blocks != len(firsts) + bool(
        segment.entry.header
    ):
        raise FormatError(f"reading {segment.ident}", found="it has blocks that are not in order")
    return Index(firsts, head)


def read_block(
    segment: Segment, index: Index, number: int, raw: bytes, *, lists: bool
) -> tuple[list[bytes], list[Value]]:
    """Stored keys and values of one block; `lists` if values may have been appended.

    Raises:
        FormatError: It is damaged.
    """
    name = block_name(number)
    payload = block.decode(segment.ident, name, raw)
    try:
        items = msgpack.unpackb(payload, raw=False)
        keys, values = items[::2], items[1::2]
        # Comparing something else than bytes with the bytes of the index raises.
        right = (
            len(keys) == len(values) > 0
            and all(map(operator.lt, keys, keys[1:]))
            and keys[0] >= index.firsts[number] >= PREFIX
            and (number + 1 == len(index.firsts) or keys[-1] < index.firsts[number + 1])
            and keys[-1].startswith(PREFIX)
        )
    except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
        raise _bad(segment, name, "its rows are malformed") from error
    if not right:
        raise _bad(segment, name, "its rows are not where they belong")
    kinds = set(map(type, values))
    if kinds == {bytes}:
        return keys, values
    known = {bytes, type(None), msgpack.ExtType} if lists else {bytes, type(None)}
    if segment.snapshot or not kinds <= known:
        raise _bad(segment, name, "a value is none that a Python store has")
    if msgpack.ExtType in kinds:
        values = [_appended(segment, name, value) for value in values]
    return keys, values


def _appended(segment: Segment, name: str, value: Any) -> Value:
    if type(value) is not msgpack.ExtType:
        plain: Value = value
        return plain
    if value.code != EXT_APPENDED:
        raise _bad(segment, name, "a value is none that a Python store has")
    return Appended(value.data)


def _bad(segment: Segment, name: str, found: str) -> FormatError:
    return FormatError(f"reading field {name} of {segment.ident}", found=found)
