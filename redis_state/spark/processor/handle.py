"""Handle by which a processor declares its state variables."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timezone, tzinfo
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql.streaming import stateful_processor as pyspark_state

from redis_state.batches.event_time import RAW_SCHEMA
from redis_state.batches.streams import TimeMode
from redis_state.codec.processor_families import ALL_EXPIRE, EXPIRY_OF, TIMERS, TIMERS_BY_GROUP
from redis_state.codec.typed_row import ROW_CODEC, TypedKey, TypedRow
from redis_state.errors import UsageError
from redis_state.spark.processor.state import (
    CurrentGroup,
    ListState,
    MapState,
    SingleRows,
    Timers,
    TimeToLive,
    ValueState,
)
from redis_state.types.declared import key_schema_json, schema_json

if TYPE_CHECKING:
    from redis_state.store.family_store import FamilyStore

VariableShape = Literal["value", "list", "map"]

_INTERNAL = "$"
_RAW = json.loads(RAW_SCHEMA)
_TIMERS = "timers"
_TIMES = 1 << 63  # Spark's times are signed 64-bit integers


@dataclass(frozen=True, slots=True)
class ProcessorQueryInfo:
    """Ids of query, run and batch of a processor's call, like Scala's `ProcessorQueryInfo`.

    Attributes:
        query_id: Stays the same after a restart from the checkpoint.
        run_id: Changes at each start.
    """

    query_id: str
    run_id: str
    batch_id: int

    def getQueryId(self) -> str:  # noqa: N802  # Spark's name
        """Returns the id of the query."""
        return self.query_id

    def getRunId(self) -> str:  # noqa: N802  # Spark's name
        """Returns the id of the run."""
        return self.run_id

    def getBatchId(self) -> int:  # noqa: N802  # Spark's name
        """Returns the batch id."""
        return self.batch_id


@dataclass(frozen=True, slots=True)
class Times:
    """Times of a batch, in ms since 1970.

    Attributes:
        mode: Time mode of the timers.
        processing_ms: Begin of the batch; the same when the batch is run again.
        watermark_ms: Watermark of the batch; 0 before the first watermark.
    """

    mode: TimeMode
    processing_ms: int
    watermark_ms: int

    @property
    def values(self) -> pyspark_state.TimerValues:
        """Returns the times for a processor; -1 without a time mode, as in Spark."""
        if self.mode == "none":
            return pyspark_state.TimerValues(-1, -1)
        return pyspark_state.TimerValues(self.processing_ms, self.watermark_ms)

    @property
    def due_ms(self) -> int | None:
        """Returns the time up to which timers fire; ``None`` without timers."""
        return {"none": None, "processingtime": self.processing_ms, "eventtime": self.watermark_ms}[
            self.mode
        ]


class Handle(pyspark_state.StatefulProcessorHandle):
    """State variables and timers of one task; implements PySpark's `StatefulProcessorHandle`.

    Args:
        key_schema: Schema of the grouping key, as Spark's JSON.
        ttl_ms: Time to live of variables without one of their own; ``None`` for none.
    """

    def __init__(
        self,
        store: FamilyStore,
        key_schema: str,
        times: Times,
        info: ProcessorQueryInfo,
        *,
        ttl_ms: int | None = None,
    ) -> None:
        self.store = store
        self._key_schema = key_schema
        self.times = times
        self.info = info
        self.group = CurrentGroup(times.processing_ms)
        self.keys = TypedKey(key_schema, what="the key of a group")
        self.variables: dict[str, ValueState | ListState | MapState] = {}
        self._columns: dict[str, SingleRows] = {}
        self._ttl_ms = ttl_ms
        self._beginning: list[str] = []
        self._running_out: dict[str, TimeToLive] = {}
        self._initialized = False
        self._timers: Timers | None = None
        self._check_mode()
        if times.mode != "none":
            self._timers = Timers(
                store,
                self._internal(TIMERS, described_timers(times.mode)),
                self._internal(TIMERS_BY_GROUP),
                self.group,
            )

    def close_declarations(self) -> None:
        """Ends the declarations: later ones are refused.

        Rows without an expiry get one if the option `stateTtl` is new for their variable.
        """
        self._initialized = True
        for name in self._beginning:
            self._all()[name].begin_expiries()

    def getValueState(  # noqa: N802  # PySpark's name
        self,
        stateName: str,  # noqa: N803  # PySpark's name
        schema: Any,
        ttlDurationMs: int | None = None,  # noqa: N803  # PySpark's name
    ) -> ValueState:
        """Declares a variable with one row for each group.

        Raises:
            UsageError: The name is taken, the schema cannot be stored or does not fit the written
                rows, or `init` has ended.
        """
        prefix, row = self._declare(stateName, "value", schema_json(schema))
        made = ValueState(self.store, prefix, self.group, row, self._ttl(stateName, ttlDurationMs))
        self.variables[stateName] = made
        return made

    def getListState(  # noqa: N802  # PySpark's name
        self,
        stateName: str,  # noqa: N803  # PySpark's name
        schema: Any,
        ttlDurationMs: int | None = None,  # noqa: N803  # PySpark's name
    ) -> ListState:
        """Declares a variable with a list of rows for each group; errors of `getValueState`."""
        prefix, row = self._declare(stateName, "list", schema_json(schema))
        made = ListState(self.store, prefix, self.group, row, self._ttl(stateName, ttlDurationMs))
        self.variables[stateName] = made
        return made

    def getMapState(  # noqa: N802  # PySpark's name
        self,
        stateName: str,  # noqa: N803  # PySpark's name
        userKeySchema: Any,  # noqa: N803  # PySpark's name
        valueSchema: Any,  # noqa: N803  # PySpark's name
        ttlDurationMs: int | None = None,  # noqa: N803  # PySpark's name
    ) -> MapState:
        """Declares a variable with rows by a key for each group; errors of `getValueState`."""
        user_key = self._user_key(stateName, userKeySchema)
        prefix, row = self._declare(stateName, "map", schema_json(valueSchema), user_key)
        keys = TypedKey(user_key, what=f"a key of state variable '{stateName}'")
        made = MapState(
            self.store, prefix, self.group, keys, row, self._ttl(stateName, ttlDurationMs)
        )
        self.variables[stateName] = made
        return made

    def _user_key(self, name: str, given: Any) -> str:
        """Returns the schema of a map's keys; an existing map keeps the encoding that it has."""
        if name in self.store.families:
            return schema_json(given)
        return key_schema_json(
            given, "the key column", attempted=f"declaring state variable '{name}'"
        )

    def declare_columns(self, name: str, schema: str) -> tuple[bytes, TypedRow, TimeToLive | None]:
        """Declares the state columns of a function, as a variable with one row for each key.

        Time stamps are decoded in UTC: Arrow stores moments, not local times.

        Returns:
            Prefix of the stored keys of its rows, the codec of the rows, and their time to live.

        Raises:
            UsageError: See `getValueState`.
        """
        prefix, row = self._declare(name, "value", schema, zone=timezone.utc)
        ttl = self._ttl(name, None)
        self._columns[name] = SingleRows(self.store, prefix, self.group, row, ttl)
        return prefix, row, ttl

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803  # PySpark's names
        """Registers a timer of the group, in ms since 1970.

        Raises:
            UsageError: The processor has no time mode, or the time is not a whole number.
        """
        what = "registering a timer"
        self._with_timers(what).register(_whole(what, expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803  # PySpark's names
        """Deletes a timer of the group; an absent timer is ignored.

        Raises:
            UsageError: The processor has no time mode, or the time is not a whole number.
        """
        what = "deleting a timer"
        self._with_timers(what).delete(_whole(what, expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:  # noqa: N802  # PySpark's name
        """Yields the times of the group's timers, in ascending order.

        Raises:
            UsageError: The processor has no time mode.
        """
        return self._with_timers("listing timers").of_group()

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802, N803  # PySpark's names
        """Removes a variable that an earlier version of the processor declared, and its rows.

        Raises:
            UsageError: `init` has ended, or the variable is declared now.
        """
        self._check_open(f"deleting state variable '{stateName}'")
        if stateName in self.variables:
            raise UsageError(
                f"deleting state variable '{stateName}'",
                found="the processor has declared it",
                advice="Either declare or delete it.",
            )
        self.store.drop(stateName)
        self.store.drop(EXPIRY_OF + stateName)

    def getQueryInfo(self) -> ProcessorQueryInfo:  # noqa: N802  # Spark's name
        """Returns the ids of query, run and batch."""
        return self.info

    def due_timers(self) -> Iterator[tuple[int, bytes]]:
        """Yields time and encoded key of the timers that fire in this batch."""
        due = self.times.due_ms
        return self._timers.expired(due) if self._timers and due is not None else iter(())

    def expire(self) -> None:
        """Removes expired rows, and empty indexes of variables without a time to live."""
        for variable in self._all().values():
            variable.expire()
        for name, ttl in self._running_out.items():
            if ttl.is_over():
                self.store.drop(EXPIRY_OF + name)

    def _all(self) -> Mapping[str, SingleRows | ListState]:
        """Returns the variables and the state columns by their names."""
        return {**self.variables, **self._columns}

    def _check_mode(self) -> None:
        """Refuses timers of another time mode, which would fire at a wrong time."""
        family = self.store.families.get(TIMERS)
        known = None if family is None else json.loads(family.value_schema).get(_TIMERS)
        if known not in (None, self.times.mode):
            raise UsageError(
                "reading the timers of a processor",
                found=f"time_mode is '{_as_spelled(self.times.mode)}', and they were set with "
                f"'{_as_spelled(known)}'",
                advice=(
                    "Give that time mode again, or begin with a new checkpoint and store. Nothing "
                    "was changed."
                ),
            )

    def _with_timers(self, what: str) -> Timers:
        if self._timers is None:
            raise UsageError(
                what,
                found="the processor has no time mode",
                advice="Give time_mode='ProcessingTime' or 'EventTime' to transform_with_state.",
            )
        return self._timers

    def _check_open(self, what: str) -> None:
        if self._initialized:
            raise UsageError(
                what,
                found="init has returned already",
                advice="Declare and delete state variables in init.",
            )

    def _declare(
        self,
        name: str,
        shape: VariableShape,
        schema: str,
        user_key: str | None = None,
        *,
        zone: tzinfo | None = None,
    ) -> tuple[bytes, TypedRow]:
        what = f"state variable '{name}'"
        self._check_open(f"declaring {what}")
        if name in self.variables:
            raise UsageError(f"declaring {what}", found="the processor has declared it twice")
        if not isinstance(name, str) or not name or name.startswith(_INTERNAL):
            raise UsageError(
                f"declaring {what}",
                found="the name is empty, or begins with '$', which is reserved",
                advice="Give another name.",
            )
        found = self.store.families.get(name)
        key_text = described_key(shape, self._key_schema, user_key)
        written: list[str] = []
        if found is not None:
            if found.key_schema != key_text:
                raise _changed(what, found.key_schema, shape)
            written = json.loads(found.value_schema)["written"]
        row = TypedRow(schema, written, what=what, zone=zone)
        prefix = self.store.declare(
            name,
            key_schema=key_text,
            value_schema=described_value(row),
            multi_value=shape == "list",
        )
        return prefix, row

    def _ttl(self, name: str, duration_ms: int | None) -> TimeToLive | None:
        if duration_ms is None:
            return self._ttl_before(name) if self._ttl_ms is None else self._ttl_of_all(name)
        what = f"declaring state variable '{name}'"
        if self.times.mode != "processingtime":
            raise UsageError(
                what,
                found="a time to live uses processing time",
                advice="Give time_mode='ProcessingTime', or omit ttlDurationMs.",
            )
        if type(duration_ms) is not int or duration_ms <= 0:
            raise UsageError(what, found="its time to live is not a positive number of ms")
        return TimeToLive(self.store, self._internal(EXPIRY_OF + name), self.group, duration_ms)

    def _ttl_of_all(self, name: str) -> TimeToLive:
        """Returns the time to live of the option, which also applies to rows written before it."""
        found = self.store.families.get(EXPIRY_OF + name)
        if found is None or not json.loads(found.value_schema).get(ALL_EXPIRE):
            self._beginning.append(name)
        prefix = self._internal(EXPIRY_OF + name, json.dumps(_RAW | {ALL_EXPIRE: True}))
        return TimeToLive(self.store, prefix, self.group, self._ttl_ms)

    def _ttl_before(self, name: str) -> TimeToLive | None:
        """Returns the former time to live of a variable, while its index still has rows."""
        if EXPIRY_OF + name not in self.store.families:
            return None
        prefix = self._internal(EXPIRY_OF + name)
        found = self._running_out[name] = TimeToLive(self.store, prefix, self.group, None)
        return found

    def _internal(self, name: str, value_schema: str = RAW_SCHEMA) -> bytes:
        return self.store.declare(
            name, key_schema=RAW_SCHEMA, value_schema=value_schema, internal=True
        )


def _whole(what: str, time_ms: Any) -> int:
    """Converts a time, which may be a NumPy integer, to Python's int."""
    try:
        found = operator.index(time_ms)
    except TypeError:
        raise UsageError(
            what,
            found=f"its time is of type {type(time_ms).__name__}",
            advice="Give whole milliseconds since 1970, as int.",
        ) from None
    if not -_TIMES <= found < _TIMES:
        raise UsageError(
            what,
            found="its time has more than 64 bits",
            advice="Give whole milliseconds since 1970, as int.",
        )
    return found


def described_key(shape: VariableShape, key: str, user_key: str | None) -> str:
    """Describes the keys of a family."""
    described: dict[str, Any] = {
        "type": "redis-state.python",
        "codec": ROW_CODEC,
        "shape": shape,
        "key": json.loads(key),
    }
    if user_key is not None:
        described["user"] = json.loads(user_key)
    return json.dumps(described, separators=(",", ":"))


def described_value(row: TypedRow) -> str:
    """Describes the values of a family."""
    return json.dumps(
        {"type": "redis-state.python", "codec": ROW_CODEC, "written": row.written, "now": row.id},
        separators=(",", ":"),
    )


def described_timers(mode: TimeMode) -> str:
    """Describes the empty values of the timers' family by the time mode."""
    return json.dumps(_RAW | {_TIMERS: mode})


def _as_spelled(mode: str) -> str:
    """Returns a time mode in the spelling of `transform_with_state`."""
    return {"none": "None", "processingtime": "ProcessingTime", "eventtime": "EventTime"}.get(
        mode, mode
    )


def _changed(what: str, before: str, shape: VariableShape) -> UsageError:
    try:
        described: Mapping[str, Any] = json.loads(before)
    except ValueError:
        described = {}
    was = described.get("shape")
    return UsageError(
        f"declaring {what}",
        found=f"it was a {was} and is now a {shape}"
        if was != shape
        else "its key columns differ from those that it was written with",
        advice="Give the variable another name; deleteIfExists removes the old one.",
    )
