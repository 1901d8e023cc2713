"""History in files: chooses the segments that leave Redis, and moves them (docs/format.md, 17)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.files import Folder
from redis_state.format.entry import FORMATS, Segment, segments_in
from redis_state.format.lineage import lineage_of
from redis_state.ids import PartitionId, Pin, text_number
from redis_state.places import places_of
from redis_state.places.moving import SEGMENTS_MAX, Moved, move_out
from redis_state.places.writer import check_folder
from redis_state.progress import Progress, silent

FILE_BYTES_MAX = 64 << 20
"""Segments of one file, together; a larger segment has a file of its own."""
SEGMENTS_MIN = 4
BYTES_MIN = 1 << 20
"""Fewer segments that have fewer bytes wait for others, so that files are not many."""

PAUSE_S = 60.0
"""Time without a move after one that failed; twice as long after each further one."""
PAUSE_S_MAX = 3600.0
_DOUBLINGS_MAX = 6
_PAUSES_MAX = 10_000

_pauses: WeakKeyDictionary[Client, dict[PartitionId, tuple[float, int]]] = WeakKeyDictionary()


def history_of(manifest: Mapping[bytes, bytes]) -> list[Segment]:
    """Returns the segments that are in Redis and that the newest base makes history, oldest first.

    Retention has dropped the others: those of the living lineage below the base, the delta beside a
    snapshot, and those set aside that are not newer than the base.
    """
    opened = text_number(manifest.get(b"o", b"0").decode("ascii", "replace")) or 0
    uid = manifest.get(b"ou", b"").decode("ascii", "replace")
    named = {one.field: one for one in segments_in(manifest) if one.field.encode() in manifest}
    lineage, bases = lineage_of(named, Pin(opened, uid))
    if not bases:
        return []
    base, base_field = next(iter(bases.items()))
    older = {name for name in lineage if name != base_field and named[name].version <= base}
    found = {named[name].ident: named[name] for name in older} | {
        one.ident: one
        for one in segments_in(manifest)
        if one.version <= base and one.field not in older and f"z:{one.ident}".encode() in manifest
    }
    return sorted(
        (one for one in found.values() if one.entry.blocks and not one.gen and one.place is None),
        key=lambda one: (one.version, one.snapshot, one.ident),
    )


def move_history(client: Client, id_: PartitionId, *, progress: Progress = silent) -> Moved:
    """Moves the oldest history of a Python store's partition into a file, if it wants that.

    A pass writes one file at most, so that the first passes over a long history stay short.

    Raises:
        ConfigError: The folder cannot be written, or is not the store's on this machine.
        FormatError: A segment is damaged.
        UnavailableError: Redis or the file system does not answer.
    """
    due = _due(client, id_)
    return Moved() if due is None else _move(client, id_, due, progress)


def move_when_due(client: Client, id_: PartitionId, *, progress: Progress = silent) -> Moved:
    """Moves history as `move_history` does, less and less often while it fails.

    A failed move may leave a row in Redis and a file, so a pass soon after it does nothing.

    Raises:
        RedisStateError: See `move_history`.
    """
    pauses = _pauses.setdefault(client, {})
    due_s, failures = pauses.get(id_, (0.0, 0))
    now_s = client.clock.monotonic_s()
    due = None if failures and now_s < due_s else _due(client, id_)
    if due is None:
        return Moved()
    failed = True
    try:
        moved = _move(client, id_, due, progress)
        failed = moved.wasted > 0
    finally:
        if failed:
            pause_s = min(PAUSE_S_MAX, PAUSE_S * 2 ** min(failures, _DOUBLINGS_MAX))
            pauses[id_] = (now_s + pause_s, failures + 1)
            for oldest in list(pauses)[:-_PAUSES_MAX]:
                pauses.pop(oldest, None)
        else:
            pauses.pop(id_, None)
    return moved


def _due(client: Client, id_: PartitionId) -> tuple[list[Segment], Folder] | None:
    """Returns the history that leaves Redis now, and the folder; ``None`` if none does."""
    of = id_.store
    places = places_of(client, of.gen, tenant=of.tenant)
    if places is None or not places.moves:
        return None
    what = "looking for history"
    manifest, left_ms = client.call(what, [("HGETALL", keys.meta(id_)), ("PTTL", keys.meta(id_))])
    if manifest.get(b"f") not in FORMATS or left_ms >= 0:
        return None
    history = history_of(manifest)
    if len(history) < SEGMENTS_MIN and sum(one.entry.bytes for one in history) < BYTES_MIN:
        return None
    check_folder(places, of.gen)
    return history, places.folder_of(of.gen)


def _move(
    client: Client, id_: PartitionId, due: tuple[list[Segment], Folder], progress: Progress
) -> Moved:
    history, folder = due
    moved = move_out(client, id_, _first_file(history), folder)
    progress("moving history", moved.segments, len(history))
    return moved


def _first_file(history: Sequence[Segment]) -> list[Segment]:
    """Returns the oldest segments, as many as one file may have; at least one."""
    group: list[Segment] = []
    size = 0
    for one in history[:SEGMENTS_MAX]:
        size += one.entry.bytes
        if group and size > FILE_BYTES_MAX:
            break
        group.append(one)
    return group
