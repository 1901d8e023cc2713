"""Runs a processor batch by batch in one process, without Spark, on a task's engine and store."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from redis_state import keys as redis_keys
from redis_state.backend.client import Client
from redis_state.batches.streams import (
    FRAME_LETTERS,
    Inputs,
    JoinedBatch,
    TaskPlace,
    TimeMode,
    join_batch,
    layout_of,
    make_plan,
    time_mode_of,
)
from redis_state.config import resolve
from redis_state.embedded import EmbeddedRedis
from redis_state.errors import UsageError
from redis_state.format.ordered import family_range
from redis_state.format.rows import FAMILY_BYTES
from redis_state.ids import StateStoreProviderId
from redis_state.spark.processor.engine import Engine
from redis_state.spark.processor.groups import FORMS, RowForm
from redis_state.spark.processor.handle import Handle, ProcessorQueryInfo, Times
from redis_state.spark.processor.state import ListState, MapState, ValueState
from redis_state.store.family_store import FamilyStore
from redis_state.store.provider import StateStoreProvider
from redis_state.testing.cutting import Cut, CutError
from redis_state.testing.durations import duration_ms
from redis_state.testing.rows import arrow_schema, handed_out, table_of
from redis_state.types.declared import key_schema_json

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self, Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options

_TESTING = "testing a processor"
_START_MS = 1_704_067_200_000  # 2024-01-01 in UTC
_PARTITION = 0

R = TypeVar("R")
V = TypeVar("V", ValueState, ListState, MapState)


@dataclass(frozen=True, slots=True)
class _LastBatch:
    number: int
    rows: pa.Table
    began_ms: int


class ProcessorTest:
    """Drives a `StatefulProcessor` as `transform_with_state` does, for tests of the processor.

    Every batch is run by the code that runs in a task, on a real store with one partition, and is
    committed to a real server. Use this class as a context manager.

    Args:
        processor: Copied for each batch, as Spark does, so its own attributes do not persist.
        key: The grouping columns.
        input: Columns of the rows, as DDL text or `StructType`.
        schema: Columns of the output, in the same forms.
        rows: Form of the processor's input and output, as in `transform_with_state`.
        time_mode: ``None``, ``ProcessingTime`` or ``EventTime``.
        event_time: The column with the event time, in the time mode ``EventTime``.
        delay: Delay of the watermark, as in `withWatermark`.
        now_ms: Initial time of the clock, in ms since 1970.
        time_zone: Time zone of the session, for time stamps in frames.
        store: Name of the store; ``None`` means a new one.
        url: A running server, in which the written data expires by itself. ``None`` means a
            private `EmbeddedRedis`.
        **options: Options of docs/configuration.md, in snake case.

    Raises:
        UsageError: An argument does not fit.

    Attributes:
        url: The server, for live reads of the `store`.
        store: Name of the store.
        now_ms: Time of the clock: the processing time of the next batch.
        watermark_ms: Watermark of the batch that was run last; 0 before the first one.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        *,
        key: str | Sequence[str],
        input: object,  # noqa: A002  # what a test calls it
        schema: object,
        rows: RowForm = "pandas",
        time_mode: str = "None",
        event_time: str | None = None,
        delay: str | timedelta | int = 0,
        now_ms: int = _START_MS,
        time_zone: str = "UTC",
        store: str | None = None,
        url: str | None = None,
        **options: Unpack[Options],
    ) -> None:
        mode = time_mode_of(time_mode)
        if mode is None:
            raise _wrong(f"time_mode is {time_mode!r}", "Give 'None', 'ProcessingTime' or "
                         "'EventTime', as in Spark.")  # fmt: skip
        if rows not in FORMS:
            raise _wrong(f"rows is {rows!r}", f"Give one of {', '.join(FORMS)}.")
        self._input = arrow_schema(input)
        grouping = [key] if isinstance(key, str) else list(key)
        _check_columns(grouping, event_time, mode, self._input.names)
        self._processor = processor
        self._engine = Engine(
            processor,
            Inputs(
                grouping,
                _key_schema(input, grouping),
                mode,
                time_zone,
                event_time or "" if mode == "eventtime" else "",
            ),
            rows,
            arrow_schema(schema),
        )
        self._delay_ms = duration_ms(delay) if mode == "eventtime" else None
        self.url = url or ""
        self.store = store or f"test {uuid.uuid4().hex}"
        self.now_ms = now_ms
        self.watermark_ms = 0
        self._options = options
        self._query_id = str(uuid.uuid4())
        self._attempts = 0
        self._next = 0
        self._began_ms: int | None = None
        self._last: _LastBatch | None = None
        self._provider: StateStoreProvider | None = None
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        """Starts a server if none was given."""
        if not self.url:
            self.url = self._exit.enter_context(EmbeddedRedis()).url
        try:
            self._start()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Closes everything, and stops a private server."""
        self._stop()
        self._exit.close()

    def run(self, rows: Any = ()) -> Any:
        """Runs the next batch and commits it.

        Args:
            rows: Tuples, dicts, a pandas frame or an Arrow table. Times may be texts. No rows make
                a batch without input for this partition: timers fire, and state expires.

        Returns:
            The processor's output: one frame, a list of `Row`s, or one table.

        Raises:
            UsageError: Rows or output do not fit.
            Exception: The processor raised it. Nothing is changed then, and the next call is
                another attempt at this batch, with the same start time.
        """
        batch = self._begin(rows)
        found = self._attempt(batch, self._copy())
        self._last, self._next, self._began_ms = batch, batch.number + 1, None
        return found

    def again(self) -> Any:
        """Runs the last batch once more, from the state before it, and commits that attempt.

        Spark may do that at any time. The output is the same if the processor is deterministic.

        Raises:
            UsageError: No batch was run; see also `run`.
        """
        if self._last is None:
            raise _wrong("no batch was run", "Call run first.")
        return self._attempt(self._last, self._copy())

    def cut(self, rows: Any = (), *, after: int) -> None:
        """Makes the next batch fail after a number of output rows; nothing is changed.

        With fewer rows the batch fails before its commit. The next `run` is another attempt at the
        batch, with the same start time.

        Raises:
            Exception: See `run`.
        """
        batch = self._begin(rows)
        with self._opened(batch) as (store, joined), suppress(CutError):
            self._output(store, batch, joined, Cut(self._copy(), after))

    def restart(self) -> None:
        """Continues as a fresh process after a restart of the query: nothing is cached."""
        self._stop()
        self._start()

    def advance(self, duration: str | timedelta | int) -> None:
        """Advances the clock.

        Args:
            duration: ``10 seconds``, a `timedelta`, or milliseconds.
        """
        self.now_ms += duration_ms(duration)

    def value(self, name: str, key: Any) -> tuple[Any, ...] | None:
        """Returns the committed value of a group as the processor would read it; else ``None``.

        Args:
            key: A plain value for one key column, a tuple for several.

        Raises:
            UsageError: The processor has no such value state.
        """
        return self._read(lambda handle, _: self._variable(handle, name, key, ValueState).get())

    def list(self, name: str, key: Any) -> list[tuple[Any, ...]]:
        """Returns the committed elements of a group's list; see `value`."""
        return self._read(lambda handle, _: [*self._variable(handle, name, key, ListState).get()])

    def map(self, name: str, key: Any) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        """Returns the committed keys and values of a group's map; see `value`."""
        return self._read(
            lambda handle, _: dict(self._variable(handle, name, key, MapState).iterator())
        )

    def timers(self, key: Any) -> Sequence[int]:
        """Returns the times of a group's timers in ascending order, in ms since 1970.

        Raises:
            UsageError: The processor has no time mode.
        """

        def read(handle: Handle, _: FamilyStore) -> Sequence[int]:
            handle.group.key = self._encoded(handle, key)
            return [*handle.listTimers()]

        return self._read(read)

    def keys(self, name: str) -> Sequence[Any]:
        """Returns the groups that have a value in a state variable, in their order.

        Raises:
            UsageError: The processor has no such variable.
        """
        return self._read(lambda handle, store: [*self._keys(handle, store, name)])

    def _start(self) -> None:
        options = {"ephemeral": True, **self._options}
        self._config = resolve(None, self.url, options)
        self._client = Client(self._config)
        self._plan = make_plan(
            self._client,
            name=self.store,
            tenant=redis_keys.tenant_of(self._config.key_prefix),
            layout=layout_of(self._engine.inputs.keys),
            partitions=1,
            partitions_default=1,
            delay_ms=self._delay_ms,
        )
        self._run_id = str(uuid.uuid4())

    def _stop(self) -> None:
        if self._provider is not None:
            self._provider.close()
            self._provider = None
        self._client.close()

    def _copy(self) -> StatefulProcessor:
        """Returns a copy of the processor, serialized as for a task."""
        copy: StatefulProcessor = cloudpickle.loads(cloudpickle.dumps(self._processor))  # type: ignore[no-untyped-call]
        return copy

    def _begin(self, rows: Any) -> _LastBatch:
        table = table_of(rows, self._input, self._engine.inputs.time_zone)
        if self._began_ms is None:
            self._began_ms = self.now_ms
        return _LastBatch(self._next, table, self._began_ms)

    def _attempt(self, batch: _LastBatch, processor: StatefulProcessor) -> Any:
        with self._opened(batch) as (store, joined):
            table = self._output(store, batch, joined, processor)
            store.commit()
        self.watermark_ms = joined.watermark_ms
        return handed_out(table, self._engine.form, self._engine.inputs.time_zone)

    @contextmanager
    def _opened(self, batch: _LastBatch) -> Iterator[tuple[FamilyStore, JoinedBatch]]:
        """Opens the store of an attempt; aborts it unless it is committed."""
        self._attempts += 1
        # A run has one frame for each batch, as Spark plans it.
        frame = uuid.uuid5(uuid.UUID(self._run_id), str(batch.number)).hex[:FRAME_LETTERS]
        place = TaskPlace(
            self._query_id,
            self._run_id,
            batch.number,
            _PARTITION,
            self._attempts,
            str(batch.began_ms),
            frame,
        )
        keep_ms = self._config.keep_ms
        joined = join_batch(self._client, self._plan, place, keep_ms=keep_ms)
        before, self._provider = self._provider, None
        self._provider = StateStoreProvider(
            StateStoreProviderId(self._plan.store_id(_PARTITION), self._run_id),
            config=self._config,
            families=True,
            run=joined.run,
            client=self._client,
            after=before,
        )
        store = self._provider.get_family_store(joined.version)
        try:
            yield store, joined
        finally:
            if not store.has_committed:
                store.abort()

    def _output(
        self,
        store: FamilyStore,
        batch: _LastBatch,
        joined: JoinedBatch,
        processor: StatefulProcessor,
    ) -> pa.Table:
        import pyarrow as pa

        engine = replace(self._engine, processor=processor, ttl_ms=self._config.state_ttl)
        info = ProcessorQueryInfo(self._query_id, self._run_id, batch.number)
        given = engine.run(store, batch.rows, batch.began_ms, joined.watermark_ms, info)
        return pa.Table.from_batches(list(given), schema=engine.output)

    def _read(self, read: Callable[[Handle, FamilyStore], R]) -> R:
        """Reads the committed state through a processor that is called now."""
        if self._provider is None:
            self._provider = StateStoreProvider(
                StateStoreProviderId(self._plan.store_id(_PARTITION), self._run_id),
                config=self._config,
                families=True,
                client=self._client,
            )
        store = self._provider.get_family_store(self._next)
        processor = self._copy()
        times = Times(self._engine.inputs.mode, self.now_ms, self.watermark_ms)
        handle = Handle(
            store,
            self._engine.inputs.key_schema,
            times,
            ProcessorQueryInfo(self._query_id, self._run_id, self._next),
            ttl_ms=self._config.state_ttl,
        )
        try:
            processor.init(handle)
            return read(handle, store)
        finally:
            processor.close()
            store.abort()

    def _variable(self, handle: Handle, name: str, key: Any, kind: type[V]) -> V:
        found = handle.variables.get(name)
        if not isinstance(found, kind):
            raise _no_variable(name, kind.__name__, handle)
        handle.group.key = self._encoded(handle, key)
        return found

    def _encoded(self, handle: Handle, key: Any) -> bytes:
        return handle.keys.encode((key,) if len(self._engine.inputs.keys) == 1 else key)

    def _keys(self, handle: Handle, store: FamilyStore, name: str) -> Iterator[Any]:
        variable = handle.variables.get(name)
        if variable is None:
            raise _no_variable(name, "state variable", handle)
        before = None
        for stored, _ in store.rows(*family_range(store.families[name].id)):
            key, end = handle.keys.decode_first(stored, FAMILY_BYTES)
            handle.group.key = stored[FAMILY_BYTES:end]
            if handle.group.key != before and variable.exists():
                yield key[0] if len(key) == 1 else key
            before = handle.group.key


