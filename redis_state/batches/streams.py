"""Task side of a stateful operator in a streaming query: joins a task to its batch; no pyspark.

No program of this library runs on the driver during the query, so the first task of a batch begins
the batch for all tasks. As in `driver.py`, batch `b` reads version `b - first` of every partition
and commits the next version.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_error
from redis_state.backend.script import Command, script
from redis_state.backend.server import check_server
from redis_state.batches.driver import (
    OPERATOR,
    PLACE,
    AskedStore,
    StoreIdentity,
    moved,
    named,
    refused,
)
from redis_state.batches.event_time import NOTES_KEY, Notes, watermark_of
from redis_state.errors import (
    ConflictError,
    InternalError,
    Kind,
    RedisStateError,
    StateError,
    UsageError,
)
from redis_state.ids import DEFAULT_STORE
from redis_state.protocol import NamedStore, RegisteredRun, checkpoint_gen, confirm_checkpoint
from redis_state.protocol.newest_batch import WITH_INITIAL_STATE, NewestBatch
from redis_state.protocol.opening import not_opened, open_commands, read_replies
from redis_state.protocol.runs import STAGED_TTL_MS
from redis_state.reader.lookup.many_keys import look_up

PLANNED_COLUMN = "redis_state planned"
"""Name of the column with the time at which Spark planned the batch, in ms since 1970.

The column follows the columns of the input. Input rows have null in this column.
"""

FRAME_COLUMN = "redis_state frame"
"""Name of the next column, with the frame id. Only marker rows have a value."""

PARTITION_COLUMN = "redis_state partition"
"""Name of the last column, with the partition of a row."""

FRAME_LETTERS = 16
"""Length of a frame id: hexadecimal digits of a random UUID."""

TimeMode = Literal["none", "processingtime", "eventtime"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Description of an operator's input rows; is serialized to the tasks.

    Attributes:
        keys: The key columns.
        key_schema: Schema of the key columns, as Spark's JSON.
        mode: Time mode of the timers.
        time_zone: Time zone of the session.
        event_time: Column of the watermark; empty without a watermark.
    """

    keys: Sequence[str]
    key_schema: str
    mode: TimeMode
    time_zone: str
    event_time: str


@dataclass(frozen=True, slots=True)
class StreamPlan(StoreIdentity):
    """Plan of a call on the driver; is serialized to the tasks.

    Attributes:
        number: Number of the call; runs of a later call are newer.
        layout: See `driver.Batch`.
        delay_ms: Delay of the watermark; ``None`` without a watermark.
        before: Number of versions before the first batch: 1 with an initial state, else 0.
    """

    first: int
    partitions: int
    layout: str
    number: int
    delay_ms: int | None
    before: int = 0

    def version_of(self, batch: int) -> int:
        """Returns the version that a batch starts from."""
        return batch - self.first + self.before


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Spark's ids of a task.

    Attributes:
        attempt: Id of the task attempt; rises within a driver, over all of its queries.
        planned: Time at which Spark planned the batch, in ms since 1970, from the marker row.
        frame: Id of the frame that the task evaluates, from the marker row. Spark draws a new id
            for each batch that it plans.
    """

    query_id: str
    run_id: str
    batch: int
    partition: int
    attempt: int
    planned: str
    frame: str


@dataclass(frozen=True, slots=True)
class JoinedBatch:
    """A batch that has begun, as a task sees it.

    Attributes:
        version: Version at which every partition is opened.
        began_ms: Time of the first begin, in ms since 1970 by the server's clock.
        watermark_ms: Watermark of the batch; 0 before the first watermark.
    """

    run: RegisteredRun
    version: int
    began_ms: int
    watermark_ms: int


def time_mode_of(given: str) -> TimeMode | None:
    """Parses Spark's name of a time mode, in any case; ``None`` if the name is unknown."""
    modes: dict[str, TimeMode] = {mode: mode for mode in get_args(TimeMode)}
    return modes.get(str(given).lower())


