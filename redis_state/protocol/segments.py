"""Sends and reads the fields of segments, in pieces of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.errors import FormatError
from redis_state.format.chunks import CHUNK_BYTES_MAX, CHUNK_FIELDS_MAX
from redis_state.format.entry import Segment
from redis_state.ids import PartitionId
from redis_state.places.reading import files_of
from redis_state.protocol.hot_runs import leave_out

FieldsToRead = tuple[PartitionId, Segment, Sequence[str]]
"""A segment and the names of some of its fields."""

_READ_BYTES_MAX = 16 << 20

T = TypeVar("T")


class SegmentGoneError(Exception):
    """A segment is no longer complete: maintenance replaced it, or it was destroyed."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment.ident)
        self.segment = segment


def fetch(
    client: Client, id_: PartitionId, segment: Segment, names: Sequence[str]
) -> list[bytes | None]:
    """Reads fields of a segment; ``None`` for a missing field.

    Raises:
        SegmentGoneError: The segment is no longer complete.
    """
    at_once = _fields_at_once(segment) * (_READ_BYTES_MAX // CHUNK_BYTES_MAX)
    found: list[bytes | None] = []
    for start in range(0, len(names), at_once):
        part = id_, segment, names[start : start + at_once]
        (values,) = fetch_many(client, f"reading {segment.ident}", [part])
        if values is None:
            raise SegmentGoneError(segment)
        found += values
    return found


def fetch_many(
    client: Client, attempted: str, wanted: Iterable[FieldsToRead]
) -> Iterator[list[bytes | None] | None]:
    """Yields fields of segments, read in pipelines of about 16 MiB; ``None`` for a missing field.

    Yields:
        ``None`` for a segment that is no longer complete.
    """
    for group in _groups(wanted, _bytes_about):
        in_redis = iter(_from_redis(client, attempted, [one for one in group if _has_key(one[1])]))
        for one in group:
            segment = one[1]
            values = next(in_redis) if _has_key(segment) else None
            if values is None and segment.entry.blocks:
                values = _from_file(client, attempted, one)
            yield None if values is None else _opened(client, one, values)


def _opened(
    client: Client, wanted: FieldsToRead, values: list[bytes | None]
) -> list[bytes | None] | None:
    """Verifies fields that were read; ``None`` for a damaged hot run, which no version needs."""
    id_, segment, names = wanted
    try:
        return client.opened(keys.segment(id_, segment.ident, segment.gen), names, values)
    except FormatError as error:
        if leave_out([segment], error, where=id_) is None:
            raise
        return None


def _has_key(segment: Segment) -> bool:
    return segment.place is None


def _from_redis(
    client: Client, attempted: str, wanted: Sequence[FieldsToRead]
) -> list[list[bytes | None] | None]:
    """Returns the fields of each segment as Redis has them; ``None`` for an incomplete one."""
    commands: list[Command] = []
    for id_, segment, names in wanted:
        key, each = keys.segment(id_, segment.ident, segment.gen), _fields_at_once(segment)
        commands += [("HMGET", key, *names[at : at + each]) for at in range(0, len(names), each)]
        # HLEN comes last: if the key vanishes in between, a missing field is not taken for an
        # empty bucket.
        commands.append(("HLEN", key))
    replies = iter(client.call(attempted, commands) if commands else ())
    found: list[list[bytes | None] | None] = []
    for _, segment, names in wanted:
        values: list[bytes | None] = []
        while len(values) < len(names):
            values += next(replies)
        found.append(values if next(replies) == segment.entry.blocks else None)
    return found


def _from_file(client: Client, attempted: str, wanted: FieldsToRead) -> list[bytes | None] | None:
    """Returns fields of a segment that lies in a file, or has moved; ``None`` if it is gone."""
    id_, segment, names = wanted

    def in_redis() -> dict[str, bytes] | None:
        (values,) = _from_redis(client, attempted, [wanted])
        if values is None:
            return None
        return {name: raw for name, raw in zip(names, values, strict=True) if raw is not None}

    found = files_of(client).read(client, id_, segment, names, in_redis)
    return None if found is None else [found.get(name) for name in names]


def _bytes_about(wanted: FieldsToRead) -> int:
    _, segment, names = wanted
    return len(names) * segment.entry.bytes // max(1, segment.entry.blocks)


def _fields_at_once(segment: Segment) -> int:
    """Returns the number of fields of about 1 MiB together."""
    blocks = max(1, segment.entry.blocks)
    return max(1, min(CHUNK_BYTES_MAX * blocks // max(1, segment.entry.bytes), CHUNK_FIELDS_MAX))


def fetch_whole(
    client: Client, id_: PartitionId, segments: Sequence[Segment]
) -> list[dict[str, bytes]]:
    """Reads all fields of several small segments of a partition, in few round trips.

    Raises:
        SegmentGoneError: A segment is no longer complete.
        FormatError: A field has an unknown name.
    """
    return list(fetch_each(client, [(id_, segment) for segment in segments]))


def fetch_each(
    client: Client, wanted: Sequence[tuple[PartitionId, Segment]]
) -> Iterator[dict[str, bytes]]:
    """Yields all fields of small segments, also of several partitions, a few segments at a time.

    Raises:
        SegmentGoneError: A segment is no longer complete.
        FormatError: A field has an unknown name.
    """
    for group in _groups(wanted, lambda one: one[1].entry.bytes):
        what = f"reading {len(group)} segments"
        in_redis = iter(_all_from_redis(client, what, [one for one in group if _has_key(one[1])]))
        for id_, segment in group:
            values = next(in_redis) if _has_key(segment) else None
            if values is None and segment.entry.blocks:
                values = _all_from_file(client, id_, segment)
            if values is None:
                raise SegmentGoneError(segment)
            names = list(values)
            blocks = _opened(client, (id_, segment, names), list(values.values()))
            if blocks is None:
                raise SegmentGoneError(segment)
            pairs = zip(names, blocks, strict=True)
            yield {name: raw for name, raw in pairs if raw is not None}


def _all_from_file(client: Client, id_: PartitionId, segment: Segment) -> dict[str, bytes] | None:
    """Returns all fields of a segment that lies in a file, or has moved; ``None`` if it is gone."""
    wanted = [(id_, segment)]

    def in_redis() -> dict[str, bytes] | None:
        return _all_from_redis(client, f"reading {segment.ident}", wanted)[0]

    return files_of(client).read(client, id_, segment, None, in_redis)


def _all_from_redis(
    client: Client, attempted: str, wanted: Sequence[tuple[PartitionId, Segment]]
) -> list[dict[str, bytes] | None]:
    """Returns all fields of each segment as Redis has them; ``None`` for an incomplete one."""
    commands = [("HGETALL", keys.segment(id_, one.ident, one.gen)) for id_, one in wanted]
    replies = client.call(attempted, commands) if commands else []
    return [
        dict(zip(_names(segment, reply), reply.values(), strict=True))
        if len(reply) == segment.entry.blocks
        else None
        for (_, segment), reply in zip(wanted, replies, strict=True)
    ]


def _groups(wanted: Iterable[T], bytes_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Splits reads into pipelines of about 16 MiB."""
    group: list[T] = []
    size = 0
    for one in wanted:
        own = bytes_of(one)
        if group and size + own > _READ_BYTES_MAX:
            yield group
            group, size = [], 0
        group.append(one)
        size += own
    if group:
        yield group


def _names(segment: Segment, fields: Iterable[bytes]) -> list[str]:
    try:
        return [name.decode("ascii") for name in fields]
    except UnicodeDecodeError as error:
        raise FormatError(
            f"reading {segment.ident}", found="a field has a name that the format does not know"
        ) from error
