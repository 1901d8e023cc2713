"""Makes room in a bounded partition, by moving segments into files (docs/format.md, section 18)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command, script
from redis_state.errors import ConfigError
from redis_state.files import Folder
from redis_state.format.entry import FORMATS, Entry, Segment, segments_in
from redis_state.format.lineage import lineage_of
from redis_state.ids import PartitionId, Pin, text_number
from redis_state.places.moving import SEGMENTS_MAX, move_out
from redis_state.places.settings import places_of
from redis_state.places.writer import check_folder

SHARE_BYTES_MIN = 1 << 20
"""Least share of a partition."""
META_BYTES = 64 << 10
"""Part of a partition's bytes that is kept for its metadata."""
_FIELD = "h"
_STAGED = b"h:n:"
_BLOCK_BYTES = 120
_SEGMENT_BYTES = 300
_FREE_PART = 6
_WHAT = "making room in Redis"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound of a partition's memory.

    Attributes:
        share: Most bytes.
        bytes: Bytes that are counted, at least what Redis has.
    """

    share: int
    bytes: int

    @property
    def lacking(self) -> int:
        """Bytes to move so that a sixth of the share is free; 0 or less if it is free already."""
        return self.bytes - self.share + self.share // _FREE_PART


def share_of(total: int, partitions: int) -> int:
    """Returns the share of a partition.

    Args:
        total: The option ``redisMemory``.
        partitions: Number of partitions of all stores.

    Raises:
        ConfigError: The share is less than a partition needs.
    """
    share = (total - META_BYTES * partitions) // max(1, partitions)
    if share < SHARE_BYTES_MIN:
        least = (SHARE_BYTES_MIN + META_BYTES) * partitions
        raise ConfigError(
            "option 'redisMemory'",
            found=f"{total} bytes are too few for {partitions} partitions",
            advice=f"Give at least {least} bytes, or use fewer partitions.",
        )
    return share


def cost_of(entry: Entry) -> int:
    """Returns the room that a segment takes, as the scripts count it."""
    return cost(entry.blocks, entry.bytes)


def cost(blocks: int, size: int) -> int:
    """Returns the room that a segment of this number of blocks and bytes takes."""
    return size + size // 8 + _BLOCK_BYTES * blocks + _SEGMENT_BYTES if blocks else 0


def bound_of(client: Client, id_: PartitionId) -> Bound | None:
    """Returns the bound of a partition; ``None`` if it has none."""
    (raw,) = client.call(_WHAT, [("HGET", keys.meta(id_), _FIELD)])
    return _parsed(raw)


def bounds_of(client: Client, ids: Sequence[PartitionId]) -> list[Bound | None]:
    """Returns the bounds of partitions; ``None`` for one without a bound, or a missing one."""
    asked: list[Command] = [("HGET", keys.meta(id_), _FIELD) for id_ in ids]
    return [_parsed(raw) for raw in client.call(_WHAT, asked)] if asked else []


def bound_in(manifest: Mapping[bytes, bytes]) -> Bound | None:
    """Returns the bound in a manifest; ``None`` without one, or if it is damaged."""
    return _parsed(manifest.get(_FIELD.encode()))


def _parsed(raw: bytes | None) -> Bound | None:
    words = [] if raw is None else raw.decode("ascii", "replace").split(" ")
    numbers = [text_number(word) for word in words]
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        return None
    return Bound(numbers[0], numbers[1])


def set_bound(client: Client, id_: PartitionId, share: int) -> Bound | None:
    """Sets the share of a partition, 0 for no bound, and counts its bytes.

    Returns:
        ``None`` if the partition has no bound.
    """
    match client.script(_WHAT, script("bound"), [keys.meta(id_)], [str(share)]):
        case ["OK", size] if share:
            return Bound(share, int(size))
    return None


def folder_for(client: Client, id_: PartitionId) -> Folder:
    """Returns the folder into which segments of a Python store may move.

    Raises:
        ConfigError: The store has no folder, or its path is another folder on this machine.
        UnavailableError: The file system does not answer.
    """
    of = id_.store
    places = places_of(client, of.gen, tenant=of.tenant)
    if places is None:
        raise ConfigError(
            _WHAT,
            found="the query names no folder for files",
            advice="Start it with 'placesFolder', or without 'redisMemory'.",
            where=str(id_),
        )
    check_folder(places, of.gen)
    return places.folder_of(of.gen)


def make_room(
    client: Client, id_: PartitionId, lacking: int, *, ends_runs: bool = True
) -> int | None:
    """Moves the oldest segments of a bounded partition into one file.

    Args:
        lacking: Bytes to move at least; some more are moved, so that the next call is not soon.
        ends_runs: True to drop hot runs if no segment is left that could move.

    Returns:
        Number of moved segments, or of dropped hot runs; ``None`` if nothing is left to move or
        drop.

    Raises:
        ConfigError: There is no folder, or it cannot be written.
        FormatError: A segment is damaged.
        UnavailableError: Redis or the file system does not answer.
    """
    (manifest,) = client.call(_WHAT, [("HGETALL", keys.meta(id_))])
    if manifest.get(b"f") not in FORMATS:
        return None
    bound = bound_in(manifest)
    spare = bound.share // _FREE_PART if bound else 0
    chosen = leaving(manifest, lacking + spare)
    if not chosen:
        # Hot runs only hold rows that other segments hold, too.
        has_runs = ends_runs and any(name[:2] == b"r:" for name in manifest)
        return drop_hot_runs(client, id_) if has_runs else None
    moved = move_out(client, id_, chosen, folder_for(client, id_))
    log.info("%s: %d segments (%d bytes) made room", id_, moved.segments, moved.bytes)
    return moved.segments


def drop_hot_runs(client: Client, id_: PartitionId) -> int:
    """Drops the hot runs of a partition; returns their number. Every version stays readable."""
    reply = client.script("dropping hot runs", script("hotrun"), [keys.meta(id_)], [])
    return int(reply[1]) if reply[0] == "OK" else 0


def drop_staged(client: Client, id_: PartitionId) -> int:
    """Removes blocks that are staged for snapshots and hot runs of a bounded partition.

    No version needs them: a writer that finds some missing leaves its segment to the next
    maintenance.

    Returns:
        Number of removed keys.
    """
    (manifest,) = client.call(_WHAT, [("HGETALL", keys.meta(id_))])
    idents = [name[len(_STAGED) :].decode() for name in manifest if name.startswith(_STAGED)]
    if not idents:
        return 0
    removed = client.call(_WHAT, [("UNLINK", keys.staged(id_, one)) for one in idents])
    log.info("%s: blocks of %d staged segments made room", id_, sum(removed))
    return sum(removed)


def keep_room(client: Client, id_: PartitionId, share: int) -> int:
    """Moves segments until a sixth of the share is free; called by maintenance.

    Args:
        share: Share of the option, which the partition gets if it has another one.

    Returns:
        Number of moved segments.

    Raises:
        RedisStateError: See `make_room`.
    """
    bound = set_bound(client, id_, share)
    if bound is None or bound.lacking <= 0:
        return 0
    # A hot run is dropped only when a commit needs its room.
    return make_room(client, id_, bound.lacking, ends_runs=False) or 0


def leaving(manifest: Mapping[bytes, bytes], lacking: int) -> list[Segment]:
    """Returns the segments to move next: history first, then the base, then deltas by age."""
    opened = text_number(manifest.get(b"o", b"0").decode("ascii", "replace")) or 0
    every = list(segments_in(manifest))
    aside = {one.ident for one in every if b"z:" + one.ident.encode() in manifest}
    here = [
        one
        for one in every
        if one.entry.blocks
        and not one.gen
        and one.place is None
        and (one.version <= opened or one.ident in aside)
    ]
    named = {one.field: one for one in every if one.ident not in aside}
    uid = manifest.get(b"ou", b"").decode("ascii", "replace")
    lineage, bases = lineage_of(named, Pin(opened, uid))
    base = next(iter(bases), 0)
    ranks = {named[name].ident: 2 for name in lineage if named[name].version > base}
    if base:
        ranks[named[bases[base]].ident] = 1
    ranked = sorted(here, key=lambda one: (ranks.get(one.ident, 0), one.version, one.ident))
    chosen: list[Segment] = []
    for one in ranked[:SEGMENTS_MAX]:
        if lacking <= 0:
            break
        chosen.append(one)
        lacking -= cost_of(one.entry)
    return chosen
