"""Exports one version of a query into a folder, and resumes an interrupted export."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import time_ms
from redis_state.backend.script import script
from redis_state.errors import ConfigError, FormatError, Kind, NotFoundError, StateError, UsageError
from redis_state.exports.digest import DIGEST_DIGITS, digest_sum, digest_text
from redis_state.exports.export_plan import (
    DonePartition,
    ExportedVersions,
    ExportPlan,
    done_json,
    parse_done,
    parse_plan,
)
from redis_state.exports.folder import ExportFolder
from redis_state.exports.layout import DATA, MANIFEST, PLAN, PROGRESS, WRITER, partition_file
from redis_state.exports.manifest import (
    COLUMNS,
    RAW,
    Export,
    ExportedPartition,
    ExportedStore,
    tables_of,
)
from redis_state.exports.partition_files import ExportRequest, PartitionFiles
from redis_state.ids import EMPTY, PartitionId, Pin, text_number
from redis_state.progress import Progress
from redis_state.protocol.opening import NO_RUN, Opened, open_args, read_replies, reopen
from redis_state.protocol.registry import OperatorInfo
from redis_state.protocol.segments import SegmentGoneError
from redis_state.reader.query import Query
from redis_state.reader.version_request import VersionRequest as WantedVersion
from redis_state.reader.version_request import refuse_uncommitted
from redis_state.reader.view import QueryView

FILE_BYTES = 256 << 20
"""Default bytes of keys and values in one file."""


_WHAT = "exporting a query"
_TRIES_MAX = 5
_FIELDS = ("path", "id", "name", "created")
_NOTHING = ExportedPartition(0, 0, EMPTY.uid, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0, "0" * DIGEST_DIGITS, ())


def export_query(
    client: Client,
    query: Query,
    place: ExportFolder,
    *,
    at: str | int,
    operator: int | None,
    contents: str,
    file_bytes: int,
    progress: Progress,
) -> Export:
    """Exports a query; see `redis_state.live.Reader.export`."""
    if contents not in (COLUMNS, RAW):
        raise ConfigError(
            _WHAT,
            found=f"contents cannot be '{contents}'",
            advice=f"Give '{COLUMNS}' or '{RAW}'.",
        )
    if file_bytes < 1:
        raise ConfigError(
            _WHAT, found="the file size is below one byte", advice="Give file_bytes=1 or more."
        )
    return _ExportRun(client, query, place, contents, file_bytes, progress).run(at, operator)


class _ExportRun:
    """One attempt to make or finish an export."""

    def __init__(
        self,
        client: Client,
        query: Query,
        folder: ExportFolder,
        contents: str,
        file_bytes: int,
        progress: Progress,
    ) -> None:
        self._client = client
        self._query = query
        self._folder = folder
        self._contents = contents
        self._progress = progress
        self._writer = uuid.uuid4().hex
        self._what = f"exporting query '{query.info.title}' to {folder}"
        self._pinned: dict[PartitionId, Opened] = {}
        self._wanted = ExportRequest(
            contents == COLUMNS, file_bytes, self._writer, self._check_ours
        )

    def run(self, at: str | int, operator: int | None) -> Export:
        """Writes the missing partitions, then the manifest."""
        if self._folder.exists(MANIFEST):
            raise UsageError(
                self._what,
                found="there is a complete export in this folder",
                advice="Nothing was changed. Give another folder, or delete this one first.",
            )
        refuse_uncommitted(at, self._what)
        plan = self._plan(at, operator)
        if not self._folder.exists(PLAN):
            self._folder.write(PLAN, plan.to_json())
        self._folder.write(WRITER, self._writer.encode())
        self._check_incomplete()
        wanted = [(store, n) for store in plan.stores for n in range(len(store.pins))]
        kept = self._kept(plan)
        done: dict[tuple[int, str, int], DonePartition] = {}
        for number, (store, partition) in enumerate(wanted, 1):
            place = store.operator, store.store, partition
            done[place] = kept.get(place) or self._partition(store, partition)
            self._progress("exporting partitions", number, len(wanted))
        export = self._made(plan, done)
        self._remove_strays({file.path for file in export.files})
        self._folder.write(MANIFEST, export.to_json())
        self._folder.remove_folder(PROGRESS)
        return export

    def _plan(self, at: str | int, operator: int | None) -> ExportPlan:
        """Returns the plan of the interrupted export in this folder, or a new one."""
        asked = {"gen": self._query.info.gen, "operator": operator, "contents": self._contents}
        # Segments of a kept version are found by its name alone.
        kept = WantedVersion(at=at).kept
        if kept is not None:
            asked |= {"kept": kept}
        try:
            found = parse_plan(self._folder)
        except NotFoundError:
            self._check_incomplete()
            return self._new_plan(at, operator, asked)
        if kept is not None and dict(found.asked) == asked:
            view = self._query.view(operator, at=at)
            for one in view.operators():
                self._pins(view, one)
        other = dict(found.asked) != asked or (isinstance(at, int) and at != found.batch)
        if other:
            raise UsageError(
                self._what,
                found="another export was begun in this folder: of another query, batch, operator "
                "or format",
                advice=(
                    "Nothing was changed. Repeat the earlier request, give another folder, or "
                    "delete this one first."
                ),
            )
        return found

    def _new_plan(
        self, at: str | int, operator: int | None, asked: Mapping[str, Any]
    ) -> ExportPlan:
        if any(name.partition(".tmp")[0] != PLAN for name in self._folder.names()):
            raise UsageError(
                self._what,
                found="the folder holds other files",
                advice="Nothing was changed. Give an empty folder, or one that does not exist.",
            )
        view = self._query.view(operator, at=at)
        stores = view.operators()
        pins = [self._pins(view, one) for one in stores]
        if not any(pin != EMPTY for of_store in pins for pin in of_store):
            raise UsageError(
                self._what,
                found="no batch of the query is confirmed yet, so there is no state",
                advice="Export it after its second batch, or with --at latest.",
            )
        gen, tenant = self._query.info.gen, self._query.store_id(0, "").tenant
        time, raw = self._client.call(
            _WHAT, [("TIME",), ("HGETALL", keys.query(gen, tenant=tenant))]
        )
        places = {f"{one.operator}:{one.store}" for one in stores}
        info = self._query.info
        listed = {"path": info.path, "id": info.id, "name": info.name}
        fields = {name: value for name, value in listed.items() if value} | {
            name: value.decode("utf-8", "replace")
            for field, value in raw.items()
            if (name := field.decode("utf-8", "replace")) in _FIELDS
            or (name[:3] == "op:" and name[3:] in places)
            or (name[:6] == "batch:" and name[6:] in places)
        }
        there = {(one.operator, one.store) for one in stores}
        left_out = tuple(
            (one.operator, one.store)
            for one in self._query.operators()
            if operator in (None, one.operator) and (one.operator, one.store) not in there
        )
        alone = any(one.alone for one in stores)
        return ExportPlan(
            uuid.uuid4().hex,
            time_ms(time),
            asked,
            None if alone else view.version,
            None if alone else view.batch,
            fields,
            left_out,
            tuple(
                ExportedVersions(one.operator, one.store, one.name, of_store)
                for one, of_store in zip(stores, pins, strict=True)
            ),
        )

    def _pins(self, view: QueryView, one: OperatorInfo) -> tuple[Pin, ...]:
        _, opened = view.open_at(one.operator, one.store, WantedVersion())
        self._pinned.update((partition.id, partition) for partition in opened)
        return tuple(partition.pin for partition in opened)

    def _kept(self, plan: ExportPlan) -> dict[tuple[int, str, int], DonePartition]:
        """Returns the partitions that an interrupted export has finished, without damaged ones."""
        found: dict[tuple[int, str, int], DonePartition] = {}
        there = set(self._folder.names())
        for store in plan.stores:
            for partition, pin in enumerate(store.pins):
                name = partition_file(store.operator, store.store, partition)
                if name not in there:
                    continue
                done = self._whole(name, partition, pin, there)
                if done is not None:
                    found[store.operator, store.store, partition] = done
                    self._progress(
                        "checking existing files",
                        len(found),
                        sum(len(one.pins) for one in plan.stores),
                    )
        self._remove_strays({file.path for one, _ in found.values() for file in one.files})
        return found

    def _whole(self, name: str, partition: int, pin: Pin, there: set[str]) -> DonePartition | None:
        """Returns a finished partition; ``None`` if it or a file of it is damaged or gone."""
        try:
            done = parse_done(self._folder, name)
            files = done[0].files
            whole = (
                done[0].pin == pin
                and done[0].partition == partition
                and {file.path for file in files} <= there
                and all(
                    self._folder.sha256(file.path) == (file.bytes, file.sha256) for file in files
                )
            )
        except (FormatError, NotFoundError):
            return None
        return done if whole else None

    def _remove_strays(self, kept: set[str]) -> None:
        """Removes files that no partition names; readers of `*.parquet` would read them.

        The list is made before the check that the folder is still ours. A later process that takes
        the folder over keeps the files in `kept`, and its own files are not in the list.
        """
        strays = [
            name
            for name in self._folder.names(DATA)
            if name not in kept and name.partition(".tmp")[0].endswith(".parquet")
        ]
        self._check_incomplete()
        self._check_ours()
        for name in strays:
            self._folder.remove(name)

    def _partition(self, store: ExportedVersions, partition: int) -> DonePartition:
        pin = store.pins[partition]
        if pin == EMPTY:
            return replace(_NOTHING, partition=partition), ()
        id_ = PartitionId(self._query.store_id(store.operator, store.store), partition)
        format_, retained = self._marks(id_)
        opened = self._opened(id_, pin)
        for _ in range(_TRIES_MAX):
            self._check_ours()
            try:
                files = PartitionFiles(self._client, self._folder, opened, self._wanted)
                done = files.write(checkpoint_format=format_, retained=retained)
                break
            except SegmentGoneError as error:
                try:
                    opened = reopen(self._client, [opened])[0]
                except StateError as lost:
                    raise self._expired(id_, pin) from lost
                gone = error
        else:
            raise self._expired(id_, pin) from gone
        self._check_ours()
        name = partition_file(store.operator, store.store, partition)
        self._folder.write(name, done_json(done))
        return done

    def _opened(self, id_: PartitionId, pin: Pin) -> Opened:
        """Opens the version with its current segments; as pinned if it was just dropped."""
        asked = open_args(NO_RUN, pin.version, uid=pin.uid)
        replies = self._client.call(self._what, script("open").many([(keys.meta(id_), asked)]))
        try:
            (found,) = read_replies([id_], replies, version=pin.version)
        except StateError as error:
            if id_ in self._pinned:
                return self._pinned[id_]
            raise self._expired(id_, pin) from error
        if found.pin != pin:
            raise self._expired(id_, pin)
        return found

    def _marks(self, id_: PartitionId) -> tuple[int, int]:
        """Returns checkpoint format and retained versions of the run that holds a partition."""
        ((format_, retained),) = self._client.call(_WHAT, [("HMGET", keys.meta(id_), "c", "n")])
        numbers = [
            text_number((raw or b"1").decode("ascii", "replace")) for raw in (format_, retained)
        ]
        return (2 if numbers[0] == 2 else 1), max(1, numbers[1] or 1)

    def _expired(self, id_: PartitionId, pin: Pin) -> StateError:
        return StateError(
            self._what,
            kind=Kind.VERSION_EXPIRED,
            found=(
                f"version {pin.version} no longer exists: retention removed it, or the query was "
                "rewound or purged"
            ),
            advice=(
                f"Delete {self._folder} and export again. If it happens again, have the query keep "
                "more versions during the export (versionsToRetain), or write to a faster disk."
            ),
            where=str(id_),
            version=pin.version,
        )

    def _check_ours(self) -> None:
        """Checks that no other export has taken over the folder.

        Raises:
            UsageError: Another export has.
        """
        try:
            writer = self._folder.read(WRITER, most=len(self._writer))
        except NotFoundError:
            writer = b""
        if writer != self._writer.encode():
            raise UsageError(
                self._what,
                found="another export has taken over this folder",
                advice="Wait until it ends; or stop it, and run this one again.",
            )

    def _check_incomplete(self) -> None:
        """Checks that no other export has completed the folder since this one began.

        Raises:
            UsageError: Another export has.
        """
        if self._folder.exists(MANIFEST):
            # This export may have written progress files after that.
            self._folder.remove_folder(PROGRESS)
            raise UsageError(
                self._what,
                found="another export completed this folder meanwhile",
                advice="Use that export, which is complete, or give another folder.",
            )

    def _made(self, plan: ExportPlan, done: Mapping[tuple[int, str, int], DonePartition]) -> Export:
        stores = []
        for store in plan.stores:
            found = [done[store.operator, store.store, n] for n in range(len(store.pins))]
            tables = tables_of([table for one, table in found if one.pin != EMPTY])
            places = {table: number for number, table in enumerate(tables)}
            partitions = tuple(
                one if one.pin == EMPTY else replace(one, table=places[tuple(table)])
                for one, table in found
            )
            stores.append(
                ExportedStore(
                    store.operator,
                    store.store,
                    store.name,
                    sum(one.rows for one in partitions),
                    sum(one.bytes for one in partitions),
                    digest_text(digest_sum(int(one.digest, 16) for one in partitions)),
                    tables,
                    partitions,
                )
            )
        info = self._query.info
        return Export(
            plan.export,
            plan.created,
            info.gen,
            info.id,
            info.name,
            plan.fields,
            plan.version,
            plan.batch,
            self._contents,
            plan.left_out,
            sum(one.rows for one in stores),
            sum(one.bytes for one in stores),
            tuple(stores),
        )
