"""Partitions that own segments in files, and errors for files that are gone."""

from __future__ import annotations

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import Kind, StateError, UnavailableError
from redis_state.files import Folder
from redis_state.format.entry import Segment
from redis_state.format.place import FIELD as PLACE
from redis_state.format.place import FilePlace, parse_place
from redis_state.format.region import RegionOwner
from redis_state.ids import PartitionId


def owner_of(owner: PartitionId, segment: Segment) -> RegionOwner:
    """Returns the names that the region of a segment must contain.

    Args:
        owner: The partition that has the segment; that of the parent for a foreign segment.
    """
    of = owner.store
    return RegionOwner(
        segment.field,
        segment.entry.text,
        segment.ident,
        of.gen,
        of.operator,
        owner.partition,
        of.store,
        keys.segment(owner, segment.ident),
    )


def place_now(client: Client, owner: PartitionId, segment: Segment) -> FilePlace | None:
    """Returns the present file of a segment; ``None`` without one, or if the segment is gone.

    Args:
        owner: See `owner_of`.
    """
    field_ = f"{PLACE}{segment.ident}"
    (raw,) = client.call("looking for a segment", [("HGET", keys.meta(owner), field_)])
    return parse_place(raw.decode("ascii", "replace"))[1] if raw is not None else None


def lost_file(
    folder: Folder, owner: PartitionId, segment: Segment, place: FilePlace
) -> StateError | UnavailableError:
    """Returns the error for a file that is gone or truncated, or whose folder is missing.

    Args:
        owner: See `owner_of`.
    """
    what = f"reading {segment.ident}"
    if folder.items() is None:
        return UnavailableError(
            what,
            found=f"its folder {folder} does not exist",
            advice="Make the folder reachable from here, as a mount or with the rights of the "
            "query, then try again. If its files were moved, start the query with the new "
            "'placesFolder'.",
            where=str(owner),
        )
    return StateError(
        what,
        found=f"its file {folder / place.file} is gone or truncated",
        advice="Restore the file from a backup of the folder. Newer versions do not need it: "
        "`redis-state doctor` shows which ones are whole.",
        kind=Kind.FILE_LOST,
        where=str(owner),
        version=segment.version,
    )
