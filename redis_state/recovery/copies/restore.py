"""Restores a copy into a Redis that has lost the state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import ConfigError, FormatError, NotFoundError, UnavailableError
from redis_state.files import Folder, folder_at
from redis_state.ids import PartitionId
from redis_state.maintain.purged_files import forget_files, note_coming_files
from redis_state.places import Places, keep_places, places_for_return, places_of
from redis_state.places.reading import files_of
from redis_state.places.settings import FOLDER_IN_CHECKPOINT
from redis_state.places.writer import check_reached
from redis_state.progress import Progress, silent
from redis_state.protocol.pins import FORK_OF, pin_again
from redis_state.protocol.registry import list_queries
from redis_state.recovery.bringing_back import check_not_purged, describe, others_serving
from redis_state.recovery.copies.files import (
    Copy,
    CopyPart,
    copies_of,
    offsets_of,
    read_copy,
    version_of,
)
from redis_state.recovery.copies.part import PartFile, PartReader
from redis_state.recovery.copies.partitions import (
    check_fits,
    in_place,
    into_file,
    into_redis,
    restore_partition,
    serves_copy,
)
from redis_state.recovery.copies.regions import PlacedPart
from redis_state.recovery.query_state import CountedStore
from redis_state.recovery.rewind import Rewind, plan_rewind, startable_batches


@dataclass(frozen=True, slots=True)
class Restore:
    """Plan that lets a query continue from a copy.

    Attributes:
        missing: Partitions that Redis does not have.
        there: Number of partitions that already serve the version.
        rewind: Moves the newer entries of Spark's logs aside.
        set_back: Python stores of the query, which go back with its logs.
        address: Address of the copy's files, which the restored partitions read; empty if they
            cannot.
        places: Where the blocks are copied instead; ``None`` brings them into Redis, unless there
            is an address.
    """

    checkpoint: Folder
    copy: Copy
    missing: tuple[CopyPart, ...]
    there: int
    rewind: Rewind
    set_back: tuple[CountedStore, ...] = ()
    tenant: str = ""
    address: str = ""
    places: Places | None = None

    @property
    def gens(self) -> list[str]:
        """Returns the checkpoints that the restore changes."""
        return [self.copy.gen, *(store.gen for store in self.set_back)]

    def carry_out(self, client: Client, progress: Progress = silent) -> None:
        """Restores the partitions, then the registry, sets stores back, then moves the entries.

        May be interrupted at any point and run again.

        Raises:
            FormatError: A file changed in the meantime.
            StateError: Another process made a partition in the meantime.
            ConfigError: A file cannot be written; or an entry cannot be moved, and all state is
                restored.
        """
        # First, since readers need it, and so does this restore if it is run again.
        places = Places(self.address, moves=False) if self.address else self.places
        if places is not None:
            keep_places(client, self.copy.gen, places, tenant=self.tenant)
        if self.places is not None and self.missing:
            # Nothing else would name what an interrupted restore left.
            note_coming_files(
                client, self.copy.gen, self.places, opened=self.copy.version, tenant=self.tenant
            )
        for number, part in enumerate(self.missing, 1):
            id_ = part.id(self.copy.gen, tenant=self.tenant)
            reader = part_of(client, self.checkpoint, self.copy, part, id_)
            bring_back = partial(restore_partition, client, id_, self.copy, reader)
            if self.address:
                bring_back(in_place)
            elif places is not None:
                bring_back(partial(into_file, folder=files_of(client).folder(client, id_)))
            else:
                bring_back(into_redis)
            progress("restoring partitions", number, len(self.missing))
        self._register(client)
        self._pin_for_forks(client)
        if self.places is not None:
            forget_files(client, self.copy.gen, tenant=self.tenant)
        for store in self.set_back:
            if store.newest != store.at(self.copy.batch):
                store.set_to(client, self.copy.batch, tenant=self.tenant)
        self.rewind.carry_out()

    def _register(self, client: Client) -> None:
        copy = self.copy
        counts = Counter((part.operator, part.store) for part in copy.parts)
        describe(
            client,
            copy.gen,
            copy.query,
            counts,
            created_ms=copy.created_ms,
            tenant=self.tenant,
        )

    def _pin_for_forks(self, client: Client) -> None:
        """Pins for forks of the query what they read of it, before a run drops that."""
        what, gen = "looking for forks of the restored query", self.copy.gen
        gens = [info.gen for info in list_queries(client, tenant=self.tenant)]
        wanted = [("HGET", keys.query(one, tenant=self.tenant), FORK_OF) for one in gens]
        parents = client.call(what, wanted) if wanted else []
        for fork, parent in zip(gens, parents, strict=True):
            if (parent or b"").split(b" ")[0] != gen.encode():
                continue
            ids = [part.id(fork, tenant=self.tenant) for part in self.copy.parts]
            manifests = client.call(what, [("HGETALL", keys.meta(id_)) for id_ in ids])
            for id_, manifest in zip(ids, manifests, strict=True):
                pin_again(client, id_, manifest)


def newest_fitting(checkpoint: Folder, gen: str | None = None) -> Copy | None:
    """Returns the newest copy of the same timeline after whose batch Spark can continue.

    Args:
        gen: Accepts only copies that can be restored to this checkpoint id; ``None`` accepts any.

    Raises:
        FormatError: A manifest is damaged.
        ConfigError: The folder is not a checkpoint, or cannot be read.
    """
    startable = startable_batches(checkpoint)
    for folder in copies_of(checkpoint):
        if version_of(folder) - 1 in startable:
            copy = read_copy(folder)
            if gen in (None, copy.gen) and copy.offsets == offsets_of(checkpoint, copy.batch):
                return copy
    return None


def plan_restore(
    client: Client,
    checkpoint: Folder,
    gen: str,
    *,
    to_batch: int | None = None,
    to_redis: bool = False,
    redis_memory: int | None = None,
    places_folder: str | None = None,
    tenant: str = "",
    progress: Progress = silent,
) -> Restore:
    """Chooses a copy, reads all of it, and checks what Redis has; changes nothing.

    Args:
        gen: Id of the checkpoint.
        to_batch: Batch whose state is wanted; ``None`` takes the newest copy.
        to_redis: True to bring all blocks back into Redis; else the query reads the files of the
            copy, or new ones in its own folder, where it can.
        redis_memory: Bound of the query, which a restore into Redis has to obey.
        places_folder: Folder for the files of the query; ``None`` takes the one that Redis, or the
            copy, names.

    Raises:
        NotFoundError: The copy does not exist, or its batch is not in Spark's logs.
        FormatError: The copy is damaged, or of another checkpoint.
        StateError: Redis has a partition that does not serve the version.
        FullError: The state goes into Redis, and the server or the bound has too little memory.
        ConfigError: The folder is not a checkpoint, or cannot be read; or the folder for files is
            another one than the query has.
    """
    copy = _chosen(checkpoint, gen, to_batch)
    if copy.gen != gen:
        raise FormatError(
            f"reading the copy in {copy.folder}",
            found="it is of another checkpoint, or older than a change of the number of partitions",
            advice="Check which query this checkpoint folder belongs to. Nothing was changed.",
        )
    address, places = "", None
    if not to_redis:
        address, places = _target(
            client, checkpoint, copy, places_folder, redis_memory, tenant=tenant
        )
    if places_of(client, gen, tenant=tenant) is None:
        # A server that kept partitions of an earlier restore may have lost the query's own hash.
        folder = checkpoint / FOLDER_IN_CHECKPOINT / gen
        if places is not None:
            folder = files_of(client).reached(places).folder_of(gen)
        files_of(client).know(gen, folder, tenant=tenant)
    heads = []
    for number, part in enumerate(copy.parts, 1):
        id_ = part.id(gen, tenant=tenant)
        heads.append(part_of(client, checkpoint, copy, part, id_).check())
        progress("reading the copy", number, len(copy.parts))
    # After the whole copy was read: an error that advises a purge then implies a usable copy.
    missing = [
        part
        for part, head in zip(copy.parts, heads, strict=True)
        if not serves_copy(client, part.id(gen, tenant=tenant), copy, head)
    ]
    rewind = plan_rewind(checkpoint, copy.batch)
    what = f"restoring version {copy.version}"
    check_not_purged(client, gen, attempted=what, tenant=tenant)
    others = others_serving(client, checkpoint, gen, copy.batch, what=what, tenant=tenant)
    there = len(copy.parts) - len(missing)
    if not address and places is None:
        known = dict(zip(copy.parts, heads, strict=True))
        coming = {part: known[part] for part in missing}
        check_fits(client, copy, coming, redis_memory, what=what, tenant=tenant)
    return Restore(
        checkpoint,
        copy,
        tuple(missing),
        there,
        rewind,
        tuple(others),
        tenant,
        address,
        places,
    )


def part_of(
    client: Client, checkpoint: Folder, copy: Copy, part: CopyPart, id_: PartitionId
) -> PartReader:
    """Returns the reader of a partition in a copy."""
    if part.head is None:
        return PartFile(copy, part, id_, open_blocks=client.opened)
    return PlacedPart(
        copy,
        part,
        part.head,
        id_,
        folder=checkpoint / FOLDER_IN_CHECKPOINT / copy.gen,
        signer=client.signer,
        open_blocks=client.opened,
    )


def _target(
    client: Client,
    checkpoint: Folder,
    copy: Copy,
    places_folder: str | None,
    redis_memory: int | None,
    *,
    tenant: str,
) -> tuple[str, Places | None]:
    """Returns `Restore.address` and `Restore.places`: at most one of them."""
    address = _address(client, checkpoint, copy, tenant=tenant)
    if address and places_folder is None:
        return address, None
    found = places_for_return(client, copy.gen, places_folder, tenant=tenant)
    if found is None and copy.own_address:
        found = Places(copy.own_address, moves=False)
    if found is not None:
        if found.folder == address:
            return address, None
        if places_folder is None:
            check_reached(
                files_of(client).reached(found),
                copy.gen,
                attempted="writing the files of a copy again",
                advice="Restore where that folder is mounted; or name it with --places-folder, "
                "which creates it; or bring all state into Redis, with --into-redis.",
            )
    elif redis_memory is not None and not copy.outside:
        found = Places((checkpoint / FOLDER_IN_CHECKPOINT).spelling(), moves=False)
    return "", found


def _address(client: Client, checkpoint: Folder, copy: Copy, *, tenant: str) -> str:
    """Returns the address of the copy's files; empty if the query has files in another folder."""
    if not copy.address or copy.outside:
        return ""
    here = (checkpoint / FOLDER_IN_CHECKPOINT).spelling()
    known = places_of(client, copy.gen, tenant=tenant)
    if known is not None:
        return known.folder if known.folder in (copy.address, here) else ""
    # The checkpoint may have been moved or copied, or is reached here by another address.
    return copy.address if copy.address == here or _has_all_files(copy) else here


