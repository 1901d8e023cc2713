"""Verification that every segment named by a manifest is whole (docs/format.md, section 8)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command, script
from redis_state.errors import FormatError, StateError
from redis_state.format.entry import Segment, segments_in
from redis_state.ids import PartitionId
from redis_state.maintain.report import MaintenanceReport, Policy
from redis_state.places.reading import files_of
from redis_state.progress import Progress, silent
from redis_state.protocol import PartitionClient, SegmentGoneError
from redis_state.protocol.foreign import parent_problem
from redis_state.protocol.version_rows import read_whole

SEGMENTS_AT_ONCE = 256
_WHAT = "verifying segments"
_NO_EXPIRY, _NO_KEY = -1, -2
_PARTS = 10
_LOG = logging.getLogger("redis_state.maintain")

_Counted = tuple[Segment, int, int]
"""A segment, the expiry of its key in ms, and its number of blocks."""


def verify(
    partition: PartitionClient,
    policy: Policy,
    report: MaintenanceReport,
    *,
    where: str,
    part: int | None = None,
    progress: Progress = silent,
) -> None:
    """Compares the segments of a partition with its manifest, and corrects their expiries.

    Args:
        part: Number of a round, in which blocks are counted of a tenth of the segments, and of the
            others it is seen that they are there. ``None`` counts the blocks of all.
    """
    client, id_ = partition.client, partition.id
    raw, left_ms = client.call(_WHAT, [("HGETALL", keys.meta(id_)), ("PTTL", keys.meta(id_))])
    damaged = f"{where}: an entry of the manifest is damaged"
    named = list(
        segments_in(dict(sorted(raw.items())), lambda error: report.problem(f"{damaged}: {error}"))
    )
    with_key = [one for one in named if one.entry.blocks and one.place is None]
    report.named = len(with_key)
    counted = _counted(partition, with_key, part, progress=progress)
    suspects = _suspects(partition, raw, left_ms, counted, report)
    if suspects:
        # Another maintainer may have removed the segment from the manifest, and its key, meanwhile.
        (now,) = client.call(_WHAT, [("HGETALL", keys.meta(id_))])
        for segment, found in suspects:
            if any(one == segment and one.place is None for one in segments_in(now)):
                parent = parent_problem(client, id_, segment.gen) if segment.gen else None
                report.problem(
                    f"{where}: {segment.ident} has {found} of {segment.entry.blocks} blocks: "
                    + (
                        "look for evictions or deleted keys, and restore the Redis data"
                        if parent is None
                        else "; ".join(parent)
                    )
                )
    if policy.deep:
        lost = {segment for segment, _ in suspects}
        for number, segment in enumerate(named, start=1):
            if segment not in lost:
                _read(partition, segment, report, where=where)
            progress("reading segments", number, len(named))


def _suspects(
    partition: PartitionClient,
    raw: Mapping[bytes, bytes],
    left_ms: int,
    counted: Iterable[_Counted],
    report: MaintenanceReport,
) -> list[tuple[Segment, int]]:
    """Returns the segments that are not whole, each with its number of blocks.

    Files are read only by `redis-state places --verify` and by a deep pass.
    """
    client, id_ = partition.client, partition.id
    suspects: list[tuple[Segment, int]] = []
    for segment, expiry_ms, blocks in counted:
        if blocks != segment.entry.blocks:
            if segment.gen and files_of(client).is_whole(client, id_, segment):
                report.verified += 1
                continue
            suspects.append((segment, blocks))
            continue
        report.verified += 1
        is_current = raw.get(segment.field.encode()) == segment.entry.text.encode()
        is_own = is_current and not segment.gen
        if is_own and (expiry_ms == _NO_EXPIRY) != (left_ms == _NO_EXPIRY):
            report.mended += _mend(client, id_, segment)
    return suspects


def _counted(
    partition: PartitionClient,
    segments: Sequence[Segment],
    part: int | None,
    *,
    progress: Progress,
) -> Iterator[_Counted]:
    for start in range(0, len(segments), SEGMENTS_AT_ONCE):
        chunk = segments[start : start + SEGMENTS_AT_ONCE]
        # Redis loses whole keys, which their expiry shows, too.
        counted = [part is None or (part + number) % _PARTS == 0 for number in range(len(chunk))]
        commands: list[Command] = []
        for segment, is_counted in zip(chunk, counted, strict=True):
            key = keys.segment(partition.id, segment.ident, segment.gen)
            commands += [("PTTL", key), *([("HLEN", key)] if is_counted else [])]
        replies = iter(partition.client.call(_WHAT, commands))
        progress(_WHAT, start + len(chunk), len(segments))
        for segment, is_counted in zip(chunk, counted, strict=True):
            expiry_ms = next(replies)
            present = 0 if expiry_ms == _NO_KEY else segment.entry.blocks
            yield segment, expiry_ms, next(replies) if is_counted else present


def _mend(client: Client, id_: PartitionId, segment: Segment) -> int:
    names = [keys.meta(id_), keys.segment(id_, segment.ident)]
    args = [segment.field, segment.entry.text]
    if client.script("mending an expiry", script("mend"), names, args) != ["OK"]:
        return 0
    _LOG.warning("%s: %s did not have the expiry that the manifest gives it", id_, segment.ident)
    return 1


def _read(
    partition: PartitionClient, segment: Segment, report: MaintenanceReport, *, where: str
) -> None:
    try:
        read_whole(partition.fetch, segment)
    except (FormatError, StateError, SegmentGoneError) as error:
        (now,) = partition.client.call(_WHAT, [("HGETALL", keys.meta(partition.id))])
        if segment in segments_in(now):
            report.problem(f"{where}: {segment.ident} is damaged: {error}")
