"""Live reads of all rows of a partition: the oldest segment is streamed, later changes are held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from redis_state.backend.client import Client
from redis_state.errors import FormatError, UnavailableError
from redis_state.format.block import HEADER_BYTES
from redis_state.format.entry import Segment
from redis_state.format.header import FIELD, Family, Header
from redis_state.format.merge import Changes
from redis_state.format.rows import Appended, Row, Value
from redis_state.format.segment import (
    Content,
    checksum,
    field_names,
    read_header,
    read_rows,
    read_segment,
)
from redis_state.protocol.opening import Opened, reopen

CHUNK_FIELDS = 64
_REOPENS_MAX = 5
_WHAT = "reading all rows"


class _GoneError(Exception):
    """A segment is not whole any more."""


@dataclass(slots=True)
class _Base:
    """The oldest segment, of which only the header is held."""

    segment: Segment
    head: Header
    raw_head: bytes | None


def rows_of(client: Client, opened: Opened) -> Iterator[tuple[bytes, bytes, Sequence[Family]]]:
    """Stored key, value and family table for each live row of a version.

    Raises:
        StateError: A published segment was destroyed.
        FormatError: Blocks are damaged.
        UnavailableError: Maintenance dropped a segment after rows of it were returned.
    """
    for _ in range(_REOPENS_MAX):
        if not opened.segments:
            return
        given = 0
        try:
            for row in _read(client, opened):
                given += 1
                yield row
            return
        except _GoneError:
            if given:
                raise UnavailableError(
                    _WHAT,
                    found="the version was dropped while it was read",
                    advice="Start again, and take the rows faster or keep more versions.",
                    where=str(opened.id),
                ) from None
            opened = reopen(client, [opened])[0]
    raise UnavailableError(_WHAT, found="its segments were replaced again and again")


def families_of(client: Client, partitions: Sequence[Opened]) -> tuple[Family, ...]:
    """The family table of the first of several partitions that has one; empty if none has.

    Raises:
        StateError: A published segment was destroyed.
        FormatError: A header is damaged.
        UnavailableError: Maintenance replaces segments again and again.
    """
    for opened in partitions:
        for _ in range(_REOPENS_MAX):
            try:
                heads = (_base(client, opened, segment).head for segment in opened.segments)
                found = next((head.families for head in heads if head.families is not None), None)
                break
            except _GoneError:
                opened = reopen(client, [opened])[0]
        else:
            raise UnavailableError(
                "reading a family table", found="its segments were replaced again and again"
            )
        if found is not None:
            return found
    return ()


def _read(client: Client, opened: Opened) -> Iterator[tuple[bytes, bytes, Sequence[Family]]]:
    base = _base(client, opened, opened.segments[-1])
    changes = Changes()
    families = base.head.families
    for segment in reversed(opened.segments[:-1]):
        content = _whole(client, opened, segment)
        changes.add(content)
        families = content.families if content.families is not None else families
    if families is None:
        raise FormatError(_WHAT, found="no segment has a family table", where=str(opened.id))
    live = 0
    for key, value in _base_rows(client, opened, base):
        # A removed row of the oldest delta removes nothing, and an append begins a list.
        first = value.data if isinstance(value, Appended) else value
        left = changes.over(key, first) if first is not None else None
        if left is not None:
            live += 1
            yield key, left, families
    for key, change in changes.rest():
        live += 1
        yield key, change, families
    if live != opened.segments[0].entry.live:
        raise FormatError(
            _WHAT,
            found=f"{live} keys are live, not {opened.segments[0].entry.live}",
            where=str(opened.id),
        )


def _base(client: Client, opened: Opened, segment: Segment) -> _Base:
    raw = _raw_header(client, opened, segment)
    return _Base(segment, read_header(segment, raw), raw)


def _raw_header(client: Client, opened: Opened, segment: Segment) -> bytes | None:
    if not segment.entry.header:
        return None
    key = opened.key(segment)
    raw, count = client.call(_WHAT, [("HGET", key, FIELD), ("HLEN", key)])
    if count != segment.entry.blocks:
        raise _GoneError
    return client.opened(key, [FIELD], [raw])[0]


def _fields(
    client: Client, opened: Opened, segment: Segment, head: Header
) -> Iterator[dict[str, bytes]]:
    """The fields of a segment but its header, chunk by chunk in the order in which they apply."""
    if not segment.entry.blocks:
        return
    names = field_names(segment, head)
    key = opened.key(segment)
    while chunk := list(islice(names, CHUNK_FIELDS)):
        values, count = client.call(_WHAT, [("HMGET", key, *chunk), ("HLEN", key)])
        if count != segment.entry.blocks:
            raise _GoneError
        blocks = client.opened(key, chunk, values)
        yield {name: block for name, block in zip(chunk, blocks, strict=True) if block is not None}


def _whole(client: Client, opened: Opened, segment: Segment) -> Content:
    raw = _raw_header(client, opened, segment)
    fields = {} if raw is None else {FIELD: raw}
    for chunk in _fields(client, opened, segment, read_header(segment, raw)):
        fields.update(chunk)
    return read_segment(segment, fields)


def _base_rows(client: Client, opened: Opened, base: _Base) -> Iterator[Row]:
    """Rows of the base, each key once: a later part of a bucket overrides an earlier one."""
    segment = base.segment
    heads: dict[str, bytes] = {}
    bucket: dict[bytes, Value] = {}
    last: str | None = None
    for chunk in _fields(client, opened, segment, base.head):
        for name, raw in chunk.items():
            heads[name] = raw[:HEADER_BYTES]
            place = name.partition(".")[0]
            if place != last:
                yield from bucket.items()
                bucket, last = {}, place
            bucket.update(read_rows(segment, name, raw))
    yield from bucket.items()
    if base.raw_head is not None:
        heads[FIELD] = base.raw_head[:HEADER_BYTES]
    if len(heads) != segment.entry.blocks or checksum(heads) != segment.entry.checksum:
        raise FormatError(
            f"reading {segment.ident}", found="its fields differ from its entry's checksum"
        )
