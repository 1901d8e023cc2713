"""Brings one partition of a copy back: by reference, into a file of the query, or into Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.room import check_room
from redis_state.backend.script import script
from redis_state.errors import FullError, Kind, UnavailableError
from redis_state.files import Folder
from redis_state.format.entry import Segment
from redis_state.ids import PartitionId, Pin
from redis_state.places.born import Unborn, write_file
from redis_state.places.room import bounds_of, cost_of, share_of
from redis_state.places.spool import Spool
from redis_state.protocol.runs import STAGED_TTL_MS
from redis_state.recovery.bringing_back import serves
from redis_state.recovery.copies.files import Copy, CopyHead, CopyPart
from redis_state.recovery.copies.part import PartReader

_TRIES = 3
_BYTES_AT_ONCE = 1 << 20

Places = Mapping[str, str]
"""Places of segments by their idents; a segment without one is in Redis."""

Bringing = Callable[[Client, PartitionId, PartReader], Places]
"""Brings the blocks of a partition where its version will read them."""


def restore_partition(
    client: Client, id_: PartitionId, copy: Copy, part: PartReader, bring: Bringing
) -> None:
    """Restores a partition that Redis does not have.

    Raises:
        FormatError: A file changed since it was checked.
        StateError: Another process made the partition in the meantime.
        UnavailableError: The server loses what is sent.
    """
    what = f"restoring {id_}"
    for _ in range(_TRIES):
        head = part.head()
        places = bring(client, id_, part)
        args = [str(copy.version), head.uid, str(head.floor), str(head.retained)]
        args.append(str(head.checkpoint_format))
        for segment in head.segments:
            args += [segment.field, segment.entry.text, places.get(segment.ident, "")]
        reply = client.script(what, script("restore"), [keys.meta(id_)], args)
        if reply == ["OK"]:
            return
        # `PRESENT` after a lost reply is this restore's own partition; else this raises.
        if reply == ["PRESENT"] and serves_copy(client, id_, copy, head):
            return
    raise UnavailableError(
        what,
        found="the server loses staged blocks",
        advice=(
            "A volatile-* eviction policy does that when memory is short: give the server more "
            "memory."
        ),
    )


def serves_copy(client: Client, id_: PartitionId, copy: Copy, head: CopyHead) -> bool:
    """Returns whether Redis serves the version of a copy; see `serves`."""
    return serves(client, id_, Pin(copy.version, head.uid), what="restoring", verb="restore")


def in_place(_client: Client, _id: PartitionId, part: PartReader) -> Places:
    """Leaves the blocks in the files of the copy."""
    return {one.ident: one.place.text for one in part.head().segments if one.place}


def into_file(client: Client, id_: PartitionId, part: PartReader, *, folder: Folder) -> Places:
    """Copies the blocks into a new file of the query, which checks them on the way.

    Args:
        folder: Folder of the checkpoint's files.
    """
    head = part.head()
    with Spool(f"restoring {id_}") as spool:
        born = write_file(
            client,
            id_,
            folder,
            _unborn(part, spool),
            version=head.segments[0].version,
            named=head.segments,
            is_new=True,
        )
    return {one.segment.ident: one.place.text for one in born}


def _unborn(part: PartReader, spool: Spool) -> Iterator[Unborn]:
    """Yields the segments one by one; each has to be taken before the next one."""
    for segment, pieces in _segments(part):
        spooled = spool.segment()
        for fields in pieces:
            spooled.add(fields)
        yield _as_stored(segment, spooled.blocks())
        spool.clear()


def _as_stored(segment: Segment, blocks: Iterator[dict[str, bytes]]) -> Unborn:
    return Unborn(segment.ident, blocks, lambda: segment, is_signed=True)


def into_redis(client: Client, id_: PartitionId, part: PartReader) -> Places:
    """Stages all fields as they are stored: signatures are bound to their segment's key."""
    for segment, pieces in _segments(part):
        for fields in pieces:
            _send(client, id_, segment, fields)
    return {}


def _segments(part: PartReader) -> Iterator[tuple[Segment, Iterator[dict[str, bytes]]]]:
    """Yields the segments with blocks, each with its fields, about a MiB at a time."""
    for segment, fields in groupby(part.fields(), key=itemgetter(0)):
        yield segment, _pieces(fields)


def _pieces(fields: Iterable[tuple[Segment, str, bytes]]) -> Iterator[dict[str, bytes]]:
    piece: dict[str, bytes] = {}
    size = 0
    for _, name, value in fields:
        if piece and size + len(value) > _BYTES_AT_ONCE:
            yield piece
            piece, size = {}, 0
        piece[name] = value
        size += len(value)
    yield piece


def _send(client: Client, id_: PartitionId, segment: Segment, fields: Mapping[str, bytes]) -> None:
    pair = [keys.meta(id_), keys.segment(id_, segment.ident)]
    flat = [word for field in fields.items() for word in field]
    words = [segment.field, str(STAGED_TTL_MS), *flat]
    client.script(f"staging blocks of {segment.ident}", script("stage"), pair, words)


def check_fits(
    client: Client,
    copy: Copy,
    heads: Mapping[CopyPart, CopyHead],
    redis_memory: int | None,
    *,
    what: str,
    tenant: str,
) -> None:
    """Checks that the partitions of a copy fit into Redis, before anything is sent.

    Args:
        heads: The partitions that come, with their segments.
        redis_memory: Bound of the query; ``None`` takes that of partitions that are there.

    Raises:
        FullError: The server, or the bound, has too little memory.
        ConfigError: The bound is too small for the partitions.
    """
    if redis_memory is not None:
        share = share_of(redis_memory, len(copy.parts))
    else:
        ids = [part.id(copy.gen, tenant=tenant) for part in copy.parts]
        share = min((one.share for one in bounds_of(client, ids) if one), default=0)
    for part, head in heads.items() if share else ():
        size = sum(cost_of(one.entry) for one in head.segments)
        if size > share:
            raise FullError(
                what,
                found=f"it takes {size:,} bytes in Redis, more than its share of {share:,} bytes",
                advice="Nothing was changed. Restore into files, without --into-redis and with "
                "--places-folder; or start the query with a larger 'redisMemory'.",
                kind=Kind.NO_ROOM,
                where=str(part.id(copy.gen, tenant=tenant)),
            )
    segments = (one for head in heads.values() for one in head.segments)
    check_room(client, sum(one.entry.bytes for one in segments), what=what)
