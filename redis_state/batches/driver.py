"""Driver side of a stateful `map_partitions`: batches, their runs and versions; no pyspark.

Batch `b` reads version `b - first` of every partition and commits the next version. Beginning a
batch registers an epoch and acquires every partition at that version. So late evaluations of an
earlier call are fenced, and a second evaluation in this call replaces the first.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_error
from redis_state.backend.script import script
from redis_state.config import Config
from redis_state.errors import (
    ConflictError,
    InternalError,
    Kind,
    RedisStateError,
    StateError,
    UsageError,
)
from redis_state.ids import DEFAULT_STORE, PartitionId, StateStoreId, StoreId
from redis_state.protocol import (
    NamedStore,
    PartitionClient,
    RegisteredRun,
    checkpoint_gen,
    confirm_checkpoint,
    register_run,
)
from redis_state.protocol.bounding import declare_files, share_by
from redis_state.protocol.newest_batch import NewestBatch
from redis_state.protocol.opening import not_opened, open_commands
from redis_state.protocol.runs import is_newest
from redis_state.store.local.families import family_of

OPERATOR = 0
PARTITIONS_MAX = 1 << 16
BATCH_MAX = (1 << 53) - 1  # Lua counts in doubles
PLACE = f"{OPERATOR}:{DEFAULT_STORE}"
"""The operator and store, as fields of the registry name them."""
_PIN_TRIES_MAX = 5


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Identity of the store of a batch or of a plan.

    Attributes:
        name: Name of the store.
    """

    name: str
    gen: str
    tenant: str

    def partition(self, number: int) -> PartitionId:
        """Returns the id of one partition."""
        return PartitionId(StoreId(self.gen, OPERATOR, DEFAULT_STORE, self.tenant), number)

    def store_id(self, partition: int) -> StateStoreId:
        """Returns the id of the store that a task opens."""
        return StateStoreId(self.name, OPERATOR, partition)


@dataclass(frozen=True, slots=True)
class Batch(StoreIdentity):
    """A batch that has begun; is serialized to the tasks.

    Attributes:
        number: The batch id.
        version: Version at which every partition is opened; the batch commits the next version.
        layout: Key columns, their types and the codec, as one ASCII text.
    """

    number: int
    version: int
    partitions: int
    layout: str
    run: RegisteredRun

    def ids(self) -> list[PartitionId]:
        """Returns the ids of all partitions."""
        return [self.partition(number) for number in range(self.partitions)]


@dataclass(frozen=True, slots=True)
class AskedStore:
    """Store of a batch as the caller describes it, to compare with the store that is there.

    Attributes:
        first: Id of the store's first batch.
        partitions: 0 accepts any number.
        layout: Key columns, types and codec of the rows.
    """

    name: str
    gen: str
    first: int
    partitions: int
    layout: str


def begin_batch(
    client: Client,
    config: Config,
    *,
    name: str,
    number: int,
    first: int,
    partitions: int | None,
    partitions_default: int,
    layout: str,
    codec_name: str,
    query_id: str = "",
) -> Batch:
    """Begins a batch, or begins the newest batch again and drops its results.

    Args:
        number: The batch id.
        first: Id of the store's first batch.
        partitions: ``None`` uses the store's number, or `partitions_default` for a new store.
        codec_name: Codec of the store's rows.
        query_id: Spark's id of the query whose `foreachBatch` calls; empty if unknown.

    Raises:
        UsageError: The batch id is neither the next nor the newest; or the number of partitions,
            the key columns or the codec differ from the store's.
        StateError: The store does not hold the version of the previous batch, or was purged.
        ConflictError: Another driver took the store in the meantime.
        ConfigError: The bound of the store is too small, or its folder is another one.
    """
    what = f"beginning batch {number} of store '{name}'"
    _check_numbers(what, number, first, partitions)
    tenant = keys.tenant_of(config.key_prefix)
    gen = checkpoint_gen(client, name, tenant=tenant, create=number == first)
    if gen is None:
        raise lost(what, name, first)
    query = [keys.query(gen, tenant=tenant)]
    asked = AskedStore(name, gen, first, partitions or 0, layout)
    count = _batch(client, what, query, asked, ["check", "-", "0", str(number)], "")
    asked = replace(asked, partitions=count or partitions_default)
    run = register_run(client, gen, uuid.uuid4().hex, by_driver=True, tenant=tenant)
    batch = Batch(name, gen, tenant, number, number - first, asked.partitions, layout, run)
    _check_committed(client, what, batch)
    begin = ["begin", run.run_id, str(run.epoch), str(number)]
    _batch(client, what, query, asked, begin, query_id)
    store = NamedStore(name, OPERATOR, DEFAULT_STORE, asked.partitions, [family_of(codec_name)])
    confirm_checkpoint(client, gen, store, tenant=tenant, keep_ms=config.keep_ms)
    # The tasks find their partitions held, and acquire nothing.
    declare_files(client, gen, config, tenant=tenant)
    share = share_by(client, gen, config, tenant=tenant)
    for id_ in batch.ids():
        partition = PartitionClient(
            client,
            id_,
            versions_to_retain=config.versions_kept,
            keep_ms=config.keep_ms,
            where=str(batch.store_id(id_.partition)),
        )
        _pin(client, partition, batch, share)
    return batch


