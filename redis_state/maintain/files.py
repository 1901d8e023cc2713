"""Files of a checkpoint: where bytes are, verification, bringing back, sweep, deletion."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import time_ms
from redis_state.errors import FormatError, NotFoundError, StateError
from redis_state.files import Folder
from redis_state.format.entry import Segment, parse_segment, segments_in
from redis_state.format.place import FIELD, folder_of, is_copy_name, is_file_name
from redis_state.ids import PartitionId
from redis_state.places import Places, places_of
from redis_state.places.moving import FileRow, bring_back, condemn, discard, rows_of
from redis_state.places.reading import files_of
from redis_state.places.room import Bound, bound_in
from redis_state.places.settings import set_places
from redis_state.progress import Progress, silent
from redis_state.protocol import PartitionClient, SegmentGoneError
from redis_state.protocol.registry import PYTHON_OPERATOR, counted_partitions, parse_operators
from redis_state.protocol.version_rows import read_whole

ANNOUNCED_MS = 86_400_000
"""Time for which an announced file may have no segment."""

_WHAT = "examining the files of a query"
_RUN_FIELD = b"r:"
_NO_LOSS = "No row is lost: readers take its deltas, and maintenance merges them anew"

Guard = Callable[[PartitionId], str]
"""Returns why nothing of a partition may be deleted; empty if it may."""


@dataclass(slots=True)
class PartitionPlaces:
    """Bytes of a partition, by place.

    Attributes:
        redis: Segments whose keys Redis has, and their bytes.
        files: Segments in files, and their bytes.
        parent: Segments that a fork reads from its parent, and their bytes.
        rows: Files that Redis knows.
        oldest: Lowest version of a segment in files; 0 without one.
        bound: Share of Redis by `redisMemory`, and what of it is used; ``None`` without a bound.
    """

    id: PartitionId
    redis: tuple[int, int] = (0, 0)
    files: tuple[int, int] = (0, 0)
    parent: tuple[int, int] = (0, 0)
    rows: list[FileRow] = field(default_factory=list)
    oldest: int = 0
    bound: Bound | None = None


@dataclass(slots=True)
class SweptFiles:
    """Result of a sweep.

    Attributes:
        condemned: Files that nothing needs, found now.
        waiting: Condemned files that are younger than the grace.
        due: Condemned files that may be deleted, and were not.
        deleted: Files that were deleted.
        bytes: Length of the due and deleted files, as far as Redis knows it.
        kept: Why nothing was deleted in a partition.
    """

    condemned: int = 0
    waiting: int = 0
    due: int = 0
    deleted: int = 0
    bytes: int = 0
    kept: list[str] = field(default_factory=list)

    def add(self, other: SweptFiles) -> None:
        """Adds the counts of another partition."""
        self.condemned += other.condemned
        self.waiting += other.waiting
        self.due += other.due
        self.deleted += other.deleted
        self.bytes += other.bytes
        self.kept += other.kept


def partitions_with(client: Client, gen: str, *, tenant: str = "") -> list[PartitionId]:
    """Returns the partitions of a checkpoint that were ever written.

    Raises:
        FormatError: The description of the query is damaged.
    """
    (raw,) = client.call(_WHAT, [("HGETALL", keys.query(gen, tenant=tenant))])
    ids = counted_partitions(client, gen, parse_operators(raw).values(), tenant=tenant)
    there = client.call(_WHAT, [("EXISTS", keys.meta(id_)) for id_ in ids]) if ids else []
    return [id_ for id_, is_there in zip(ids, there, strict=True) if is_there]


def is_of_python(client: Client, gen: str, *, tenant: str = "") -> bool:
    """Returns whether all stores of a checkpoint are Python stores, which have no log.

    Raises:
        FormatError: The description of the query is damaged.
    """
    (raw,) = client.call(_WHAT, [("HGETALL", keys.query(gen, tenant=tenant))])
    operators = parse_operators(raw).values()
    return bool(operators) and all(one.name == PYTHON_OPERATOR for one in operators)


def places_needed(client: Client, gen: str, *, tenant: str = "") -> Places:
    """Returns where the files of a checkpoint are.

    Raises:
        NotFoundError: The checkpoint never had files.
    """
    found = places_of(client, gen, tenant=tenant)
    if found is None:
        raise NotFoundError(
            _WHAT,
            found="it has no files: no run of it had the option history=files or redisMemory",
            advice="Start it with history=files to move its history out of Redis.",
        )
    return found


def look_at_places(client: Client, id_: PartitionId) -> PartitionPlaces:
    """Returns where the bytes of a partition are.

    Raises:
        FormatError: An entry is damaged.
    """
    (raw,) = client.call(_WHAT, [("HGETALL", keys.meta(id_))])
    found = PartitionPlaces(id_, rows=rows_of(client, id_), bound=bound_in(raw))
    for one in _segments(raw):
        kind = "parent" if one.gen else "redis" if one.place is None else "files"
        count, size = getattr(found, kind)
        setattr(found, kind, (count + 1, size + one.entry.bytes))
        if kind == "files":
            found.oldest = min(found.oldest or one.version, one.version)
    return found


def verify_files(client: Client, id_: PartitionId, *, deep: bool = False) -> Iterator[str]:
    """Yields a problem for each segment of a partition whose file is not whole, or hot run.

    Args:
        deep: Reads every block; else the end of each segment's region.

    Raises:
        UnavailableError: The file system does not answer: nothing is known.
    """
    (raw,) = client.call(_WHAT, [("HGETALL", keys.meta(id_))])
    partition, files = PartitionClient(client, id_, versions_to_retain=1), files_of(client)
    yield from _verify_runs(partition, raw)
    for one in _segments(raw):
        if one.place is None:
            continue
        try:
            if deep:
                read_whole(partition.fetch, one)
            elif not files.is_there(client, id_, one):
                yield f"{id_}: {one.ident}: {files.lost(client, id_, one, one.place)}"
        except (FormatError, StateError) as error:
            yield f"{id_}: {one.ident}: {error}"
        except SegmentGoneError:
            # Retention has dropped it meanwhile.
            continue


def _verify_runs(partition: PartitionClient, raw: Mapping[bytes, bytes]) -> Iterator[str]:
    """Yields a problem for each hot run that cannot be read."""
    for name, value in raw.items():
        if not name.startswith(_RUN_FIELD):
            continue
        try:
            run = parse_segment(name.decode("ascii"), value.decode("ascii"))
            read_whole(partition.fetch, run)
        except (FormatError, StateError, SegmentGoneError, UnicodeDecodeError) as error:
            (now,) = partition.client.call(_WHAT, [("HGET", keys.meta(partition.id), name)])
            if now == value:
                why = "blocks are missing" if isinstance(error, SegmentGoneError) else error
                shown = name.decode("ascii", "replace")
                yield f"{partition.id}: hot run {shown}: {why}. {_NO_LOSS}"


def bring_all_back(
    client: Client,
    gen: str,
    ids: Sequence[PartitionId],
    *,
    tenant: str = "",
    progress: Progress = silent,
) -> int:
    """Brings all segments back into Redis, and ends the moving; may be repeated.

    Returns:
        Number of segments that came back.

    Raises:
        StateError: A file is gone.
        FullError: Redis has no room.
    """
    places = places_needed(client, gen, tenant=tenant)
    set_places(client, gen, replace(places, moves=False), tenant=tenant)
    count = 0
    for number, id_ in enumerate(ids, 1):
        (raw,) = client.call(_WHAT, [("HGETALL", keys.meta(id_))])
        for one in _segments(raw):
            count += one.place is not None and bring_back(client, id_, one)
        progress("bringing segments back", number, len(ids))
    return count


def sweep_files(
    client: Client,
    id_: PartitionId,
    places: Places,
    *,
    guard: Guard,
    delete: bool,
    unknown_too: bool,
) -> SweptFiles:
    """Condemns files of a partition that nothing needs, and deletes those that are due.

    Args:
        guard: Asked before a deletion, after the row of the file was read.
        delete: False only reports what would be deleted.
        unknown_too: Also deletes files that never had a segment here. Without a log to compare
            with, such a file may be one of the Redis that this one is a copy of.

    Raises:
        ConfigError: The folder cannot be read, or a file cannot be removed.
        UnavailableError: Redis or the file system does not answer.
    """
    found, folder = SweptFiles(), files_of(client).folder(client, id_)
    known = {row.file: row for row in rows_of(client, id_)}
    listed = _listed(folder, id_)
    for name in [*listed, *known]:
        row = known.get(name)
        if row is None or row.state == "n":
            found.condemned += condemn(client, id_, name, announced_ms=ANNOUNCED_MS)
    due: list[FileRow] = []
    rows = rows_of(client, id_)
    (time,) = client.call(_WHAT, [("TIME",)])
    for row in rows:
        # Only the driver, which writes copies, deletes their files.
        if row.state == "d" and is_file_name(row.file) and not is_copy_name(row.file):
            if time_ms(time) - row.at_ms < places.grace_ms:
                found.waiting += 1
            else:
                due.append(row)
    kept = guard(id_) if due else ""
    if kept:
        found.kept.append(f"{id_}: {kept}")
    named = _named(client, id_) if due else set()
    for row in due:
        if row.file in named:
            found.kept.append(f"{id_}: {row.file} is condemned, but the manifest names it")
            continue
        if not row.bytes and row.file not in listed:
            # It never came to be; should a listing show it late, it is condemned again.
            discard(client, id_, row.file)
            continue
        found.bytes += row.bytes
        if not delete or kept or not (unknown_too or row.bytes):
            found.due += 1
            continue
        folder.remove_file(row.file)
        found.deleted += discard(client, id_, row.file)
    return found


def _named(client: Client, id_: PartitionId) -> set[str]:
    """Returns the files that the partition's manifest names, whatever the list of files has."""
    (raw,) = client.call(_WHAT, [("HGETALL", keys.meta(id_))])
    places = (raw[field] for field in raw if field.startswith(FIELD.encode()))
    words = (place.decode("ascii", "replace").split(" ") for place in places)
    return {found[1] for found in words if found[0] == "f" and len(found) > 1}


def _listed(folder: Folder, id_: PartitionId) -> list[str]:
    """Returns the names of the partition's files that a listing shows now."""
    own = folder_of(id_.store.operator, id_.partition, keys.store_hash(id_.store.store))
    items = (folder / own).items() or []
    names = [f"{own}/{one.name}" for one in items if not one.is_folder]
    return [name for name in names if is_file_name(name) and not is_copy_name(name)]


def _segments(raw: dict[bytes, bytes]) -> list[Segment]:
    return sorted(
        (one for one in segments_in(raw) if one.entry.blocks),
        key=lambda one: (one.version, one.ident),
    )