def _has_all_files(copy: Copy) -> bool:
    """Returns whether the address in the manifest leads to every file of the copy."""
    segments = (one for part in copy.parts if part.head for one in part.head.segments)
    names = {one.place.file for one in segments if one.place}
    try:
        folder = folder_at(copy.address) / copy.gen
        return all(folder.has(name) for name in names)
    except (ConfigError, UnavailableError):
        return False


def _chosen(checkpoint: Folder, gen: str, to_batch: int | None) -> Copy:
    what = "looking for a copy of the state"
    if to_batch is None:
        newest = newest_fitting(checkpoint, gen) or newest_fitting(checkpoint)
        if newest is None:
            raise NotFoundError(
                what,
                found="no copy belongs to a batch that is still in Spark's logs",
                advice="Copies are made with the option copyEveryBatches; see operations.md.",
                where=str(checkpoint),
            )
        return newest
    of_batch = [folder for folder in copies_of(checkpoint) if version_of(folder) == to_batch + 1]
    offsets = offsets_of(checkpoint, to_batch)
    for folder in of_batch:
        copy = read_copy(folder)
        if copy.offsets == offsets:
            return copy
    batches = sorted({version_of(folder) - 1 for folder in copies_of(checkpoint)})
    raise NotFoundError(
        what,
        found=(
            f"the copy of batch {to_batch} belongs to a timeline that a rewind of the query "
            "abandoned"
        )
        if of_batch
        else f"no copy belongs to batch {to_batch}",
        advice=f"There are copies of the batches {', '.join(map(str, batches))}."
        if batches
        else "Copies are made with the option copyEveryBatches; see operations.md.",
        where=str(checkpoint),
    )
