"""Estimates the memory of rows, from the manifests and a few blocks."""

from __future__ import annotations

from collections.abc import Sequence

from redis_state.backend.client import Client
from redis_state.format.block import HEADER_BYTES, raw_length
from redis_state.protocol.opening import Opened
from redis_state.reader.block_cache import ENTRY_BYTES, ROW_BYTES

_COMPRESSION = 4
"""Usual ratio of a block's payload to its compressed bytes."""

_SAMPLE_MAX = 8
_SAMPLE_BYTES_MAX = 1 << 20
_WHAT = "measuring rows"


def decoded_bytes(opened: Opened) -> int:
    """Returns the approximate bytes of all blocks of a version, decoded and cached."""
    entries = [segment.entry for segment in opened.segments]
    return sum(
        ENTRY_BYTES * one.blocks + ROW_BYTES * one.rows + _COMPRESSION * one.bytes
        for one in entries
    )


def mean_row_bytes(client: Client, partitions: Sequence[Opened]) -> int:
    """Returns the approximate bytes of a row in memory, averaged over a version.

    Takes one round trip: some blocks of the largest segment show the compression ratio. Buckets are
    filled by hash, so the first ones are typical.

    Raises:
        UnavailableError: The server gives no answer.
        FormatError: A block is damaged.
    """
    entries = [segment.entry for opened in partitions for segment in opened.segments]
    size, rows = sum(entry.bytes for entry in entries), sum(entry.rows for entry in entries)
    return ROW_BYTES + round(_compression(client, partitions) * size / max(1, rows))


def _compression(client: Client, partitions: Sequence[Opened]) -> float:
    places = [
        (opened, segment)
        for opened in partitions
        for segment in opened.segments
        if segment.place is None
    ]
    opened, segment = max(places, key=lambda place: place[1].entry.bytes, default=(None, None))
    if opened is None or segment is None or not segment.entry.blocks:
        return _COMPRESSION
    count = min(_SAMPLE_MAX, _SAMPLE_BYTES_MAX * segment.entry.blocks // segment.entry.bytes)
    if not count:
        return _COMPRESSION
    key, sample = opened.key(segment), [str(bucket) for bucket in range(count)]
    (values,) = client.call(_WHAT, [("HMGET", key, *sample)])
    blocks = client.opened(key, sample, values)
    raws = [raw for raw in blocks if raw is not None and len(raw) > HEADER_BYTES]
    # An ordered family has no buckets, and maintenance may have removed the segment.
    return sum(map(raw_length, raws)) / sum(map(len, raws)) if raws else _COMPRESSION
