"""Reads the versions of a store that is rescaled and writes its new partitions; no pyspark."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from redis_state.batches.driver import named
from redis_state.codec import Codec
from redis_state.errors import StateError
from redis_state.files import Folder
from redis_state.format.entry import Segment
from redis_state.ids import EMPTY_UID, PartitionId, Pin
from redis_state.places.spool import Spool
from redis_state.protocol.opening import not_opened, open_commands, read_replies
from redis_state.rescaling.checkpoints import RescaledCheckpoint, RescaledStore
from redis_state.rescaling.placing import GroupOf, Placing, cannot
from redis_state.rescaling.rows import RescaleSource, RescaleTarget, restore


@dataclass(frozen=True, slots=True)
class KeyMeaning:
    """Meaning of the keys of a store; see `Placing`."""

    group_of: GroupOf | None
    codec: Codec | None

    def placing(self, store: RescaledStore, source: RescaleSource) -> Placing:
        """Returns the hashes of the rows of a version."""
        return Placing(
            store.newest.layout, source.families, group_of=self.group_of, codec=self.codec
        )


def versions_to_copy(store: RescaledStore) -> tuple[list[int], int]:
    """Returns the versions to copy, and an upper bound of their bytes.

    These are the version of the newest batch and, if held, the one below: Spark may rerun that
    batch.
    """
    ids, version = store.ids, store.newest.version
    replies = store.client.call(store.what, open_commands(ids, version))
    missing = not_opened(ids, replies, what=store.what)
    if missing:
        raise StateError(
            store.what,
            found=f"{named(missing)} does not hold version {version}: batch {store.newest.number} "
            "never ran to its end there, or its state was lost",
            advice=f"Run batch {store.newest.number} of the query to its end, then try again. "
            "Nothing was changed.",
            version=version,
        )
    versions, size = [version], _bytes(ids, replies, version)
    below = version - 1
    if below >= 1:
        replies = store.client.call(store.what, open_commands(ids, below))
        if not not_opened(ids, replies, what=store.what):
            versions.append(below)
            size += _bytes(ids, replies, below)
    return versions, size


def count_rows(
    store: RescaledStore, version: int, partitions: int, meaning: KeyMeaning
) -> tuple[int, ...]:
    """Reads every row once and returns the number of rows by new partition."""
    source = RescaleSource(store.client, store.ids, version)
    placing = meaning.placing(store, source)
    counted = source.spread(placing, partitions, ())
    sure = placing.of_groups or meaning.group_of is not None
    if not sure and not counted.proven:
        raise cannot(
            "its rows are too few, or in one partition, so the meaning of its keys cannot be "
            "verified"
        )
    return tuple(counted.rows)


def copy_rows(
    store: RescaledStore,
    copy: RescaledCheckpoint,
    versions: Sequence[int],
    meaning: KeyMeaning,
    folder: Folder | None = None,
) -> list[Pin]:
    """Writes the new partitions, which expire, and returns the newest version of each.

    Args:
        folder: Folder of the new checkpoint's files, for bounded partitions; ``None`` brings all
            blocks into Redis.
    """
    refs = [EMPTY_UID] * copy.partitions
    written: list[list[Segment]] = []
    with Spool(store.what) if folder else nullcontext() as spool:
        for version in reversed(versions):
            targets = _copied(store, copy, version, refs, meaning, spool)
            made = [one.finish() for one in targets]
            if folder is not None and spool is not None:
                parts = len(versions)
                pairs = zip(targets, made, strict=True)
                made = [one.place(segment, folder, parts=parts) for one, segment in pairs]
                spool.clear()
            written.insert(0, made)
            refs = [one.uid for one in made]
    floor = 0 if versions[-1] == 1 else versions[-1]
    for id_, of_one in zip(copy.ids, zip(*written, strict=True), strict=True):
        restore(store.client, id_, of_one, floor=floor, retained=store.retained)
    return [Pin(versions[0], uid) for uid in refs]


def _copied(
    store: RescaledStore,
    copy: RescaledCheckpoint,
    version: int,
    refs: Sequence[str],
    meaning: KeyMeaning,
    spool: Spool | None,
) -> list[RescaleTarget]:
    source = RescaleSource(store.client, store.ids, version)
    placing = meaning.placing(store, source)
    targets = [
        RescaleTarget(
            store.client,
            id_,
            version,
            uuid.uuid4().hex,
            ref,
            source.families,
            highest_id=source.highest_id,
            time_s=source.time_s,
            spool=spool,
        )
        for id_, ref in zip(copy.ids, refs, strict=True)
    ]
    source.spread(placing, copy.partitions, targets)
    return targets


def _bytes(ids: Sequence[PartitionId], replies: Sequence[object], version: int) -> int:
    opened = read_replies(ids, replies, version=version)
    return sum(segment.entry.bytes for one in opened for segment in one.segments)
