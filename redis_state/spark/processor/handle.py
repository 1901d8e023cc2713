"""The handle that a processor declares its state variables with."""

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
from redis_state.codec.processor_families import EXPIRY_OF, TIMERS, TIMERS_BY_GROUP
from redis_state.codec.typed_row import (
    ROW_CODEC,
    TypedKey,
    TypedRow,
    key_schema_json,
    schema_json,
)
from redis_state.errors import UsageError
from redis_state.spark.processor.state import (
    CurrentGroup,
    ListState,
    MapState,
    Timers,
    TimeToLive,
    ValueState,
)

if TYPE_CHECKING:
    from redis_state.store.family_store import FamilyStore

VariableShape = Literal["value", "list", "map"]

_INTERNAL = "$"
_TIMERS = "timers"
_TIMES = 1 << 63  # Spark's are signed, of 64 bits


@dataclass(frozen=True, slots=True)
class ProcessorQueryInfo:
    """Which query, run and batch a processor is called in; as Scala's `ProcessorQueryInfo`.

    Attributes:
        query_id: The same after a restart from the checkpoint.
        run_id: Another one after each start.
    """

    query_id: str
    run_id: str
    batch_id: int

    def getQueryId(self) -> str:  # noqa: N802  # Spark's name
        """The id of the query."""
        return self.query_id

    def getRunId(self) -> str:  # noqa: N802  # Spark's name
        """The id of the run."""
        return self.run_id

    def getBatchId(self) -> int:  # noqa: N802  # Spark's name
        """The batch."""
        return self.batch_id


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a batch, in ms since 1970.

    Attributes:
        mode: What timers go by.
        processing_ms: When the batch began; the same when it is run again.
        watermark_ms: Of the batch; 0 before there is one.
    """

    mode: TimeMode
    processing_ms: int
    watermark_ms: int

    @property
    def values(self) -> pyspark_state.TimerValues:
        """As a processor gets them; -1 where it asked for none, as in Spark."""
        if self.mode == "none":
            return pyspark_state.TimerValues(-1, -1)
        return pyspark_state.TimerValues(self.processing_ms, self.watermark_ms)

    @property
    def due_ms(self) -> int | None:
        """Timers up to this time fire; ``None`` where there are no timers."""
        return {
            "none": None,
            "processingtime": self.processing_ms,
            "eventtime": self.watermark_ms,
        }[self.mode]


class Handle(pyspark_state.StatefulProcessorHandle):
    """State variables and timers of one task; as PySpark's `StatefulProcessorHandle`.

    Args:
        key_schema: Of the grouping key, as Spark's JSON.
    """

    def __init__(
        self, store: FamilyStore, key_schema: str, times: Times, info: ProcessorQueryInfo
    ) -> None:
        self._store = store
        self._key_schema = key_schema
        self.times = times
        self._info = info
        self.group = CurrentGroup(times.processing_ms)
        self.keys = TypedKey(key_schema, what="the key of a group")
        self.variables: dict[str, ValueState | ListState | MapState] = {}
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
        """From now on variables are there: none may be declared any more."""
        self._initialized = True

    def getValueState(  # noqa: N802  # PySpark's name
        self,
        stateName: str,  # noqa: N803  # PySpark's name
        schema: Any,
        ttlDurationMs: int | None = None,  # noqa: N803  # PySpark's name
    ) -> ValueState:
        """Declare a variable with one row for each group.

        Raises:
            UsageError: The name is taken, the schema cannot be stored or does not fit what was
                written, or `init` is over.
        """
        prefix, row = self._declare(stateName, "value", schema_json(schema))
        made = ValueState(self._store, prefix, self.group, row, self._ttl(stateName, ttlDurationMs))
        self.variables[stateName] = made
        return made

    def getListState(  # noqa: N802  # PySpark's name
        self,
        stateName: str,  # noqa: N803  # PySpark's name
        schema: Any,
        ttlDurationMs: int | None = None,  # noqa: N803  # PySpark's name
    ) -> ListState:
        """Declare a variable with a list of rows for each group; errors as `getValueState`."""
        prefix, row = self._declare(stateName, "list", schema_json(schema))
        made = ListState(self._store, prefix, self.group, row, self._ttl(stateName, ttlDurationMs))
        self.variables[stateName] = made
        return made

    def getMapState(  # noqa: N802  # PySpark's name
        self,
        stateName: str,  # noqa: N803  # PySpark's name
        userKeySchema: Any,  # noqa: N803  # PySpark's name
        valueSchema: Any,  # noqa: N803  # PySpark's name
        ttlDurationMs: int | None = None,  # noqa: N803  # PySpark's name
    ) -> MapState:
        """Declare a variable with rows by a key for each group; errors as `getValueState`."""
        user_key = self._user_key(stateName, userKeySchema)
        prefix, row = self._declare(stateName, "map", schema_json(valueSchema), user_key)
        keys = TypedKey(user_key, what=f"a key of state variable '{stateName}'")
        made = MapState(
            self._store, prefix, self.group, keys, row, self._ttl(stateName, ttlDurationMs)
        )
        self.variables[stateName] = made
        return made

    def _user_key(self, name: str, given: Any) -> str:
        """The schema of a map's keys. A map that is there goes by the bytes that it has."""
        if name in self._store.families:
            return schema_json(given)
        return key_schema_json(
            given, "the key column", attempted=f"declaring state variable '{name}'"
        )

    def declare_columns(self, name: str, schema: str) -> tuple[bytes, TypedRow]:
        """Declare the state columns of a function, as a variable with one row for each key.

        Time stamps come back in UTC: Arrow has the moments, not what a clock shows.

        Returns:
            What the stored keys of its rows begin with, and how the rows are written.

        Raises:
            UsageError: As `getValueState`.
        """
        return self._declare(name, "value", schema, zone=timezone.utc)

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803  # PySpark's names
        """Set a timer of the group, in ms since 1970.

        Raises:
            UsageError: The processor has no time mode, or the time is not a whole number.
        """
        what = "registering a timer"
        self._with_timers(what).register(_whole(what, expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803  # PySpark's names
        """Take a timer of the group out; nothing happens if it is not there.

        Raises:
            UsageError: The processor has no time mode, or the time is not a whole number.
        """
        what = "deleting a timer"
        self._with_timers(what).delete(_whole(what, expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:  # noqa: N802  # PySpark's name
        """The times of the group's timers, in ascending order.

        Raises:
            UsageError: The processor has no time mode.
        """
        return self._with_timers("listing timers").of_group()

    def deleteIfExists(self, stateName: str) -> None:  # noqa: N802, N803  # PySpark's names
        """Remove a variable that an earlier version of the processor declared, and its rows.

        Raises:
            UsageError: `init` is over, or the variable is declared now.
        """
        self._check_open(f"deleting state variable '{stateName}'")
        if stateName in self.variables:
            raise UsageError(
                f"deleting state variable '{stateName}'",
                found="the processor has declared it",
                advice="Declare it, or delete it.",
            )
        self._store.drop(stateName)
        self._store.drop(EXPIRY_OF + stateName)

    def getQueryInfo(self) -> ProcessorQueryInfo:  # noqa: N802  # Spark's name
        """Which query, run and batch this is."""
        return self._info

    def due_timers(self) -> Iterator[tuple[int, bytes]]:
        """Time and encoded key of the timers that fire in this batch."""
        due = self.times.due_ms
        return self._timers.expired(due) if self._timers and due is not None else iter(())

    def expire(self) -> None:
        """Remove what has lived long enough."""
        for variable in self.variables.values():
            variable.expire()
        for name, ttl in self._running_out.items():
            if ttl.is_over():
                self._store.drop(EXPIRY_OF + name)

    def _check_mode(self) -> None:
        """Refuse timers whose times are of another clock: they would fire at a wrong time."""
        family = self._store.families.get(TIMERS)
        known = None if family is None else json.loads(family.value_schema).get(_TIMERS)
        if known not in (None, self.times.mode):
            raise UsageError(
                "reading the timers of a processor",
                found=f"time_mode is '{_as_spelled(self.times.mode)}', and they were set with "
                f"'{_as_spelled(known)}'",
                advice="Give that time mode again; or begin afresh, with a new checkpoint and "
                "store. Nothing was changed.",
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
                found="the name is empty, or begins with '$', as our own do",
                advice="Give another name.",
            )
        found = self._store.families.get(name)
        key_text = described_key(shape, self._key_schema, user_key)
        written: list[str] = []
        if found is not None:
            if found.key_schema != key_text:
                raise _changed(what, found.key_schema, shape)
            written = json.loads(found.value_schema)["written"]
        row = TypedRow(schema, written, what=what, zone=zone)
        prefix = self._store.declare(
            name,
            key_schema=key_text,
            value_schema=described_value(row),
            multi_value=shape == "list",
        )
        return prefix, row

    def _ttl(self, name: str, duration_ms: int | None) -> TimeToLive | None:
        if duration_ms is None:
            return self._ttl_before(name)
        what = f"declaring state variable '{name}'"
        if self.times.mode != "processingtime":
            raise UsageError(
                what,
                found="a time to live goes by the processing time",
                advice="Give time_mode='ProcessingTime', or leave ttlDurationMs out.",
            )
        if type(duration_ms) is not int or duration_ms <= 0:
            raise UsageError(what, found="its time to live is not a positive number of ms")
        return TimeToLive(self._store, self._internal(EXPIRY_OF + name), self.group, duration_ms)

    def _ttl_before(self, name: str) -> TimeToLive | None:
        """Of a variable that has none any more, while rows are there that were written with it."""
        if EXPIRY_OF + name not in self._store.families:
            return None
        prefix = self._internal(EXPIRY_OF + name)
        found = self._running_out[name] = TimeToLive(self._store, prefix, self.group, None)
        return found

    def _internal(self, name: str, value_schema: str = RAW_SCHEMA) -> bytes:
        return self._store.declare(
            name, key_schema=RAW_SCHEMA, value_schema=value_schema, internal=True
        )


def _whole(what: str, time_ms: Any) -> int:
    """A time as Python's int; NumPy has whole numbers of its own."""
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
    """What a family says of its keys."""
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
    """What a family says of its values."""
    return json.dumps(
        {"type": "redis-state.python", "codec": ROW_CODEC, "written": row.written, "now": row.id},
        separators=(",", ":"),
    )


def described_timers(mode: TimeMode) -> str:
    """What the family of timers says of its values, which are empty: what the times are of."""
    return json.dumps({**json.loads(RAW_SCHEMA), _TIMERS: mode})


def _as_spelled(mode: str) -> str:
    """A time mode as `transform_with_state` takes it."""
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
        found=f"it was a {was} and is a {shape} now"
        if was != shape
        else "its key columns are not those that it was written with",
        advice="Give the variable another name; deleteIfExists removes the old one.",
    )
