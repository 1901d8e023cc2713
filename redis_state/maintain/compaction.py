"""Snapshots of a version from its segments in Redis, without a process that has it loaded."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence

from redis_state.format.entry import Entry, Segment
from redis_state.format.header import FIELD
from redis_state.format.merge import merge
from redis_state.format.segment import (
    Content,
    SegmentWriter,
    field_names,
    read_header,
    read_segment,
)
from redis_state.protocol import Opened, PartitionClient, SegmentGoneError

DELTAS_MIN = 4
DELTAS_MAX = 200
_LOG = logging.getLogger("redis_state.maintain")


def deltas_of(segments: Sequence[Segment]) -> Sequence[Segment]:
    """What is applied over the snapshot when `open` lists these segments, newest first."""
    return segments[:-1] if segments and segments[-1].snapshot else segments


def is_due(segments: Sequence[Segment], *, patience: int = 1) -> bool:
    """Whether a version needs a snapshot (docs/design.md, section 8).

    Args:
        segments: As `open` lists them, newest first.
        patience: More than 1 leaves it that many times as long to the process that serves it.
    """
    deltas = deltas_of(segments)
    base_bytes = segments[-1].entry.bytes if len(deltas) < len(segments) else 0
    if len(deltas) < DELTAS_MIN * patience:
        return False
    weight = sum(delta.entry.bytes for delta in deltas)
    return weight * 2 > base_bytes * patience or len(deltas) >= DELTAS_MAX * patience


def add_snapshot(partition: PartitionClient, opened: Opened) -> Entry | None:
    """Add a snapshot of an opened version.

    Returns:
        Its manifest entry; ``None`` if another one was faster or a segment was replaced meanwhile.

    Raises:
        FormatError: A segment is damaged.
    """
    pin = opened.pin
    try:
        version = merge(
            (segment, read_whole(partition, segment)) for segment in reversed(opened.segments)
        )
    except SegmentGoneError as error:
        _LOG.info("%s: no snapshot now: %s was replaced", partition.id, error.segment.ident)
        return None
    writer = uuid.uuid4().hex
    segment = SegmentWriter(f"s:{pin.version}:{writer}", tuple(version.families.values()))
    live = len(version.rows)
    segment.add(version.rows)
    version.rows.clear()
    entry = segment.finish(ref=writer, live=live, with_families=True)
    if not partition.add_snapshot(pin, writer, entry, segment.fields):
        return None
    _LOG.info(
        "%s: added a snapshot of version %d: %d rows, %d bytes",
        partition.id,
        pin.version,
        entry.rows,
        entry.bytes,
    )
    return entry


def read_whole(partition: PartitionClient, segment: Segment) -> Content:
    """All that a segment says.

    Raises:
        SegmentGoneError: It is not whole any more.
        FormatError: It is damaged.
    """
    if not segment.entry.blocks:
        return read_segment(segment, {})
    fields: dict[str, bytes] = {}
    raw = None
    if segment.entry.header:
        (raw,) = partition.fetch(segment, [FIELD])
        if raw is not None:
            fields[FIELD] = raw
    names = list(field_names(segment, read_header(segment, raw)))
    blocks = zip(names, partition.fetch(segment, names), strict=True)
    fields.update({name: block for name, block in blocks if block is not None})
    return read_segment(segment, fields)
