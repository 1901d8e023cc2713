"""Files of purged checkpoints: noted at the purge, and deleted later (docs/format.md, section 12).

An import, a restore or a rescale that writes files is noted likewise, until it has ended.

Once its keys are gone, nothing else names the folder of a purged checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import OTHER_TYPE, time_ms
from redis_state.backend.script import Command
from redis_state.errors import ConflictError, FormatError, NotFoundError
from redis_state.files import Folder, Item
from redis_state.format.place import foreign_segments, is_copy_name, is_file_name
from redis_state.ids import PartitionId
from redis_state.places import Places, places_of
from redis_state.places.moving import rows_of
from redis_state.places.writer import NAME as WRITER
from redis_state.protocol.registry import (
    counted_partitions,
    parse_listing,
    parse_operators,
)
from redis_state.protocol.runs import STAGED_TTL_MS
from redis_state.protocol.texts import is_number, number_or_zero, parse_object

_PARTITIONS_AT_ONCE = 64
_WHAT = "noting the files of a purged checkpoint"
_DELETING = "deleting the files of a purged checkpoint"


@dataclass(frozen=True, slots=True)
class PurgedFiles:
    """Files of a purged checkpoint.

    Attributes:
        folder: Address of the folder with the files of all its checkpoints.
        due: From when on nobody can need them, ms since 1970 by the server's clock.
        opened: Lowest opened version of a partition, to compare with Spark's log.
        files: Number of files that Redis knew.
        bytes: Their length.
    """

    gen: str
    folder: str
    due: int
    opened: int = 0
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class DeletedFiles:
    """Result of a deletion.

    Attributes:
        strangers: Names in the folder that are not ours, and stay.
    """

    files: int = 0
    bytes: int = 0
    strangers: tuple[str, ...] = ()


def note_files(
    client: Client, gen: str, ids: Sequence[PartitionId], *, tenant: str, kept_ms: int
) -> PurgedFiles | None:
    """Notes where the files of a checkpoint are, before a purge; ``None`` if it has none.

    Args:
        ids: All partitions of the checkpoint.
        kept_ms: Time for which the purge can be recalled.

    Raises:
        FullError: There is no memory for the note.
    """
    found = files_before(client, gen, ids, tenant=tenant, kept_ms=kept_ms)
    if found is not None:
        write_note(client, found, tenant=tenant)
    return found


def files_before(
    client: Client, gen: str, ids: Sequence[PartitionId], *, tenant: str, kept_ms: int
) -> PurgedFiles | None:
    """Returns what `note_files` notes."""
    try:
        places = places_of(client, gen, tenant=tenant)
    except FormatError:
        return None
    rows = [row for id_ in ids for row in rows_of(client, id_)] if places else []
    if places is None or not rows:
        return None
    opened = client.call(_WHAT, [("HGET", keys.meta(id_), "o") for id_ in ids])
    # An interrupted purge, which is done again, has removed some manifests already.
    there = [number_or_zero(one) for one in opened if one is not None]
    (time,) = client.call(_WHAT, [("TIME",)])
    return PurgedFiles(
        gen,
        places.folder,
        time_ms(time) + kept_ms + places.grace_ms,
        min(there, default=0),
        len(rows),
        sum(row.bytes for row in rows),
    )


def note_coming_files(
    client: Client, gen: str, places: Places, *, opened: int, tenant: str
) -> None:
    """Notes where a new checkpoint gets files, so that those of an interrupted call are found.

    Args:
        opened: Lowest version that the partitions get.
    """
    noted = ("HGET", keys.purged_files(tenant=tenant), gen)
    time, raw = client.call(_WHAT, [("TIME",), noted])
    found = PurgedFiles(gen, places.folder, time_ms(time) + STAGED_TTL_MS + places.grace_ms, opened)
    before = None if raw is None else _parse(gen, raw)
    if before is not None and before.folder == found.folder:
        # The files of a purge stay as long as that purge has promised.
        found = replace(before, due=max(before.due, found.due), opened=min(before.opened, opened))
    write_note(client, found, tenant=tenant)


def write_note(client: Client, found: PurgedFiles, *, tenant: str) -> None:
    """Writes the note of a purge."""
    members = asdict(found)
    del members["gen"]
    client.call(_WHAT, [("HSET", keys.purged_files(tenant=tenant), found.gen, json.dumps(members))])


def forget_files(client: Client, gen: str, *, tenant: str) -> None:
    """Removes the note, after a recall or the deletion."""
    client.call(_WHAT, [("HDEL", keys.purged_files(tenant=tenant), gen)])


def purged_files(client: Client, *, tenant: str) -> list[PurgedFiles]:
    """Returns the notes of all purges whose files are still there, without damaged ones."""
    (raw,) = client.call(_WHAT, [("HGETALL", keys.purged_files(tenant=tenant))])
    found = (_parse(gen.decode("ascii", "replace"), text) for gen, text in sorted(raw.items()))
    return [one for one in found if one is not None]


def _parse(gen: str, raw: bytes) -> PurgedFiles | None:
    try:
        members = parse_object(raw)
    except ValueError:
        return None
    folder = members.get("folder")
    numbers = [members.get(name) for name in ("due", "opened", "files", "bytes")]
    if not isinstance(folder, str) or not all(map(is_number, numbers)):
        return None
    return PurgedFiles(gen, folder, *numbers)  # type: ignore[arg-type]  # checked above


def delete_files(
    client: Client,
    found: PurgedFiles,
    folder: Folder,
    *,
    tenant: str,
    guard: Callable[[PurgedFiles], str],
    dry_run: bool = False,
) -> DeletedFiles:
    """Deletes the files of a purged checkpoint; may be repeated.

    Args:
        folder: Folder of this checkpoint's files.
        guard: Returns why nothing may be deleted; empty if it may. Asked last.
        dry_run: Only counts.

    Raises:
        ConflictError: It is too early, the checkpoint is there again, or a fork reads its files.
        NotFoundError: The folder is not there.
        ConfigError: A file cannot be removed.
        UnavailableError: Redis or the file system does not answer.
    """
    reason = _in_the_way(client, found, tenant) or guard(found)
    if reason:
        raise ConflictError(
            _DELETING,
            found=reason,
            advice="Nothing was deleted. Run the command again when this has changed.",
            where=str(folder),
        )
    items = folder.items()
    if items is None:
        if not dry_run:
            # Somebody has removed the folder, as with its checkpoint.
            forget_files(client, found.gen, tenant=tenant)
        raise NotFoundError(
            _DELETING, found=f"{folder} is not there", advice="Nothing is left to delete."
        )
    names: list[str] = []
    size, strangers = 0, []
    for name, item in _entries_in(folder, items):
        if is_file_name(name) and not item.is_folder:
            # A copy is a backup: it outlives the purge, and goes with the checkpoint's folder.
            if not is_copy_name(name):
                names.append(name)
                size += item.size
        elif name != WRITER:
            strangers.append(name)
    deleted = DeletedFiles(len(names), size, tuple(strangers))
    if dry_run:
        return deleted
    # The store's own mark goes last: it shows whose an interrupted deletion was.
    for name in (*names, WRITER):
        folder.remove_file(name)
    # A restored checkpoint may have got new files meanwhile.
    if next(_entries_in(folder, folder.items() or ()), None) is None:
        folder.remove()
    forget_files(client, found.gen, tenant=tenant)
    return deleted


def _entries_in(folder: Folder, items: Sequence[Item]) -> Iterator[tuple[str, Item]]:
    """Yields the entries of a folder's listing and of its subfolders, by their names below it."""
    for item in items:
        if not item.is_folder:
            yield item.name, item
            continue
        for one in (folder / item.name).items() or ():
            yield f"{item.name}/{one.name}", one


def _in_the_way(client: Client, found: PurgedFiles, tenant: str) -> str:
    """Returns why nothing of a checkpoint may be deleted, by Redis alone."""
    gen, query = found.gen, keys.query(found.gen, tenant=tenant)
    time, there, listing = client.call(
        _DELETING,
        [("TIME",), ("EXISTS", query), ("HGETALL", keys.checkpoints(tenant=tenant))],
    )
    if time_ms(time) < found.due:
        return "the purge is younger than a day and 'placesGrace' together"
    if there:
        return f"Redis has the checkpoint {gen}"
    for info in parse_listing(listing):
        if not info.is_checkpoint:
            continue
        (raw,) = client.call(_DELETING, [("HGETALL", keys.query(info.gen, tenant=tenant))])
        ids = counted_partitions(client, info.gen, parse_operators(raw).values(), tenant=tenant)
        metas: list[Command] = [("HGETALL", keys.meta(id_)) for id_ in ids]
        manifests = client.call_in_pieces(
            _DELETING, metas, at_once=_PARTITIONS_AT_ONCE, of_other_type=OTHER_TYPE
        )
        if any(one is OTHER_TYPE or gen in foreign_segments(one).values() for one in manifests):
            return f"the fork {info.gen} reads its files"
    return ""
