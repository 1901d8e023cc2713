"""History in files: chooses the segments that leave Redis, and moves them (docs/format.md, 17)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.format.entry import FORMATS, Segment, segments_in
from redis_state.ids import PartitionId, text_number
from redis_state.places import places_of
from redis_state.places.moving import SEGMENTS_MAX, Moved, move_out
from redis_state.places.writer import check_folder
from redis_state.progress import Progress, silent

FILE_BYTES_MAX = 64 << 20
"""Segments of one file, together; a larger segment has a file of its own."""
SEGMENTS_MIN = 4
BYTES_MIN = 1 << 20
"""Fewer segments that have fewer bytes wait for others, so that files are not many."""


def history_of(manifest: Mapping[bytes, bytes]) -> list[Segment]:
    """Returns the segments that are in Redis and that the newest base makes history, oldest first.

    Retention has dropped the others: those of the living lineage below the base, the delta beside a
    snapshot, and those set aside that are not newer than the base.
    """
    opened = text_number(manifest.get(b"o", b"0").decode("ascii", "replace")) or 0
    uid = manifest.get(b"ou", b"").decode("ascii", "replace")
    named = {one.field: one for one in segments_in(manifest) if one.field.encode() in manifest}
    lineage: list[Segment] = []
    base: Segment | None = None
    at = opened
    while at > 0:
        snapshot, delta = named.get(f"s:{at}:{uid}"), named.get(f"d:{at}:{uid}")
        here = [one for one in (snapshot, delta) if one is not None]
        if base is None:
            base = next((one for one in here if one.snapshot or one.entry.complete), None)
            here = [one for one in here if base is not None and one is not base]
        lineage += here
        if delta is None:
            break
        at, uid = at - 1, delta.entry.ref
    if base is None:
        return []
    fields = {one.field for one in lineage}
    aside = [one for one in segments_in(manifest) if one.version <= base.version]
    found = {one.ident: one for one in lineage} | {
        one.ident: one
        for one in aside
        if one.field not in fields and f"z:{one.ident}".encode() in manifest
    }
    return sorted(
        (one for one in found.values() if one.entry.blocks and not one.gen and one.place is None),
        key=lambda one: (one.version, one.snapshot, one.ident),
    )


def move_history(client: Client, id_: PartitionId, *, progress: Progress = silent) -> Moved:
    """Moves the history of a partition of a Python store into files, if the store wants that.

    Raises:
        ConfigError: The folder cannot be written, or is not the store's on this machine.
        FormatError: A segment is damaged.
        UnavailableError: Redis or the file system does not answer.
    """
    of = id_.store
    places = places_of(client, of.gen, tenant=of.tenant)
    if places is None or not places.moves:
        return Moved()
    what = "looking for history"
    manifest, left_ms = client.call(what, [("HGETALL", keys.meta(id_)), ("PTTL", keys.meta(id_))])
    if manifest.get(b"f") not in FORMATS or left_ms >= 0:
        return Moved()
    history = history_of(manifest)
    if len(history) < SEGMENTS_MIN and sum(one.entry.bytes for one in history) < BYTES_MIN:
        return Moved()
    check_folder(places, of.gen)
    moved = Moved()
    folder = places.folder_of(of.gen)
    for segments in _files(history):
        found = move_out(client, id_, segments, folder)
        moved = Moved(moved.segments + found.segments, moved.bytes + found.bytes)
        progress("moving history", moved.segments, len(history))
    return moved


def _files(segments: Sequence[Segment]) -> Iterator[list[Segment]]:
    group: list[Segment] = []
    size = 0
    for one in segments:
        is_full = len(group) >= SEGMENTS_MAX or size + one.entry.bytes > FILE_BYTES_MAX
        if group and is_full:
            yield group
            group, size = [], 0
        group.append(one)
        size += one.entry.bytes
    if group:
        yield group