def verify_committed(client: Client, batch: Batch) -> None:
    """Checks that every partition of a batch has committed.

    Raises:
        StateError: A partition has not committed; the message names it.
        ConflictError: A later call took the store.
    """
    late = superseded(client, batch, f"verifying batch {batch.number} of store '{batch.name}'")
    if late is not None:
        raise late
    missing = _without(client, batch, batch.version + 1)
    if missing:
        raise StateError(
            f"verifying batch {batch.number} of store '{batch.name}'",
            found=f"{named(missing)} never ran to the end, so nothing was committed there",
            advice="Evaluate the whole DataFrame, not only its first rows, before the batch ends; "
            "then run the batch again.",
            kind=Kind.STATE_LOST,
            version=batch.version + 1,
        )


def superseded(client: Client, batch: Batch, what: str) -> ConflictError | None:
    """Returns the error of a superseded batch; ``None`` if the batch is still the newest."""
    fields = (f"batch:{PLACE}", f"moved:{PLACE}")
    command = ("HMGET", keys.query(batch.gen, tenant=batch.tenant), *fields)
    ((found, to),) = client.call("looking for the newest batch", [command])
    if to is not None:
        return moved(what)
    newest = NewestBatch.parse(found) if found else None
    if newest is not None and newest.run_id == batch.run.run_id:
        return None
    return ConflictError(
        what,
        found="map_partitions_with_state_store was called again since this DataFrame was made, "
        f"for batch {'?' if newest is None else newest.number}",
        advice="The DataFrame that a call returns can be evaluated only until the next call. "
        "Evaluate it before that, or keep its rows with persist(). Nothing was changed.",
    )


def _batch(
    client: Client, what: str, query: list[str], asked: AskedStore, step: list[str], query_id: str
) -> int:
    shape = [str(asked.first), str(asked.partitions), asked.layout]
    reply = client.script(what, script("batch"), query, [PLACE, *step, *shape, query_id])
    if reply[0] == "OK":
        return int(reply[1])
    if reply[0] == "FENCED":
        raise ConflictError(what, found="another driver began a batch in the meantime")
    raise refused(what, reply, asked)


def refused(what: str, reply: Sequence[str], asked: AskedStore) -> RedisStateError:
    """Returns the error for a batch that the script `batch` or `join` refuses."""
    match reply:
        case ["PURGED"]:
            return purged_error(what, asked.gen)
        case ["PARTITIONS", count]:
            found = f"the store has {count} partitions, not {asked.partitions}"
            advice = "Omit `partitions`, or give the number of the store: it never changes."
        case ["LAYOUT", known]:
            found = f"the store was made with {known}, not with {asked.layout}"
            advice = "Give the same key columns, types and codec, or another store."
        case ["FIRST", known]:
            found = f"the store began with batch {known}, not {asked.first}"
            advice = f"Give first_batch_id={known}."
        case ["MOVED", _]:
            return moved(what)
        case ["GAP", "-"]:
            return lost(what, asked.name, asked.first)
        case ["GAP", newest]:
            found = f"the newest batch is {newest}, so the next one is {int(newest) + 1}"
            advice = f"Run the batches that were left out. {_was_set_back(asked.gen)}"
        case ["OLD", newest]:
            found = f"the newest batch is {newest}, and only that batch can be run again"
            advice = (
                "Give a new store if the batches of a stream start again from the first one. "
                f"{_was_set_back(asked.gen)}"
            )
        case _:
            return InternalError(what, found=f"the script answered '{' '.join(reply)[:200]}'")
    return UsageError(what, found=found, advice=advice)


