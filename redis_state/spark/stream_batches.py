"""The tasks' side of a stateful operator in a streaming query: joining its batches; no pyspark.

No program of ours runs on the driver while the query does, so the first task of a batch begins it
for all: batch `b` reads version `b - first` of every partition and commits the next one, as those
of `batches` do.
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
from redis_state.errors import ConflictError, InternalError, Kind, StateError, UsageError
from redis_state.ids import DEFAULT_STORE, PartitionId, StateStoreId, StoreId
from redis_state.protocol import RegisteredRun, checkpoint_gen, confirm_checkpoint
from redis_state.protocol.opening import open_commands, read_replies
from redis_state.protocol.registry import WITH_INITIAL_STATE
from redis_state.protocol.runs import STAGED_TTL_MS
from redis_state.reader.lookup import look_up
from redis_state.spark.batches import OPERATOR, PLACE, moved, named, not_opened, refused
from redis_state.spark.event_time import NOTES_KEY, Notes, watermark_of

PLANNED_COLUMN = "redis_state planned"
"""Name of the column with the time that Spark planned the batch for, in ms since 1970.

It stands behind the columns of the input. Rows of the input have null in it.
"""

FRAME_COLUMN = "redis_state frame"
"""Name of the column with the frame id, the next one. Only marker rows have it."""

PARTITION_COLUMN = "redis_state partition"
"""Name of the column with the partition of a row, the last one."""

FRAME_LETTERS = 16
"""Length of a frame id: hexadecimal digits of a random UUID."""

TimeMode = Literal["none", "processingtime", "eventtime"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is known of the rows that an operator gets; travels to the tasks.

    Attributes:
        keys: The key columns.
        key_schema: Of these, as Spark's JSON.
        mode: What timers go by.
        time_zone: The session's.
        event_time: The column that the watermark goes by; empty for none.
    """

    keys: Sequence[str]
    key_schema: str
    mode: TimeMode
    time_zone: str
    event_time: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What the call on the driver knows; travels to the tasks.

    Attributes:
        name: Of the store.
        number: Of the call: runs of a later call are newer.
        layout: As `batches.Batch`.
        delay_ms: Of the watermark; ``None`` without one.
        before: Versions that were there before the first batch: 1 with an initial state, else 0.
    """

    name: str
    gen: str
    tenant: str
    first: int
    partitions: int
    layout: str
    number: int
    delay_ms: int | None
    before: int = 0

    def version_of(self, batch: int) -> int:
        """The version that a batch starts from."""
        return batch - self.first + self.before

    def partition(self, number: int) -> PartitionId:
        """One of the partitions."""
        return PartitionId(StoreId(self.gen, OPERATOR, DEFAULT_STORE, self.tenant), number)

    def store_id(self, partition: int) -> StateStoreId:
        """The store that a task opens."""
        return StateStoreId(self.name, OPERATOR, partition)


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Where a task stands: Spark's ids.

    Attributes:
        attempt: Of the task; rises within a driver, over all of its queries.
        planned: The time that Spark planned the batch for, in ms since 1970, by the marker row.
        frame: Id of the frame that the task evaluates, by the marker row. Spark draws it anew for
            each batch that it plans.
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
    """A batch that has begun.

    Attributes:
        version: What every partition is opened at.
        began_ms: When it began first, in ms since 1970 by the server's clock.
        watermark_ms: What timers go by; 0 before there is a watermark.
    """

    run: RegisteredRun
    version: int
    began_ms: int
    watermark_ms: int


def time_mode_of(given: str) -> TimeMode | None:
    """The time mode that Spark calls so, in whatever case; ``None`` if there is none."""
    modes: dict[str, TimeMode] = {mode: mode for mode in get_args(TimeMode)}
    return modes.get(str(given).lower())


def layout_of(grouping: Sequence[str], *, initial: bool = False) -> str:
    """What decides where a row of a processor lies and how: it never changes.

    Args:
        grouping: The key columns, each with its type.
        initial: Version 1 holds an initial state.
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
) -> Plan:
    """What a call knows of a store, which is named if it is new; that alone disturbs nobody.

    Args:
        partitions: ``None`` for as many as the store has, `partitions_default` if it is new.

    Raises:
        ConfigError: The server is too old, a replica, or may evict keys.
    """
    check_server(client)
    gen = checkpoint_gen(client, name, tenant=tenant, create=True)
    if gen is None:
        raise InternalError("naming a checkpoint", found="HSETNX left no id")
    count = partitions or known_partitions(client, gen, tenant=tenant) or partitions_default
    number = take_plan(client, gen, tenant=tenant)
    return Plan(name, gen, tenant, first, count, layout, number, delay_ms, before)