def layout_of(grouping: Sequence[str], *, initial: bool = False) -> str:
    """Returns the layout of a processor's rows: placement and encoding, which never change.

    Args:
        grouping: The key columns, each with its type.
        initial: True if version 1 holds an initial state.
    """
    columns = ", ".join(grouping)
    return json.dumps(f"key {columns}; a processor{WITH_INITIAL_STATE if initial else ''}")


def make_plan(
    client: Client,
    *,
    name: str,
    tenant: str,
    layout: str,
    partitions: int | None,
    partitions_default: int,
    delay_ms: int | None,
    first: int = 0,
    before: int = 0,
) -> StreamPlan:
    """Makes the plan of a call, and names the store if it is new; fences no running query.

    Args:
        partitions: ``None`` uses the store's number, or `partitions_default` for a new store.

    Raises:
        ConfigError: The server is too old, a replica, or may evict keys.
    """
    check_server(client)
    gen = checkpoint_gen(client, name, tenant=tenant, create=True)
    if gen is None:
        raise InternalError("naming a checkpoint", found="HSETNX left no id")
    count = partitions or known_partitions(client, gen, tenant=tenant) or partitions_default
    number = take_plan(client, gen, tenant=tenant)
    return StreamPlan(name, gen, tenant, first, count, layout, number, delay_ms, before)


def known_partitions(client: Client, gen: str, *, tenant: str) -> int | None:
    """Returns the number of partitions of a store; ``None`` before its first batch."""
    command = ("HGET", keys.query(gen, tenant=tenant), f"batch:{PLACE}")
    (found,) = client.call("looking for the newest batch", [command])
    return NewestBatch.parse(found).partitions if found else None


def take_plan(client: Client, gen: str, *, tenant: str) -> int:
    """Returns a plan number above those of all earlier calls for the store."""
    what = "making a stateful operator"
    query = [keys.query(gen, tenant=tenant)]
    reply = client.script(what, script("join"), query, [PLACE, str(STAGED_TTL_MS)])
    if reply[0] == "MOVED":
        raise moved(what)
    if reply[0] == "PURGED":
        raise purged_error(what, gen)
    if reply[0] != "PLAN":
        raise InternalError(what, found=f"the script answered '{' '.join(reply)[:200]}'")
    return int(reply[1])


def list_store(client: Client, plan: StreamPlan, *, keep_ms: int = 0) -> None:
    """Adds the store and its partitions to the list of checkpoints.

    Args:
        keep_ms: Expiry of an ephemeral checkpoint, else 0.
    """
    store = NamedStore(plan.name, OPERATOR, DEFAULT_STORE, plan.partitions)
    confirm_checkpoint(client, plan.gen, store, tenant=plan.tenant, keep_ms=keep_ms)


def join_batch(
    client: Client, plan: StreamPlan, place: TaskPlace, *, keep_ms: int = 0
) -> JoinedBatch:
    """Joins the batch of a task, and begins the batch if no other task has.

    Args:
        keep_ms: Expiry of an ephemeral checkpoint, else 0.

    Raises:
        ConflictError: A newer start of the query, or a newer call, took the store.
        StateError: The store does not hold the version of the previous batch.
        UsageError: The batch is neither the next nor the newest; or the store belongs to another
            query, or has other key columns or partitions.
    """
    what = f"beginning batch {place.batch} of store '{plan.name}'"
    reply = _join(client, plan, place, what, "")
    if reply[0] == "BEGIN":
        list_store(client, plan, keep_ms=keep_ms)
        watermark_ms = _watermark(client, plan, place, what, below=int(reply[2]))
        reply = _join(client, plan, place, what, str(watermark_ms))
    if reply[0] != "OK" or len(reply) != 4:
        raise InternalError(what, found=f"the script answered '{' '.join(reply)[:200]}'")
    _, epoch, began_ms, watermark = reply
    run = RegisteredRun(place.run_id, int(epoch), "d")
    return JoinedBatch(run, plan.version_of(place.batch), int(began_ms), int(watermark))