def _was_set_back(gen: str) -> str:
    return (
        "If the query's checkpoint was set back, or forward, by hand: `redis-state doctor --gen "
        f"{gen} --checkpoint FOLDER` prints how to set the store to it; FOLDER is the query's "
        "checkpointLocation."
    )


def _check_numbers(what: str, number: int, first: int, partitions: int | None) -> None:
    for value, name in ((number, "batch id"), (first, "first batch id")):
        if type(value) is not int or not 0 <= value <= BATCH_MAX:
            raise UsageError(
                what,
                found=f"the {name} is not a whole number of 0 or more",
                advice="Give the batch id of foreachBatch, or numbers of your own that rise by 1.",
            )
    if number < first:
        raise UsageError(
            what,
            found=f"the first batch id is {first}",
            advice="Give that batch id or a higher one.",
        )
    if partitions is not None and not 1 <= partitions <= PARTITIONS_MAX:
        raise UsageError(
            what,
            found=f"{partitions} partitions were requested",
            advice=f"Give 1 to {PARTITIONS_MAX}, or omit it.",
        )


def _check_committed(client: Client, what: str, batch: Batch) -> None:
    if batch.version == 0:
        return
    missing = _without(client, batch, batch.version)
    if missing:
        raise StateError(
            what,
            found=f"{named(missing)} does not hold version {batch.version}: batch "
            f"{batch.number - 1} never ran to its end there, or its state was lost",
            advice=f"Run batch {batch.number - 1} again; if it had ended, restore the data of "
            "that Redis.",
            kind=Kind.STATE_LOST,
            version=batch.version,
        )


def _without(client: Client, batch: Batch, version: int) -> list[int]:
    """Returns the partitions that do not hold a version."""
    ids = batch.ids()
    what = "looking for the committed partitions"
    replies = client.call(what, open_commands(ids, version))
    return not_opened(ids, replies, what=what)


def _pin(client: Client, partition: PartitionClient, batch: Batch, share: int) -> None:
    """Acquires a partition; retries if a late commit of the previous run replaces the version."""
    for tries in range(_PIN_TRIES_MAX):
        pin = partition.open("", batch.version).pin
        try:
            partition.acquire(batch.run, pin, share=share)
            return
        except ConflictError:
            newest = is_newest(client, batch.gen, batch.run.run_id, tenant=batch.tenant)
            if not newest or tries == _PIN_TRIES_MAX - 1:
                raise


def moved(what: str) -> ConflictError:
    """Returns the error for a call that holds the checkpoint from before a rescale."""
    return ConflictError(
        what,
        found="the store was given another number of partitions, and has another checkpoint now",
        advice=(
            "Stop the query and start it again. If this error persists, the change was "
            "interrupted at its last step: run the same `redis-state rescale NAME --partitions N` "
            "again. Nothing was changed."
        ),
    )


def named(partitions: Sequence[int]) -> str:
    """Formats partitions for an error message."""
    shown = ", ".join(map(str, partitions[:10]))
    more = f" and {len(partitions) - 10} more" if len(partitions) > 10 else ""
    return f"partition {shown}{more}"


def lost(what: str, name: str, first: int) -> StateError:
    """Returns the error for a store that is missing in Redis although earlier batches ran."""
    return StateError(
        what,
        found="Redis knows no store of this name",
        advice="Likely: another server, database or key prefix than before, or lost data. Restore "
        f"it; or begin with batch {first}; or give first_batch_id for a new store '{name}'.",
        kind=Kind.STATE_LOST,
    )
