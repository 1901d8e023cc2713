"""Live reads of keys, from many partitions at once (docs/format.md, section 7)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from redis_state.backend.client import Client
from redis_state.errors import FormatError
from redis_state.format.header import Family
from redis_state.protocol.opening import Opened, reopen
from redis_state.reader.block_cache import BlockCache
from redis_state.reader.lookup.merged_deltas import read_recent
from redis_state.reader.lookup.segment_part import (
    SegmentPart,
    planned_parts,
    read_parts,
    values_of,
)
from redis_state.reader.reopening import REOPENS_MAX, replaced_again_and_again

_WHAT = "reading a key"

AskedPartition = tuple[Opened, Sequence[bytes]]
"""A partition and the stored keys to look up in it, all of one family."""


@dataclass(frozen=True, slots=True)
class PartitionHits:
    """Result of a look-up in one partition.

    Attributes:
        values: Values of the keys that exist.
        families: The family table of the version.
    """

    opened: Opened
    values: Mapping[bytes, bytes]
    families: tuple[Family, ...]


def look_up(
    client: Client,
    asked: Sequence[AskedPartition],
    *,
    kind: str,
    cache: BlockCache | None = None,
    keep: bool = True,
) -> Iterator[PartitionHits]:
    """Yields the values of stored keys, partition by partition.

    Takes one round trip. A second one reads buckets with parts, or an ordered family, where the
    header names the field of a key. A read of whole deltas takes one more, after which further keys
    take fewer. Maintenance may cause more round trips, cached blocks save them.

    Args:
        keep: Whether to cache the blocks that are read, and in time tables of their rows.
            Else only the rows of the keys are decoded.

    Raises:
        StateError: A published segment was destroyed.
        FormatError: Blocks are damaged.
    """
    blocks = cache or BlockCache()
    left = list(asked) if not keep else []
    if keep:
        for opened, keys in asked:
            known = _known(opened, keys, kind, blocks)
            if known is None:
                left.append((opened, keys))
            else:
                yield known
        if cache is not None and left:
            read_recent(client, left, kind, cache)
    tops = {}
    below = []
    for opened, keys in left:
        top = _top(opened, keys, blocks) if keep else None
        if top is None:
            below.append((opened, keys))
        elif top.is_complete:
            yield top.over(None)
        else:
            tops[opened.id] = top
            below.append((top.below, top.left))
    for found in _read_rows(client, below, kind, blocks, keep=keep):
        top = tops.get(found.opened.id)
        yield found if top is None else top.over(found)


@dataclass(frozen=True, slots=True)
class _Top:
    """Merged changes of the newest segments of a partition, for the keys of a look-up.

    Attributes:
        values: Values of the keys that have one there.
        families: The newest family table there; ``None`` without any.
        below: The partition without these segments.
        left: Keys without a change in these segments.
    """

    opened: Opened
    values: dict[bytes, bytes]
    families: tuple[Family, ...] | None
    below: Opened
    left: Sequence[bytes]

    @property
    def is_complete(self) -> bool:
        """True if the segments below need not be searched."""
        return self.families is not None and not (self.left and self.below.segments)

    def over(self, found: PartitionHits | None) -> PartitionHits:
        """Combines this result with the result of the segments below.

        Args:
            found: May be of other segments, if maintenance has replaced those below.
        """
        if found is None:
            return PartitionHits(self.opened, self.values, self.families or ())
        is_same = found.opened.segments == self.below.segments
        return PartitionHits(
            self.opened if is_same else found.opened,
            {**found.values, **self.values},
            found.families if self.families is None else self.families,
        )


def _top(opened: Opened, keys: Sequence[bytes], cache: BlockCache) -> _Top | None:
    recent = cache.recent(opened.id)
    if recent is None or recent.opened.segments != opened.segments:
        return None
    rows = recent.rows
    values = {key: value for key in keys if isinstance(value := rows.get(key), bytes)}
    left = [key for key in keys if key not in rows] if len(values) < len(keys) else ()
    return _Top(opened, values, recent.families, recent.below, left)


def _known(
    opened: Opened, keys: Sequence[bytes], kind: str, cache: BlockCache
) -> PartitionHits | None:
    """Looks keys up in the cache; ``None`` if it does not have all of the needed blocks."""
    top = _top(opened, keys, cache)
    if top is not None and top.is_complete:
        return top.over(None)
    below, left = (opened, keys) if top is None else (top.below, top.left)
    known = cache.find(below, left, kind)
    if known is None:
        return None
    families, values = known
    found = PartitionHits(below, values, families)
    return found if top is None else top.over(found)


def _read_rows(
    client: Client,
    asked: Sequence[AskedPartition],
    kind: str,
    blocks: BlockCache,
    *,
    keep: bool,
) -> Iterator[PartitionHits]:
    wanted = asked
    if not wanted:
        return
    for _ in range(REOPENS_MAX):
        parts = [planned_parts(opened, keys, kind, blocks, keep=keep) for opened, keys in wanted]
        gone = read_parts(client, [one for of in parts for one in of], attempted=_WHAT)
        for (opened, keys), of_partition in zip(wanted, parts, strict=True):
            if opened.id not in gone:
                yield _evaluate(opened, of_partition, keys)
        left = [one for one in wanted if one[0].id in gone]
        if not left:
            return
        again = reopen(client, [opened for opened, _ in left])
        wanted = [(opened, keys) for opened, (_, keys) in zip(again, left, strict=True)]
    raise replaced_again_and_again(_WHAT)


def _evaluate(opened: Opened, parts: Sequence[SegmentPart], keys: Sequence[bytes]) -> PartitionHits:
    tables = (part.known_head.families for part in parts)
    families = next((table for table in tables if table is not None), None)
    if families is None and parts:
        raise FormatError(_WHAT, found="no segment has a family table", where=str(opened.id))
    return PartitionHits(opened, values_of(parts, keys), families or ())
