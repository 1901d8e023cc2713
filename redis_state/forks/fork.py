"""`fork`: makes a checkpoint that begins with the state of another one, and copies no state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from redis_state import config as options_table
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_error
from redis_state.backend.script import Command
from redis_state.backend.server import check_server
from redis_state.clock import SYSTEM, wall_ms
from redis_state.config import Config
from redis_state.errors import FormatError, UsageError
from redis_state.files import Folder, folder_at
from redis_state.forks.detach import detach_all
from redis_state.forks.logs import BatchLogs, planned_anew, read_logs
from redis_state.forks.names import check_free, claim, store_gen, store_names
from redis_state.forks.parent import Parent, ParentState, find_parent
from redis_state.forks.state import (
    StateFork,
    forget_pins,
    fork_fields,
    held_versions,
    is_detached,
)
from redis_state.forks.target import ForkRecord, TargetFolder
from redis_state.forks.versions import Held, VersionsAt, check_secret, unforkable, versions_at
from redis_state.progress import Progress, silent
from redis_state.protocol.pins import FORK_OF, FORKS
from redis_state.protocol.runs import PURGED_FIELD
from redis_state.recovery.marker import path_hash_of
from redis_state.recovery.rewind import newest_commit, startable_batches

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options

_WHAT = "forking a query"


@dataclass(frozen=True, slots=True)
class Forked:
    """A complete fork.

    Attributes:
        gen: Checkpoint id of the fork; of several, that of Spark's operators.
        path: Checkpoint folder of the fork, or the name of the new Python store.
        name: Name of the fork in `redis-state queries`, until its query gives its own.
        batch: Batch of the parent whose state the fork begins with; ``None`` for a Python store
            without batches.
        version: Version of that state.
        partitions: Number of partitions that hold anything.
        rows: Number of rows, without those of internal families, such as timers.
        seconds: Time that the call took.
        stores: New names of the Python stores that the query writes, by their names in the parent.
        detached: Number of partitions that were given a snapshot of their own.
    """

    gen: str
    path: str
    name: str
    batch: int | None
    version: int
    partitions: int
    rows: int
    seconds: float
    stores: Mapping[str, str] = field(default_factory=dict)
    detached: int = 0


def fork(
    url: str | None,
    query: str,
    *,
    to: str,
    at_batch: int | None = None,
    name: str | None = None,
    checkpoint: str | None = None,
    stores: Mapping[str, str] | None = None,
    detach: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = silent,
    **options: Unpack[Options],
) -> Forked:
    """Makes a new checkpoint that begins with the state of a query after a batch.

    Nothing of the state is copied: the fork reads the segments of its parent, which keeps them for
    it, and writes segments of its own. Both may run at the same time. Repeating an interrupted call
    finishes it.

    Args:
        url: The server of the query; ``None`` uses the server of the environment.
        query: Name or id of the query, id of its checkpoint, its checkpoint folder, or the name of
            a Python store.
        to: A folder that does not exist: the `checkpointLocation` of the fork's query. For a
            Python store, a name.
        at_batch: Batch after which the fork begins; ``None`` means the newest one in Spark's
            commit log.
        name: Name of the fork in the list of queries; ``None`` adds ``-fork`` to the parent's.
        checkpoint: Checkpoint folder of the query, if `query` does not name it.
        stores: New names of the Python stores that the query writes, by their present names; the
            default adds ``-fork`` to each.
        detach: Writes snapshots of the fork at once, which reads and writes all of its state. A day
            later the parent keeps no segment for it.
        storage_options: Options of fsspec for the file systems of both folders.
        progress: Called with the name of the work, the units done and the total.
        **options: Options of `docs/configuration.md` in snake case.

    Raises:
        NotFoundError: There is no such query in this Redis, under this key prefix.
        ConfigError: The folder of a Spark query is unknown, or the secret of its blocks is another.
        UsageError: The target exists, the query is ephemeral, or its number of partitions is being
            changed.
        StateError: Spark's logs or Redis do not hold the batch any more, or the query was purged.
        ConflictError: With `detach`: its own forks or kept versions need segments of the parent.
        UnavailableError: The server or a file system does not answer.
    """
    return fork_with(
        options_table.resolve(None, url, options),
        query,
        to=to,
        at_batch=at_batch,
        name=name,
        checkpoint=checkpoint,
        stores=stores,
        detach=detach,
        open_folder=partial(folder_at, storage_options=storage_options),
        progress=progress,
    )


def fork_with(
    config: Config,
    query: str,
    *,
    to: str,
    at_batch: int | None = None,
    name: str | None = None,
    checkpoint: str | None = None,
    stores: Mapping[str, str] | None = None,
    detach: bool = False,
    open_folder: Callable[[str], Folder] = folder_at,
    progress: Progress = silent,
) -> Forked:
    """Runs `fork` with options that are already checked.

    Args:
        open_folder: Opens a folder by its address.
    """
    began_s = SYSTEM.monotonic_s()
    tenant = keys.tenant_of(config.key_prefix)
    folder = None if checkpoint is None else open_folder(checkpoint)
    with closing(Client(config)) as client:
        check_server(client)
        parent = find_parent(client, query, folder, open_folder=open_folder, tenant=tenant)
        names = store_names(parent, to, stores)
        target = None if parent.folder is None else TargetFolder(open_folder(to))
        plan = _ForkPlan(client, tenant, parent, target, names)
        plan.choose(at_batch, title=name, may_be_complete=detach)
        forks = plan.forks()
        if not plan.is_complete:
            for step in (plan.begin, plan.pin, plan.create, plan.secure):
                step(forks)
            plan.publish(forks, progress)
        gens = [one.gen for one in forks]
        detached = detach_all(client, gens, tenant=tenant, progress=progress) if detach else 0
    return Forked(
        gen=gens[0],
        path=to if target is None else str(target.folder),
        name=plan.title,
        batch=plan.batch,
        version=forks[0].versions.version,
        partitions=sum(len(each.ids) for each in forks),
        rows=sum(each.versions.rows for each in forks),
        seconds=SYSTEM.monotonic_s() - began_s,
        stores=names,
        detached=detached,
    )


class _ForkPlan:
    """Parts of a fork, and its steps in their order (docs/format.md, section 14).

    Attributes:
        batch: See `Forked`.
        title: Name of the fork.
        is_complete: True if an earlier call has made all of the fork.
    """

    def __init__(
        self,
        client: Client,
        tenant: str,
        parent: Parent,
        target: TargetFolder | None,
        names: Mapping[str, str],
    ) -> None:
        self._client, self._tenant = client, tenant
        self._parent, self._target, self._names = parent, target, names
        self._record = ForkRecord("", "")
        self._logs: BatchLogs | None = None
        self._held: Held = {}
        self.batch: int | None = None
        self.title = ""
        self.is_complete = False

    def choose(
        self, at_batch: int | None, *, title: str | None, may_be_complete: bool = False
    ) -> None:
        """Chooses the batch: that of an interrupted fork, the given or the newest one.

        Args:
            may_be_complete: Accepts a fork that is complete, of which the parent still has all
                pins.
        """
        parents = tuple(state.gen for state in self._parent.states)
        if self._target is not None and self._parent.folder is not None:
            self._target.check_place(self._parent.folder)
            self._record = self._target.record(parents)
        self.title = title or f"{self._parent.title}-fork"
        begun = [self._begun(state) for state in self._parent.states]
        self.is_complete = bool(begun) and all(
            f"{FORKS}{self._gen(state)}" in state.fields and mark is not None
            for state, mark in zip(self._parent.states, begun, strict=True)
        )
        if self.is_complete and not may_be_complete:
            raise UsageError(
                _WHAT,
                found="that fork is complete already",
                advice="Start a query with it, or fork to another path or name.",
                where=self._where,
            )
        if self._target is None:
            self.title = title or next(iter(self._names.values()))
        decided = self._decided(begun)
        if decided is not None and at_batch not in (None, decided):
            raise UsageError(
                _WHAT,
                found=f"a fork of batch {decided} was interrupted there",
                advice=f"Finish it with --at-batch {decided}, or fork to another path or name.",
                where=self._where,
            )
        wanted = at_batch if decided is None else decided
        self.batch = wanted if self.is_complete else self._batch(wanted)
        plan = "" if self._logs is None else self._logs.digest
        self._record = replace(self._record, batch=self.batch, plan=plan)

    def forks(self) -> list[StateFork]:
        """Opens the state of the batch, and returns the forks of its checkpoints."""
        if self.is_complete:
            found = [self._held_by(state) for state in self._parent.states]
        else:
            attempts = {} if self._logs is None else self._logs.attempts
            found = versions_at(
                self._client,
                self._parent,
                self.batch,
                attempts,
                held=self._held,
                tenant=self._tenant,
            )
        check_secret(self._client, found)
        for old, new in self._names.items():
            gen = next(one.gen for one in self._parent.states if one.name == old)
            check_free(self._client, new, store_gen(gen, new), tenant=self._tenant)
        forks = []
        for versions in found:
            state = versions.state
            own = {**self._own(state), FORK_OF: f"{state.gen} {versions.version}"}
            of_query = self._record.query_id if self._target is not None else ""
            fields = fork_fields(state, self.batch, own, query_id=of_query if state.name else "")
            forks.append(
                StateFork(
                    self._client, versions, self._gen(state), fields, self._tenant, self._where
                )
            )
        return forks

    def begin(self, forks: list[StateFork]) -> None:
        """Step 1: writes the marker file, and registers the fork."""
        if self._target is not None:
            has_operators = any(not one.versions.state.name for one in forks)
            self._record = self._target.begin(self._record, with_marker=has_operators)
        for one in forks:
            one.gen = self._gen(one.versions.state)
            found = one.begin()
            if not one.versions.state.name:
                self._record = replace(self._record, query_id=found["id"])

    def pin(self, forks: list[StateFork]) -> None:
        """Step 2: pins the parent's segments for a day."""
        for one in forks:
            one.pin()

    def create(self, forks: list[StateFork]) -> None:
        """Step 3: creates the partitions."""
        for one in forks:
            one.create()

    def secure(self, forks: list[StateFork]) -> None:
        """Steps 4 and 5: makes the pins permanent."""
        for one in forks:
            one.secure()

    def publish(self, forks: list[StateFork], progress: Progress) -> None:
        """Steps 6 and 7: writes Spark's files and names, and removes the expiries."""
        copies = self._target is not None and not self._record.has_metadata
        if self._logs is not None and self._target is not None and copies:
            self._logs.copy_to(self._target.folder, progress)
        for one in forks:
            new = self._names.get(one.versions.state.name)
            if new is not None:
                claim(self._client, new, one.gen, tenant=self._tenant)
        if self._target is not None:
            self._target.finish(self._record)
        for one in forks:
            one.finish()

    @property
    def _where(self) -> str:
        if self._target is not None:
            return str(self._target.folder)
        return next(iter(self._names.values()), self._parent.where)

    def _held_by(self, state: ParentState) -> VersionsAt:
        """Returns what the parent still holds for a complete fork."""
        held = self._held.values()
        return VersionsAt(state, tuple(one for one in held if one.id.store.gen == state.gen))

    def _gen(self, state: ParentState) -> str:
        return store_gen(state.gen, self._names[state.name]) if state.name else self._record.gen

    def _own(self, state: ParentState) -> dict[str, str]:
        now = str(wall_ms())
        if state.name:
            new = self._names[state.name]
            return {
                "name": new,
                "path": keys.name_field(new),
                "id": self._gen(state),
                "created": now,
            }
        assert self._target is not None
        path = path_hash_of(self._target.folder)
        own = {"name": self.title, "path": path, "id": self._record.query_id, "created": now}
        return {**own, "marker": "1"}

    def _begun(self, state: ParentState) -> str | None:
        """Returns parent and version of an interrupted fork of a checkpoint; ``None`` without one.

        Raises:
            UsageError: The checkpoint is a fork of something else.
        """
        gen = self._gen(state)
        if not gen:
            return None
        query = keys.query(gen, tenant=self._tenant)
        wanted: Command = ("HMGET", query, FORK_OF, "f", PURGED_FIELD)
        ((raw, listed, purged),) = self._client.call(_WHAT, [wanted])
        if purged is not None:
            raise purged_error(_WHAT, gen, where=self._where)
        if listed is None:
            if f"{FORKS}{gen}" in state.fields or state.name or self._record.batch is not None:
                forget_pins(self._client, state, gen, tenant=self._tenant)
            return None
        mark = (raw or b"").decode("ascii", "replace")
        if mark.partition(" ")[0] != state.gen:
            raise UsageError(
                _WHAT,
                found="the new path or name has other state",
                advice="Fork to another path or name. Nothing was made.",
                where=self._where,
            )
        held = held_versions(self._client, state, gen, tenant=self._tenant)
        if not held and is_detached(self._client, state, gen, tenant=self._tenant):
            raise UsageError(
                _WHAT,
                found="that fork is complete already, and needs nothing of its parent",
                advice="Start a query with it, or fork to another path or name.",
                where=self._where,
            )
        self._held = {**self._held, **held}
        return mark

    def _decided(self, begun: list[str | None]) -> int | None:
        """Returns the batch that an interrupted fork has chosen; ``None`` without one."""
        for state, mark in zip(self._parent.states, begun, strict=True):
            version = int(mark.partition(" ")[2]) if mark is not None else None
            of_batches = [one for one in state.operators if not one.alone]
            if version is not None and of_batches:
                return version - of_batches[0].ahead
        return self._record.batch

    def _batch(self, wanted: int | None) -> int | None:
        """Returns the batch to fork; with a folder, also reads its logs.

        Raises:
            UsageError: A Python store has no batches.
            StateError: Spark cannot continue after the batch.
        """
        if self._parent.folder is None:
            (state,) = self._parent.states
            newest = [one for each in state.operators if (one := state.counted(each))]
            if not newest:
                if wanted is not None:
                    raise UsageError(
                        _WHAT,
                        found="its partitions have versions of their own, which are not batches",
                        advice="Leave --at-batch out: the fork begins with the newest versions.",
                        where=self._where,
                    )
                return None
            return newest[0].number if wanted is None else wanted
        return self._batch_of_logs(self._parent.folder, wanted)

    def _batch_of_logs(self, folder: Folder, wanted: int | None) -> int:
        if self._target is not None and self._record.has_metadata:
            folder = self._target.folder
        newest = newest_commit(folder) if wanted is None else wanted
        if newest is None:
            raise UsageError(
                _WHAT,
                found="its query has committed no batch yet",
                advice="Fork it after its first batch. Nothing was made.",
                where=self._parent.where,
            )
        found = ""
        if newest < self._parent.since:
            found = f"batch {self._parent.since} changed the number of partitions, and the state "
            found += "has nothing from before any more"
        elif newest not in startable_batches(folder):
            found = "Spark's logs do not hold that batch and the one before it"
        else:
            try:
                self._logs = read_logs(folder, newest)
            except FormatError as error:
                found = f"{error.attempted}: {error.found}"
        if found:
            raise unforkable(self._client, self._parent, newest, found, tenant=self._tenant)
        if self._logs is not None and self._record.plan not in ("", self._logs.digest):
            raise planned_anew(folder, newest)
        return newest
