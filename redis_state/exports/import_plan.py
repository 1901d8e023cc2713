"""Plans an import of an export, checks it, and carries it out."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from redis_state import files, keys
from redis_state.backend.client import Client
from redis_state.backend.room import check_room
from redis_state.errors import ConfigError, FormatError, Kind, StateError, UsageError
from redis_state.exports.folder import ExportFolder
from redis_state.exports.import_partition import PartitionImport
from redis_state.exports.manifest import Export, ExportedPartition, ExportedStore, read_export
from redis_state.exports.sealed import damaged
from redis_state.ids import EMPTY
from redis_state.maintain.purged_files import forget_files, note_coming_files
from redis_state.places import Places, keep_places, places_for_return
from redis_state.places.born import MOVED_BYTES_MAX
from redis_state.places.reading import files_of
from redis_state.places.room import share_of
from redis_state.places.settings import FOLDER_IN_CHECKPOINT
from redis_state.places.writer import check_reached, new_folder
from redis_state.progress import Progress, silent
from redis_state.protocol.registry import PYTHON_OPERATOR
from redis_state.protocol.runs import check_name, checkpoint_gen
from redis_state.recovery.bringing_back import check_not_purged, describe, others_serving, serves
from redis_state.recovery.marker import gen_of
from redis_state.recovery.query_state import CountedStore, stores_of
from redis_state.recovery.rewind import Rewind, plan_rewind

T = TypeVar("T")

_GEN_DIGITS = 32
_IMPORTED = "imported"
_BATCH = re.compile(r"(\d+) (\d+) (\d+) (\S+) (.*)", re.DOTALL)

_StorePartition = tuple[ExportedStore, ExportedPartition]


@dataclass(frozen=True, slots=True)
class Import:
    """An import that passed all checks.

    Attributes:
        gen: Id of the checkpoint that gets the state.
        name: New name of a store of Python; ``None`` for a query of Spark.
        missing: Partitions that Redis does not have.
        there: Number of partitions that serve the version already.
        rewind: Moves the newer entries of Spark's logs aside; ``None`` without a checkpoint.
        stored: Approximate bytes of the missing partitions.
        places: Where the blocks of all but small partitions go; ``None`` brings them into Redis.
        set_back: Stores whose newest batch becomes the exported one: stores that Redis still counts
            and that lack partitions; with Spark's logs, all stores that the query writes.
    """

    folder: ExportFolder
    export: Export
    gen: str
    name: str | None
    missing: tuple[_StorePartition, ...]
    there: int
    rewind: Rewind | None
    stored: int
    set_back: tuple[CountedStore, ...] = ()
    tenant: str = ""
    places: Places | None = None

    @property
    def gens(self) -> list[str]:
        """The checkpoints that the import changes."""
        return list(dict.fromkeys([self.gen, *(store.gen for store in self.set_back)]))

    def carry_out(self, client: Client, progress: Progress = silent) -> None:
        """Sets batches back, imports partitions, publishes the state, and moves log entries.

        Can be interrupted anywhere and run again.

        Raises:
            FormatError: A file changed meanwhile.
            StateError: Another import made a partition, or took the name, meanwhile.
            FullError: Redis has no memory left.
            ConfigError: A file cannot be written; or an entry cannot be moved, and all state is
                imported.
        """
        self._set_batches_back(client)
        if self.places is not None and self.missing:
            self._begin_files(client, self.places)
        for number, (store, part) in enumerate(self.missing, 1):
            id_ = store.id(self.gen, part.partition, tenant=self.tenant)
            files = None if self.places is None else files_of(client).folder(client, id_)
            PartitionImport(client, self.folder, store, part, id_, files=files).run()
            progress("importing partitions", number, len(self.missing))
        counts = {(one.operator, one.store): len(one.partitions) for one in self.export.stores}
        created_ms = self.export.created
        fields = self._fields()
        describe(client, self.gen, fields, counts, created_ms=created_ms, tenant=self.tenant)
        self._mark(client)
        if self.places is not None:
            forget_files(client, self.gen, tenant=self.tenant)
        if self.rewind is not None:
            self.rewind.carry_out()

    def _begin_files(self, client: Client, places: Places) -> None:
        """Names the folder in the query, and marks the folder of a Python store.

        The folder is noted until the end: nothing else would name what an interrupted import left.
        """
        opened = min(part.version for _, part in self.missing)
        note_coming_files(client, self.gen, places, opened=opened, tenant=self.tenant)
        keep_places(client, self.gen, places, tenant=self.tenant)
        if self.name is not None:
            new_folder(files_of(client).reached(places), self.gen)

    def _set_batches_back(self, client: Client) -> None:
        """Sets the newest batch of each store in `set_back` to the exported batch."""
        # Before the partitions: an interrupted import that runs again may find all of them present.
        if self.export.batch is not None:
            for store in self.set_back:
                store.set_to(client, self.export.batch, tenant=self.tenant, word=_IMPORTED)

    def _fields(self) -> dict[str, str]:
        """Returns the registry's fields, with the batches of the imported versions."""
        fields = dict(self.export.fields)
        for store in self.export.stores:
            name = _batch_field(store.operator, store.store)
            words = _BATCH.fullmatch(fields.get(name, ""))
            if words is not None and self.export.batch is not None:
                first, partitions, layout = words[2], words[3], words[5]
                fields[name] = f"{self.export.batch} {first} {partitions} {_IMPORTED} {layout}"
        if self.name is not None:
            fields |= {"name": self.name, "path": keys.name_field(self.name), "id": self.gen}
        return fields

    def _mark(self, client: Client) -> None:
        """Publishes the name, by which programs find the store from then on."""
        if self.name is None:
            return
        what = "naming what was imported"
        key, field = keys.names(tenant=self.tenant), keys.name_field(self.name)
        named = [("HSETNX", key, field, self.gen), ("HGET", key, field)]
        found = client.call(what, named)[-1]
        if found != self.gen.encode():
            raise _name_taken(what, self.name, (found or b"").decode("ascii", "replace"))