def _join(
    client: Client, plan: StreamPlan, place: TaskPlace, what: str, watermark: str
) -> list[str]:
    query = [keys.query(plan.gen, tenant=plan.tenant)]
    args = [
        PLACE,
        str(plan.number),
        place.run_id,
        str(place.attempt),
        place.query_id,
        str(place.batch),
        str(plan.first),
        str(plan.partitions),
        plan.layout,
        watermark,
        place.planned,
        place.frame,
    ]
    reply = client.script(what, script("join"), query, args)
    if reply[0] in ("OK", "BEGIN"):
        return reply
    raise _refused(what, reply, plan, place)


def _refused(what: str, reply: list[str], plan: StreamPlan, place: TaskPlace) -> RedisStateError:
    match reply:
        case ["FENCED", _]:
            return ConflictError(
                what,
                found=(
                    "the query was started again since, or another query with this store was "
                    "started"
                ),
                advice=(
                    "The newer start continues: stop this one. Nothing was changed. To continue "
                    "here, call transform_with_state again."
                ),
            )
        case ["STALE", batch]:
            return UsageError(
                what,
                found=f"the DataFrame belongs to {_another(batch, place)}",
                advice=(
                    "The DataFrame of foreachBatch is valid only until its function returns: "
                    "collect or write its rows before that. Nothing was changed."
                ),
            )
        case ["TWICE", _]:
            return UsageError(
                what,
                found="two calls of transform_with_state in this query use this store",
                advice="Give each call a store of its own.",
            )
        case ["QUERY", query_id]:
            return UsageError(
                what,
                found=f"the store belongs to the query {query_id}, which has another checkpoint",
                advice="Give another store, or continue from the checkpoint of that query.",
            )
        case _:
            asked = AskedStore(plan.name, plan.gen, plan.first, plan.partitions, plan.layout)
            return refused(what, reply, asked)


def _another(batch: str, place: TaskPlace) -> str:
    if batch == str(place.batch):
        return "this batch, but of an earlier start of the query"
    return "another batch" if batch == "-" else f"batch {batch}"


def _watermark(client: Client, plan: StreamPlan, place: TaskPlace, what: str, *, below: int) -> int:
    """Computes the watermark of a batch, in ms, after all partitions are found to hold its version.

    Args:
        below: Lowest acceptable epoch. A partition held by an earlier epoch did not run the latest
            plan of the previous batch.

    Raises:
        StateError: A partition does not hold the version, or an epoch below `below` holds it.
    """
    version = plan.version_of(place.batch)
    if version == 0:
        return 0
    ids = [plan.partition(number) for number in range(plan.partitions)]
    held: list[Command] = [("HGET", keys.meta(id_), "e") for id_ in ids]
    looking = "looking for the committed partitions"
    found = client.call(looking, [*open_commands(ids, version), *held])
    replies, epochs = found[: len(ids)], found[len(ids) :]
    older = (id_.partition for id_, one in zip(ids, epochs, strict=True) if int(one or 0) < below)
    missing = sorted({*not_opened(ids, replies, what=looking), *older})
    if missing:
        again = (
            f"run batch {place.batch - 1} again: `redis-state rewind --gen {plan.gen} --checkpoint "
            f"FOLDER --to-batch {place.batch - 2} --yes`, FOLDER being the query's "
            "checkpointLocation"
            if place.batch - 1 > plan.first
            else "begin again, with a new checkpoint and store"
        )
        raise StateError(
            what,
            found=f"{named(missing)} does not hold version {version}: "
            f"batch {place.batch - 1} never ran to its end there, or its state was lost",
            advice=(
                f"A limit after transform_with_state stops tasks early: remove it, and {again}. If "
                "the state was lost, restore that Redis."
            ),
            kind=Kind.STATE_LOST,
            version=version,
        )
    if plan.delay_ms is None:
        return 0
    opened = read_replies(ids, replies, version=version)
    notes = look_up(client, [(one, [NOTES_KEY]) for one in opened], kind="range")
    return watermark_of((Notes.decode(one.values.get(NOTES_KEY)) for one in notes), plan.delay_ms)