def known_partitions(client: Client, gen: str, *, tenant: str) -> int | None:
    """How many partitions a store has; ``None`` if it never began a batch."""
    command = ("HGET", keys.query(gen, tenant=tenant), f"batch:{PLACE}")
    (found,) = client.call("looking for the newest batch", [command])
    return int(found.split(b" ")[2]) if found else None


def take_plan(client: Client, gen: str, *, tenant: str) -> int:
    """A number for a new plan, above those of all earlier calls for the store."""
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


def list_store(client: Client, plan: Plan, *, keep_ms: int = 0) -> None:
    """Enter the store in the list of checkpoints, with its partitions.

    Args:
        keep_ms: 0, or the expiry of an ephemeral checkpoint.
    """
    confirm_checkpoint(
        client,
        plan.gen,
        name=plan.name,
        operator=OPERATOR,
        store=DEFAULT_STORE,
        partitions=plan.partitions,
        families=(),
        tenant=plan.tenant,
        keep_ms=keep_ms,
    )


def join_batch(client: Client, plan: Plan, place: TaskPlace, *, keep_ms: int = 0) -> JoinedBatch:
    """Join the batch that a task is of, and begin it if no other task has.

    Args:
        keep_ms: 0, or the expiry of an ephemeral checkpoint.

    Raises:
        ConflictError: A newer start of the query, or a newer call, took the store.
        StateError: The store does not hold what the batch before it committed.
        UsageError: The batch is not the next one or the newest, or the store belongs to another
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


def _join(client: Client, plan: Plan, place: TaskPlace, what: str, watermark: str) -> list[str]:
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
    match reply:
        case ["OK", *_] | ["BEGIN", _, _]:
            return reply
        case ["FENCED", _]:
            raise ConflictError(
                what,
                found="the query was started again since, or another one with this store was",
                advice="The newer start goes on: stop this one. Nothing was changed. To go on, "
                "call transform_with_state again here.",
            )
        case ["STALE", batch]:
            raise UsageError(
                what,
                found=f"the DataFrame is the one of {_another(batch, place)}",
                advice="A DataFrame that foreachBatch gets can be evaluated until its function "
                "returns, not later: collect its rows, or write them, before. Nothing was changed.",
            )
        case ["TWICE", _]:
            raise UsageError(
                what,
                found="two calls of transform_with_state in this query have this store",
                advice="Give each call a store of its own.",
            )
        case ["QUERY", query_id]:
            raise UsageError(
                what,
                found=f"the store belongs to the query {query_id}, which has another checkpoint",
                advice="Give another store; or go on from the checkpoint of that query.",
            )
        case _:
            raise refused(
                what,
                reply,
                name=plan.name,
                gen=plan.gen,
                partitions=str(plan.partitions),
                layout=plan.layout,
                first=str(plan.first),
            )


def _another(batch: str, place: TaskPlace) -> str:
    if batch == str(place.batch):
        return "this batch, but of an earlier start of the query"
    return "another batch" if batch == "-" else f"batch {batch}"


def _watermark(client: Client, plan: Plan, place: TaskPlace, what: str, *, below: int) -> int:
    """The watermark of a batch, in ms; checks that all partitions hold what the one before wrote.

    Args:
        below: A partition that an earlier epoch holds did not run the batch before as it was
            planned last.

    Raises:
        StateError: One does not.
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
            f"let batch {place.batch - 1} run again: `redis-state rewind --gen {plan.gen} "
            f"--checkpoint FOLDER --to-batch {place.batch - 2} --yes`, FOLDER being the query's "
            "checkpointLocation"
            if place.batch - 1 > plan.first
            else "begin again, with a new checkpoint and store"
        )
        raise StateError(
            what,
            found=f"{named(missing)} does not hold version {version}: "
            f"batch {place.batch - 1} never ran to its end there, or its state was lost",
            advice="A limit behind transform_with_state stops tasks early: take it away, and "
            f"{again}. If the state was lost, restore that Redis.",
            kind=Kind.STATE_LOST,
            version=version,
        )
    if plan.delay_ms is None:
        return 0
    opened = read_replies(ids, replies, version=version)
    notes = look_up(client, [(one, [NOTES_KEY]) for one in opened], kind="range")
    return watermark_of((Notes.decode(one.values.get(NOTES_KEY)) for one in notes), plan.delay_ms)
