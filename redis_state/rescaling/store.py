"""In-place change of the number of partitions of a Python batch store; no pyspark.

The rows are copied into the partitions of a new checkpoint, at their versions. Then the store name
is moved from the old checkpoint to the new one. Until that last step, nothing that a query reads
has changed. Leftovers of an interrupted call expire within a day.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from redis_state import config as options_table
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_error
from redis_state.backend.room import check_room
from redis_state.backend.script import script
from redis_state.backend.server import check_server
from redis_state.batches.driver import OPERATOR, PARTITIONS_MAX, PLACE, named, not_opened
from redis_state.codec import Codec
from redis_state.config import Config
from redis_state.errors import (
    ConflictError,
    NotFoundError,
    RedisStateError,
    StateError,
    UnavailableError,
    UsageError,
)
from redis_state.format.entry import Entry
from redis_state.ids import DEFAULT_STORE, EMPTY_UID, PartitionId, Pin, StoreId, text_number
from redis_state.maintain.activity import refuse_if_used
from redis_state.protocol import (
    PartitionClient,
    RegisteredRun,
    checkpoint_gen,
    confirm_checkpoint,
    register_run,
)
from redis_state.protocol.newest_batch import NewestBatch
from redis_state.protocol.opening import open_commands, read_replies
from redis_state.protocol.runs import PURGED_FIELD, STAGED_TTL_MS
from redis_state.rescaling.copy import RescaledCheckpoint
from redis_state.rescaling.placing import GroupOf, Placing, cannot
from redis_state.rescaling.rows import RescaleSource, RescaleTarget, restore

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options

_LOG = logging.getLogger(__name__)
_KEPT = ("id", "created", f"plan:{PLACE}", f"joined:{PLACE}", f"query:{PLACE}")
"""Registry fields that are copied unchanged."""


@dataclass(frozen=True, slots=True)
class StoreRescale:
    """Result of a change of the number of partitions, or of its dry run.

    Attributes:
        gen: Id of the checkpoint before the change.
        new_gen: Id of the new checkpoint; empty if nothing was changed.
        batch: Newest batch, the last one in the copied state.
        before: Number of partitions before the change.
        rows: Number of rows by new partition, without those of internal families, such as timers.
    """

    name: str
    gen: str
    new_gen: str
    batch: int
    before: int
    rows: tuple[int, ...]

    @property
    def partitions(self) -> int:
        """Returns the number of partitions after the change."""
        return len(self.rows)


def rescale_store(
    name: str,
    partitions: int,
    *,
    url: str | None = None,
    group_of: GroupOf | None = None,
    codec: Codec | None = None,
    dry_run: bool = False,
    force: bool = False,
    **options: Unpack[Options],
) -> StoreRescale:
    """Changes the number of partitions of a batch store.

    The store is one of `transform_with_state` or `foreach_batch_with_state_store`. The query must
    be stopped after a complete batch. At its next start the query continues with all of its state;
    leave ``partitions`` out of its call, or give the new number. The old state stays in Redis under
    the checkpoint id `StoreRescale.gen` until ``redis-state purge --gen`` removes it.

    Every row is checked. A row whose partition differs from Spark's hash of its key columns fails
    the call, and nothing is changed.

    Args:
        name: Name of the store.
        group_of: For a store that your function writes: maps a key of the state to the values of
            the key columns, in their order. ``None`` takes keys that are these values, or tuples
            that begin with them, if enough keys prove this.
        codec: Codec of such a store, if you wrote the codec.
        dry_run: Reads and counts, but changes nothing.
        force: Skips the check whether the query seems to run.
        url: The server; ``None`` uses the server of the environment.
        **options: Options of `docs/configuration.md` in snake case.

    Raises:
        NotFoundError: The store does not exist.
        UsageError: The store seems to be in use, already has that many partitions, is a store
            without a query, is ephemeral, or has rows whose partition cannot be determined. Also
            raised after the call has finished an interrupted call for another number.
        StateError: A partition does not hold the version of the newest batch.
        ConflictError: The query was started in the meantime.
        FullError: The server has no memory for both checkpoints; found before anything is written.
        UnavailableError: Written data was lost before the last step.
    """
    return rescale_with(
        options_table.resolve(None, url, options),
        name,
        partitions,
        group_of=group_of,
        codec=codec,
        dry_run=dry_run,
        force=force,
    )


def rescale_with(
    config: Config,
    name: str,
    partitions: int,
    *,
    group_of: GroupOf | None = None,
    codec: Codec | None = None,
    dry_run: bool = False,
    force: bool = False,
) -> StoreRescale:
    """Runs `rescale_store` with options that are already checked."""
    tenant = keys.tenant_of(config.key_prefix)
    with closing(Client(config)) as client:
        store = _RescaledStore.find(client, name, tenant)
        moved = store.moved_to()
        if moved is not None and not dry_run:
            # An earlier call took the decisive step; only the rest is left to do.
            return store.finish_earlier(moved, partitions)
        store.check(partitions)
        if not dry_run:
            refuse_if_used(client, store.gen, tenant=tenant, attempted=store.what, force=force)
        return store.rescale(partitions, group_of, codec, dry_run=dry_run)


class _RescaledStore:
    """A store to rescale, as its registry describes it."""

    def __init__(
        self, client: Client, name: str, tenant: str, gen: str, registry: dict[str, str]
    ) -> None:
        self.client, self.name, self.tenant, self.gen = client, name, tenant, gen
        self.what = f"changing the number of partitions of store '{name}'"
        self.registry = registry
        self.newest = NewestBatch.parse(registry[f"batch:{PLACE}"].encode())
        self.batch, self.before = self.newest.number, self.newest.partitions
        self.version, self.layout = self.newest.version, self.newest.layout

    @classmethod
    def find(cls, client: Client, name: str, tenant: str) -> _RescaledStore:
        """Finds the store that has the name now."""
        what = f"changing the number of partitions of store '{name}'"
        gen = checkpoint_gen(client, name, tenant=tenant)
        found: dict[bytes, bytes] = {}
        if gen is not None:
            (found,) = client.call(what, [("HGETALL", keys.query(gen, tenant=tenant))])
        if gen is None or not found:
            raise NotFoundError(
                what,
                found="Redis knows no store of this name",
                advice=(
                    "`redis-state queries` lists the stores of this server, database and key "
                    "prefix."
                ),
            )
        registry = {key.decode(): value.decode() for key, value in found.items()}
        if PURGED_FIELD in registry:
            raise purged_error(what, gen)
        if f"batch:{PLACE}" not in registry:
            raise cannot(
                "no batch has begun there, or it is a single store, whose program itself assigns "
                "keys to partitions",
                "Give the new number to the first batch, or have the program read the old "
                "partitions and write new ones. Nothing was changed.",
            )
        return cls(client, name, tenant, gen, registry)

    def moved_to(self) -> str | None:
        """Returns the checkpoint that already has the state; ``None`` without one."""
        return self.registry.get(f"moved:{PLACE}")

    def check(self, partitions: int) -> None:
        """Raises if the number of partitions is invalid or unchanged, or the store is ephemeral."""
        check_server(self.client)
        if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
            raise UsageError(
                self.what,
                found=f"{partitions!r} partitions were requested",
                advice=f"Give 1 to {PARTITIONS_MAX}.",
            )
        if partitions == self.before:
            raise UsageError(
                self.what,
                found=f"it already has {partitions} partitions",
                advice="Nothing was changed.",
            )
        (left_ms,) = self.client.call(self.what, [("PTTL", self._query(self.gen))])
        if left_ms >= 0:
            raise UsageError(
                self.what,
                found="the store is ephemeral, so it expires by itself",
                advice="Begin a new store with the other number. Nothing was changed.",
            )

    def rescale(
        self, partitions: int, group_of: GroupOf | None, codec: Codec | None, *, dry_run: bool
    ) -> StoreRescale:
        """Reads the rows, writes the new checkpoint and moves the name to it."""
        versions, size = self._versions()
        rows = self._look(versions[0], partitions, group_of, codec)
        if dry_run:
            return StoreRescale(self.name, self.gen, "", self.batch, self.before, rows)
        check_room(self.client, size, what=self.what)
        retained = self._retained()
        run = self._take(retained)
        self._let_expire_what_was_left()
        new_gen = uuid.uuid4().hex
        copy = self._copy(new_gen, partitions)
        pins = self._write(copy, versions, retained, group_of, codec)
        copy.take(run, pins, retained=retained)
        self._describe(copy, run)
        self._leave(copy, pins, run)
        return self.finish(new_gen)

    def finish_earlier(self, new_gen: str, partitions: int) -> StoreRescale:
        """Finishes an interrupted call.

        Raises:
            UsageError: The interrupted call was finished, but had another number of partitions.
        """
        done = self.finish(new_gen)
        if done.partitions != partitions:
            raise UsageError(
                self.what,
                found=f"an interrupted call for {done.partitions} partitions was finished first, "
                f"so the store has {done.partitions} now",
                advice=f"Run it again if {partitions} partitions are still wanted.",
            )
        return done

    def finish(self, new_gen: str) -> StoreRescale:
        """Moves the name to the new checkpoint; may be repeated."""
        registry = self.client.call(self.what, [("HGETALL", self._query(new_gen))])[0]
        field = registry.get(f"batch:{PLACE}".encode())
        if field is None:
            raise StateError(
                self.what,
                found=f"its state was moved to checkpoint {new_gen}, which is missing",
                advice="Restore the data of that Redis.",
            )
        newest = NewestBatch.parse(field)
        count = newest.partitions
        rows = self._copy(new_gen, count).rows(newest.version)
        confirm_checkpoint(
            self.client,
            new_gen,
            name=self.name,
            operator=OPERATOR,
            store=DEFAULT_STORE,
            partitions=count,
            families=(),
            tenant=self.tenant,
        )
        args = [keys.name_field(self.name), self.gen, new_gen]
        reply = self.client.script(
            self.what, script("rename"), [keys.names(tenant=self.tenant)], args
        )
        if reply != ["OK"]:
            raise ConflictError(
                self.what,
                found=f"the name now has another checkpoint, {reply[-1]}",
                advice="Another call was faster. See `redis-state queries`.",
            )
        self._wake_readers()
        return StoreRescale(self.name, self.gen, new_gen, newest.number, self.before, rows)

    def _wake_readers(self) -> None:
        """Wakes the readers of the old partitions, so that they find the new checkpoint."""
        try:
            self._take(self._retained())
        except RedisStateError as error:
            # The store has moved all the same, and a reader that opens it anew finds the new
            # checkpoint.
            _LOG.warning("feeds of checkpoint %s were not woken: %s", self.gen, error)

    def _versions(self) -> tuple[list[int], int]:
        """Returns the versions to copy, and an upper bound of their bytes.

        These are the version of the newest batch and, if held, the one below: Spark may rerun that
        batch.
        """
        ids = self._ids
        replies = self.client.call(self.what, open_commands(ids, self.version))
        missing = not_opened(ids, replies, what=self.what)
        if missing:
            raise StateError(
                self.what,
                found=f"{named(missing)} does not hold version {self.version}: batch {self.batch} "
                "never ran to its end there, or its state was lost",
                advice=(
                    f"Run batch {self.batch} of the query to its end, then try again. Nothing was "
                    "changed."
                ),
                version=self.version,
            )
        versions, size = [self.version], _bytes(ids, replies, self.version)
        below = self.version - 1
        if below >= 1:
            replies = self.client.call(self.what, open_commands(ids, below))
            if not not_opened(ids, replies, what=self.what):
                versions.append(below)
                size += _bytes(ids, replies, below)
        return versions, size

    def _look(
        self, version: int, partitions: int, group_of: GroupOf | None, codec: Codec | None
    ) -> tuple[int, ...]:
        """Reads every row once and returns the number of rows by new partition."""
        source = RescaleSource(self.client, self._ids, version)
        placing = Placing(self.layout, source.families, group_of=group_of, codec=codec)
        counted = source.spread(placing, partitions, ())
        sure = placing.of_groups or group_of is not None
        if not sure and not counted.proven:
            raise cannot(
                "its rows are too few, or in one partition, so the meaning of its keys cannot be "
                "verified"
            )
        return tuple(counted.rows)

    def _take(self, retained: int) -> RegisteredRun:
        """Acquires the old partitions, which fences older runs and wakes feeds."""
        run = register_run(
            self.client, self.gen, uuid.uuid4().hex, by_driver=True, tenant=self.tenant
        )
        for id_ in self._ids:
            partition = PartitionClient(self.client, id_, versions_to_retain=retained)
            run = partition.acquire(run, partition.open("", self.version).pin)
        return run

    def _let_expire_what_was_left(self) -> None:
        """Sets the expiry of a checkpoint left by a call that was killed before the decisive step.

        That call cannot take the step any more, because a newer run is registered.
        """
        fields = (f"moved:{PLACE}", f"moving:{PLACE}")
        command = ("HMGET", self._query(self.gen), *fields)
        ((moved, moving),) = self.client.call(self.what, [command])
        if moved is not None:
            raise self._overtaken()
        if moving is not None:
            gen = moving.decode()
            described = ("HGET", self._query(gen), f"batch:{PLACE}")
            (newest,) = self.client.call(self.what, [described])
            if newest is not None:
                self._copy(gen, NewestBatch.parse(newest).partitions).keep(STAGED_TTL_MS)

    def _write(
        self,
        copy: RescaledCheckpoint,
        versions: Sequence[int],
        retained: int,
        group_of: GroupOf | None,
        codec: Codec | None,
    ) -> list[Pin]:
        """Writes the new partitions, which expire, and returns the newest version of each."""
        refs = [EMPTY_UID] * copy.partitions
        written: list[list[tuple[RescaleTarget, Entry]]] = []
        for version in reversed(versions):
            made = self._write_version(copy, version, refs, group_of, codec)
            written.insert(0, made)
            refs = [target.uid for target, _ in made]
        floor = 0 if versions[-1] == 1 else versions[-1]
        for of_one in zip(*written, strict=True):
            restore(self.client, of_one, floor=floor, retained=retained)
        return [Pin(versions[0], uid) for uid in refs]

    def _write_version(
        self,
        copy: RescaledCheckpoint,
        version: int,
        refs: Sequence[str],
        group_of: GroupOf | None,
        codec: Codec | None,
    ) -> list[tuple[RescaleTarget, Entry]]:
        source = RescaleSource(self.client, self._ids, version)
        placing = Placing(self.layout, source.families, group_of=group_of, codec=codec)
        targets = [
            RescaleTarget(
                self.client,
                id_,
                version,
                uuid.uuid4().hex,
                ref,
                source.families,
                highest_id=source.highest_id,
            )
            for id_, ref in zip(copy.ids, refs, strict=True)
        ]
        source.spread(placing, copy.partitions, targets)
        return [(one, one.finish()) for one in targets]

    def _describe(self, copy: RescaledCheckpoint, run: RegisteredRun) -> None:
        fields = {name: self.registry[name] for name in _KEPT if name in self.registry}
        fields["epoch"] = str(run.epoch)
        fields[f"batch:{PLACE}"] = str(replace(self.newest, partitions=copy.partitions))
        begun = self.registry.get(f"begun:{PLACE}")
        if begun is not None:
            # No run has written the new partitions, so no run is too old for them.
            fields[f"begun:{PLACE}"] = " ".join([*begun.split(" ")[:4], "0", "0"])
        copy.describe(fields)

    def _leave(self, copy: RescaledCheckpoint, pins: Sequence[Pin], run: RegisteredRun) -> None:
        """Commits the move, after which no batch begins in the old checkpoint.

        A server that does not answer may still take the step, so the written data stays. The next
        call finishes the move or makes the data expire.
        """
        query = self._query(self.gen)
        self.client.call(self.what, [("HSET", query, f"moving:{PLACE}", copy.gen)])
        if not copy.keep(0) or not copy.is_whole(pins):
            copy.keep(STAGED_TTL_MS)
            raise UnavailableError(
                self.what,
                found="the written state expired or was lost before the last step",
                advice="Nothing was changed. Try again.",
            )
        args = [PLACE, str(run.epoch), str(self.newest), copy.gen]
        reply = self.client.script(self.what, script("leave"), [query], args)
        if reply == ["PURGED"]:
            raise purged_error(self.what, self.gen)
        if reply != ["OK", copy.gen]:
            copy.keep(STAGED_TTL_MS)
            raise self._overtaken()

    def _overtaken(self) -> ConflictError:
        return ConflictError(
            self.what,
            found="the query was started meanwhile, or another call was faster",
            advice="The query continues with its present partitions. Stop it, and try again.",
        )

    def _retained(self) -> int:
        (id_, *_) = self._ids
        (found,) = self.client.call(self.what, [("HGET", keys.meta(id_), "n")])
        return text_number((found or b"").decode()) or 1

    def _copy(self, gen: str, partitions: int) -> RescaledCheckpoint:
        store = StoreId(gen, OPERATOR, DEFAULT_STORE, self.tenant)
        return RescaledCheckpoint(self.client, self.what, store, partitions)

    def _query(self, gen: str) -> str:
        return keys.query(gen, tenant=self.tenant)

    @property
    def _ids(self) -> list[PartitionId]:
        return self._copy(self.gen, self.before).ids


def _bytes(ids: Sequence[PartitionId], replies: Sequence[object], version: int) -> int:
    opened = read_replies(ids, replies, version=version)
    return sum(segment.entry.bytes for one in opened for segment in one.segments)