def _batch_field(operator: int, store: str) -> str:
    return f"batch:{operator}:{store}"


def plan_import(
    client: Client,
    folder: ExportFolder,
    *,
    name: str | None = None,
    checkpoint: files.Folder | None = None,
    marker_gen: str | None = None,
    redis_memory: int | None = None,
    places_folder: str | None = None,
    tenant: str = "",
    progress: Progress = silent,
) -> Import:
    """Checks all files of an export against Redis; changes nothing.

    Args:
        name: New name of a store of Python; ``None`` keeps its own.
        checkpoint: The folder of Spark's logs; ``None`` leaves them alone.
        marker_gen: The id of the checkpoint; ``None`` means the one in its marker file.
        redis_memory: Bound of the query: all but small partitions go into files, past Redis.
        places_folder: Folder for the files; also without a bound. ``None`` takes the one that the
            query has, or that of the checkpoint.

    Raises:
        NotFoundError: There is no export.
        UsageError: The export was interrupted; it cannot have that name; or the commit log does
            not have its batch.
        FormatError: A file is damaged, or the export is of another checkpoint.
        StateError: Redis has a partition that does not serve the version, or a newer store of the
            name.
        FullError: Redis has too little memory.
        ConfigError: A file cannot be read; or the bound is too small, or has no folder.
    """
    export = read_export(folder)
    what = f"importing {folder}"
    gen, own_name = _target(client, export, name, tenant=tenant, what=what)
    if checkpoint is not None and own_name is None:
        _check_marker(what, export, marker_gen or gen_of(checkpoint), checkpoint)
    rewind = None if checkpoint is None else _rewind(what, export, checkpoint)
    _check_files(folder, export, progress)
    missing: list[_StorePartition] = []
    there = 0
    for store in export.stores:
        for part in store.partitions:
            if part.pin == EMPTY:
                continue
            id_ = store.id(gen, part.partition, tenant=tenant)
            if serves(client, id_, part.pin, what="importing", verb="import"):
                there += 1
            else:
                missing.append((store, part))
    places = None
    if redis_memory is not None or places_folder is not None:
        count = sum(len(store.partitions) for store in export.stores)
        places = _places(client, gen, checkpoint, redis_memory, places_folder, count, tenant=tenant)
    stored = sum(part.stored for _, part in missing)
    sent = (part.stored for _, part in missing if not places or part.stored <= MOVED_BYTES_MAX)
    check_room(client, sum(sent), what=what)
    set_back = _to_set_back(
        client, what, gen, export, missing, None if rewind is None else checkpoint, tenant=tenant
    )
    return Import(
        folder,
        export,
        gen,
        own_name,
        tuple(missing),
        there,
        rewind,
        stored,
        set_back,
        tenant,
        places,
    )


def _places(
    client: Client,
    gen: str,
    checkpoint: files.Folder | None,
    redis_memory: int | None,
    places_folder: str | None,
    partitions: int,
    *,
    tenant: str,
) -> Places:
    """Returns where the files go; the one default is the folder of the checkpoint."""
    if redis_memory is not None:
        share_of(redis_memory, partitions)
    found = places_for_return(client, gen, places_folder, tenant=tenant)
    own = None if checkpoint is None else (checkpoint / FOLDER_IN_CHECKPOINT).spelling()
    if found is None and own is not None:
        found = Places(own, moves=False)
    if found is None:
        raise ConfigError(
            "option 'redisMemory'",
            found="redisMemory needs a folder for files, and 'placesFolder' is missing",
            advice="Nothing was changed. Give --places-folder; or, for a query of Spark, "
            "--checkpoint.",
        )
    if places_folder is None and found.folder != own:
        check_reached(
            files_of(client).reached(found),
            gen,
            attempted="importing into files",
            advice="Import where that folder is mounted; or name it with --places-folder, which "
            "creates it.",
        )
    return found