def _key_schema(given: object, grouping: Sequence[str]) -> str:
    text = key_schema_json(given, "the key column", attempted=_TESTING, names=grouping)
    kinds = {field["name"]: field for field in json.loads(text)["fields"]}
    fields = [{"name": name, "type": kinds[name]["type"], "nullable": True} for name in grouping]
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))


def _check_columns(
    grouping: Sequence[str], event_time: str | None, mode: TimeMode, names: Sequence[str]
) -> None:
    unknown = [name for name in (*grouping, *([event_time] if event_time else ()))
               if name not in names]  # fmt: skip
    if unknown or not grouping:
        raise _wrong(
            f"there is no column {unknown[0]!r}" if unknown else "there is no key column",
            f"Columns: {', '.join(names)}.",
        )
    if mode == "eventtime" and not event_time:
        raise _wrong(
            "the time mode is EventTime, and no column has the event time",
            "Give event_time=… and delay=….",
        )


def _no_variable(name: str, kind: str, handle: Handle) -> UsageError:
    known = ", ".join(
        f"{one} ({type(variable).__name__})" for one, variable in handle.variables.items()
    )
    return _wrong(f"there is no {kind} '{name}'", f"State variables: {known or 'none'}.")


def _wrong(found: str, advice: str) -> UsageError:
    return UsageError(_TESTING, found=found, advice=advice)