def _to_set_back(
    client: Client,
    what: str,
    gen: str,
    export: Export,
    missing: Sequence[_StorePartition],
    checkpoint: files.Folder | None,
    *,
    tenant: str,
) -> tuple[CountedStore, ...]:
    """Returns the stores of `Import.set_back`; `checkpoint` is given if its logs are set back.

    Raises:
        StateError: Another store of the query does not serve the batch, or one was purged.
    """
    check_not_purged(client, gen, attempted=what, tenant=tenant)
    lacking = {f"{store.operator}:{store.store}" for store, _ in missing}
    own = stores_of(client, gen, tenant=tenant)
    found = [one for one in own if one.place in lacking or checkpoint is not None]
    if checkpoint is not None and export.batch is not None:
        others = others_serving(client, checkpoint, gen, export.batch, what=what, tenant=tenant)
        found += others
    return tuple(found)


def _target(
    client: Client, export: Export, name: str | None, *, tenant: str, what: str
) -> tuple[str, str | None]:
    """Returns the id of the checkpoint to import into, and the name of a store of Python."""
    of_python = all(store.name == PYTHON_OPERATOR for store in export.stores)
    if not of_python:
        if name is not None:
            raise UsageError(
                what,
                found="the state is that of a query of Spark, and belongs to its checkpoint folder",
                advice=(
                    "Omit --as, or import it with another --key-prefix or into another Redis. "
                    "Nothing was changed."
                ),
            )
        return export.gen, None
    wanted = export.name if name is None else name
    check_name(wanted, what="the name of a store")
    own = export.gen
    if wanted != export.name:
        own = hashlib.sha256(f"{export.export}\n{wanted}".encode()).hexdigest()[:_GEN_DIGITS]
    there = checkpoint_gen(client, wanted, tenant=tenant)
    if there not in (None, own):
        raise _name_taken(what, wanted, there or "")
    return own, wanted


def _name_taken(what: str, name: str, gen: str) -> StateError:
    return StateError(
        what,
        kind=Kind.STATE_LOST,
        found=f"another store has the name {name[:80]!r}: it was created anew with another id, or "
        "imported from another export",
        advice=(
            "Nothing was replaced. Import under another name, with --as NAME; or purge that store "
            f"with `redis-state purge --gen {gen} --now`, and import again."
        ),
    )


def _check_marker(what: str, export: Export, gen: str, checkpoint: files.Folder) -> None:
    if gen != export.gen:
        raise FormatError(
            what,
            found="the export is of another checkpoint",
            advice="Check which query this checkpoint folder belongs to. Nothing was changed.",
            where=str(checkpoint),
        )


def _rewind(what: str, export: Export, checkpoint: files.Folder) -> Rewind:
    if export.batch is None:
        raise UsageError(
            what,
            found="its versions are not batches of Spark",
            advice="Omit --checkpoint. Nothing was changed.",
        )
    rewind = plan_rewind(checkpoint, export.batch)
    _check_timeline(what, export, checkpoint)
    return rewind


def _check_timeline(what: str, export: Export, checkpoint: files.Folder) -> None:
    """Rejects an export of a batch that was planned again after the export was made.

    In checkpoint format 2 the commit log names the attempts. In format 1 only the planning time of
    the batch is known, by the driver's clock; the time of the export is by the Redis server's
    clock.
    """
    batch = str(export.batch)
    found = ""
    # The attempts by operator and partition; none in format 1.
    uids = _logged(checkpoint, f"commits/{batch}", "stateUniqueIds", dict) or {}
    if not uids:
        planned_ms = _logged(checkpoint, f"offsets/{batch}", "batchTimestampMs", int)
        if planned_ms is not None and planned_ms > export.created:
            found = (
                f"batch {batch} was planned again after the export was made, if the clocks of the "
                "driver and of the Redis server agree"
            )
    for store in export.stores:
        logged = uids.get(str(store.operator)) or []
        pairs = zip(store.partitions, logged, strict=False)
        if any(part.pin != EMPTY and part.uid not in (known or ()) for part, known in pairs):
            found = f"the commit log names other attempts at batch {batch}"
    if found:
        raise StateError(
            what,
            kind=Kind.STATE_LOST,
            found=f"the export belongs to a timeline that a rewind of the query abandoned: {found}",
            advice=(
                "Nothing was changed. Use an export of this timeline, or a copy, if the query "
                f"makes copies: `redis-state restore --checkpoint {shlex.quote(str(checkpoint))}`."
            ),
            where=str(checkpoint),
        )


def _logged(checkpoint: files.Folder, entry: str, name: str, kind: type[T]) -> T | None:
    """Returns a field of an entry of Spark's logs; ``None`` if the entry does not have it."""
    try:
        lines = (checkpoint.read(entry) or b"").decode().splitlines()
    except UnicodeDecodeError:
        return None
    for line in lines:
        try:
            found = json.loads(line)[name]
        except (ValueError, TypeError, KeyError):
            continue
        if type(found) is kind:
            return found
    return None


def _check_files(folder: ExportFolder, export: Export, progress: Progress) -> None:
    for number, file in enumerate(export.files, 1):
        if folder.sha256(file.path) != (file.bytes, file.sha256):
            raise damaged(folder, f"{file.path} does not match its SHA-256")
        progress("checking the files", number, len(export.files))
