"""`transform_with_state`: PySpark's stateful processors with their state in the Python worker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from redis_state import keys as redis_keys
from redis_state.backend.client import Client
from redis_state.batches.driver import PARTITIONS_MAX
from redis_state.batches.streams import (
    Inputs,
    StreamPlan,
    known_partitions,
    layout_of,
    list_store,
    make_plan,
    time_mode_of,
)
from redis_state.codec.typed_row import TypedKey, TypedRow, schema_json
from redis_state.config import Config
from redis_state.errors import InternalError, UsageError
from redis_state.protocol import register_run
from redis_state.spark.frames import (
    arrow_schema,
    check_names,
    config_of,
    named_columns,
    row_type,
    sql_conf,
    without_figures,
)
from redis_state.spark.map_partitions import spread_with_each
from redis_state.spark.processor.groups import FORMS, RowForm
from redis_state.spark.processor.spreading import spread_with_markers
from redis_state.spark.processor.transform_once import transformed_once
from redis_state.spark.processor.watermark_plan import watermark_of_plan
from redis_state.store.partition_state import EPHEMERAL_KEEP_MS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import DataType, StructType
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options
    from redis_state.spark.batch_metrics import BatchCounters
    from redis_state.spark.processor.columns import ColumnEngine, ColumnFunction
    from redis_state.spark.processor.engine import Engine

    class ProcessedDataFrame(DataFrame):
        """DataFrame that `transform_with_state` returns."""

        def state_metrics(self) -> dict[str, int]:
            """Returns the sums over all partitions and all batches since the call.

            ``rows_read``, ``function_ms``, and the figures of
            `StateStoreProvider.supported_custom_metrics`, such as ``load_ms`` and ``commit_ms``.
            A second evaluation counts again.

            Raises:
                UsageError: The session is one of Spark Connect, which has no accumulators.
            """

        def batch_metrics(self) -> dict[int, dict[str, int]]:
            """Returns the sums over all partitions for each of the ten newest batches, by batch id.

            These include ``num_keys`` and ``memory_bytes`` after the batch. Of a partition that was
            run again only the last run counts. The batch of a batch DataFrame has the id 0.

            Raises:
                UsageError: See `state_metrics`.
            """


_WHAT = "transform_with_state"


def transform_with_state(
    df: DataFrame,
    processor: StatefulProcessor,
    *,
    store: str,
    key: str | Sequence[str],
    schema: StructType | str,
    rows: RowForm = "pandas",
    time_mode: str = "None",
    initial_state: DataFrame | None = None,
    ticks: bool = False,
    partitions: int | None = None,
    first_batch_id: int = 0,
    url: str | None = None,
    **options: Unpack[Options],
) -> ProcessedDataFrame:
    """Runs a `StatefulProcessor` of PySpark over a DataFrame, without the project's jar.

    Replaces ``df.groupBy(key).transformWithStateInPandas(processor, …)``. The state is kept in the
    Python worker and in Redis, so `get`, `update` and timers need no round trip to the JVM. Each
    batch of a stream commits one version of every partition. Spark may run a batch again at any
    time.

    A batch DataFrame is processed once, as by Spark's operator. Every group begins without state or
    with its initial state, there is no watermark, and the state is dropped afterwards. No server is
    needed: `store`, `ticks`, `first_batch_id`, `url` and options then have no effect.

    Args:
        df: A DataFrame. Event time of a stream needs exactly one `withWatermark`.
        processor: An unchanged processor: `init`, `handleInputRows`, `handleExpiredTimer`, `close`.
        store: Name of the store; any text. The first batch of the query creates the store, which
            then belongs to that query's checkpoint.
        key: The grouping columns; they never change.
        schema: Schema of the processor's output.
        rows: Row form of the processor: ``pandas`` frames as in `transformWithStateInPandas`,
            ``rows`` as in `transformWithState`, or ``arrow`` tables.
        time_mode: Spark's ``None``, ``ProcessingTime`` or ``EventTime``. Once the processor can set
            timers, the mode never changes.
        initial_state: A batch DataFrame with the key columns, for `handleInitialState`. The call
            writes it into a new store at once, by a Spark job; pass it at each start. For a batch
            DataFrame the initial state is handled together with the rows.
        ticks: Runs a batch at each trigger, at most one a second, even without rows, so that timers
            fire in time. This adds a source (``rate``) to the query, so it never changes for a
            checkpoint. A batch without rows costs as much as Spark's own, about 0.3 s.
        partitions: Never changes; ``None`` uses the store's number, or
            ``spark.sql.shuffle.partitions`` for a new store. For a batch DataFrame ``None`` leaves
            the number to Spark.
        first_batch_id: Id of the store's first batch: 0, unless the operator is added to a query
            that has already run.
        url: The server; ``None`` uses the session's configuration.
        **options: Options of `docs/configuration.md` in snake case; they override those of the
            session.

    Raises:
        UsageError: Columns, names, the time mode or the schema do not fit.
        ConfigError: An option is wrong.
    """
    output = row_type(schema)
    if rows not in FORMS:
        raise _wrong(f"rows is {rows!r}", f"Give one of {', '.join(FORMS)}.")

    def engine(inputs: Inputs) -> Engine:
        from redis_state.spark.processor.engine import Engine

        return Engine(processor, inputs, rows, arrow_schema(df.sparkSession, output))

    return _operator(
        df,
        engine,
        output,
        key=key,
        store=store,
        time_mode=time_mode,
        initial_state=initial_state,
        ticks=ticks,
        partitions=partitions,
        first_batch_id=first_batch_id,
        url=url,
        options=options,
    )


def transform_columns_with_state(
    df: DataFrame,
    function: ColumnFunction,
    *,
    store: str,
    key: str | Sequence[str],
    state: StructType | str,
    schema: StructType | str,
    name: str = "state",
    time_mode: str = "None",
    ticks: bool = False,
    partitions: int | None = None,
    first_batch_id: int = 0,
    url: str | None = None,
    **options: Unpack[Options],
) -> ProcessedDataFrame:
    """Runs a function over the whole Arrow table of each partition, with the state of its keys.

    This is the fast form of `transform_with_state`: nothing is called for each key.

    Args:
        df: A DataFrame, streaming or batch.
        function: Takes a `ColumnState` and the table of the partition's rows; returns a table with
            the columns of `schema`, or ``None``. Called once for each partition and batch, even
            without rows.
        state: The state columns of a key, such as ``total long, seen timestamp``.
        schema: Schema of the function's output.
        name: Name of the state for live reads.

    The other arguments and the errors are those of `transform_with_state`.
    """
    output = row_type(schema)
    text = schema_json(state)
    TypedRow(text, what=f"the state columns '{name}'")
    state_schema = arrow_schema(df.sparkSession, row_type(state))

    def engine(inputs: Inputs) -> ColumnEngine:
        from redis_state.spark.processor.columns import ColumnEngine

        return ColumnEngine(
            function, inputs, text, state_schema, name, arrow_schema(df.sparkSession, output)
        )

    return _operator(
        df,
        engine,
        output,
        key=key,
        store=store,
        time_mode=time_mode,
        initial_state=None,
        ticks=ticks,
        partitions=partitions,
        first_batch_id=first_batch_id,
        url=url,
        options=options,
    )


def _operator(
    df: DataFrame,
    engine: Callable[[Inputs], Engine | ColumnEngine],
    output: StructType,
    *,
    key: str | Sequence[str],
    store: str,
    time_mode: str,
    initial_state: DataFrame | None,
    ticks: bool,
    partitions: int | None,
    first_batch_id: int,
    url: str | None,
    options: Mapping[str, object],
) -> ProcessedDataFrame:
    from redis_state.spark.processor.engine import Engine
    from redis_state.spark.processor.task import ProcessorTask

    spark = df.sparkSession
    grouping = named_columns(df, key, "key")
    if not grouping:
        raise _wrong("there is no key column", "Give the column that identifies the groups.")
    mode = time_mode_of(time_mode)
    if mode is None:
        raise _wrong(
            f"time_mode is {time_mode!r}",
            "Give 'None', 'ProcessingTime' or 'EventTime', as in Spark.",
        )
    check_names(df, grouping, store)
    event_time, delay_ms = "", None
    if df.isStreaming and mode == "eventtime":
        event_time, delay_ms = watermark_of_plan(df, _WHAT)
    kinds = {field.name: field.dataType for field in df.schema}
    key_schema = _key_schema([(name, kinds[name]) for name in grouping])
    if initial_state is not None:
        _check_initial(initial_state, df, grouping)
    inputs = Inputs(grouping, key_schema, mode, sql_conf(spark, "session.timeZone"), event_time)
    made = engine(inputs)
    _check_numbers(first_batch_id, partitions)
    # Imported here: the module imports pyspark, which workers without Spark lack.
    from redis_state.spark import batch_metrics

    counted = batch_metrics.counted_by(spark)
    if not df.isStreaming:
        once = transformed_once(
            df,
            made,
            output,
            store=store,
            initial_state=initial_state,
            partitions=partitions,
            counted=counted,
        )
        return _with_metrics(once, counted)
    config = config_of(spark, url, options)
    client = Client(config)
    try:
        plan = make_plan(
            client,
            name=store,
            tenant=redis_keys.tenant_of(config.key_prefix),
            layout=layout_of(
                [f"{name} {kinds[name].simpleString()}" for name in grouping],
                initial=initial_state is not None,
            ),
            partitions=partitions,
            partitions_default=int(sql_conf(spark, "shuffle.partitions")),
            delay_ms=delay_ms,
            first=first_batch_id,
            before=0 if initial_state is None else 1,
        )
        if not isinstance(made, Engine):
            made = replace(made, partitions=plan.partitions)
        elif initial_state is not None:
            _take_initial(client, initial_state, plan, config, made)
    finally:
        client.close()
    task = ProcessorTask(plan, config, made, arrow_schema(spark, df.schema), counted)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task.run(batches)

    spread = spread_with_markers(df, plan.name, grouping, plan.partitions, ticks=ticks)
    return _with_metrics(spread.mapInArrow(run, output), counted)


def _with_metrics(mapped: DataFrame, counted: BatchCounters | None) -> ProcessedDataFrame:
    made = cast("ProcessedDataFrame", mapped)

    def known() -> BatchCounters:
        if counted is None:
            raise without_figures("The workers log each open and commit, at level INFO.")
        return counted

    made.state_metrics = lambda: dict(known().sums.value)  # type: ignore[method-assign]  # see it
    made.batch_metrics = lambda: known().by_batch()  # type: ignore[method-assign]  # see it
    return made


def _key_schema(grouping: Sequence[tuple[str, DataType]]) -> str:
    """Returns the key columns as Spark's JSON.

    Raises:
        UsageError: A column has a type that cannot be a key.
    """
    for name, kind in grouping:
        if any(f'"type":"{nested}"' in kind.json() for nested in ("array", "udt")):
            raise _wrong(
                f"the key column '{name}' is of type {kind.simpleString()}",
                "Group by columns without arrays and user-defined types.",
            )
    fields = [
        {"name": name, "type": json.loads(kind.json()), "nullable": True} for name, kind in grouping
    ]
    schema = json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"))
    TypedKey(schema, what="the key of a group")
    return schema


def _check_numbers(first: int, partitions: int | None) -> None:
    if type(first) is not int or first < 0:
        raise _wrong("first_batch_id is not a whole number of 0 or more", "Omit it, or give 0.")
    if partitions is not None and not 1 <= partitions <= PARTITIONS_MAX:
        raise _wrong(
            f"{partitions} partitions were requested",
            f"Give 1 to {PARTITIONS_MAX}, or omit it.",
        )


def _take_initial(
    client: Client, initial: DataFrame, plan: StreamPlan, config: Config, engine: Engine
) -> None:
    """Commits version 1 of each partition of a new store; a store that began a batch has it."""
    from redis_state.spark.processor.task import InitialTask

    if known_partitions(client, plan.gen, tenant=plan.tenant) is not None:
        return
    list_store(client, plan, keep_ms=EPHEMERAL_KEEP_MS if config.ephemeral else 0)
    owner = register_run(client, plan.gen, uuid.uuid4().hex, by_driver=True, tenant=plan.tenant)
    schema = arrow_schema(initial.sparkSession, initial.schema)
    (time,) = client.call("reading the time of the server", [("TIME",)])
    # Values with a time to live expire by the server's time, like those of batches.
    began_ms = int(time[0]) * 1000 + int(time[1]) // 1000
    task = InitialTask(plan, config, owner, engine, schema, began_ms)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task.run(batches)

    spread = spread_with_each(initial, engine.inputs.keys, (), plan.partitions)
    done = {row.partition for row in spread.mapInArrow(run, "partition int").collect()}
    if len(done) != plan.partitions:
        raise InternalError(
            f"taking the initial state of store '{plan.name}'",
            found=f"{len(done)} of {plan.partitions} partitions ran",
        )


def _check_initial(initial: DataFrame, df: DataFrame, grouping: Sequence[str]) -> None:
    kinds = dict(df.dtypes)
    found = dict(initial.dtypes)
    wrong = [name for name in grouping if found.get(name) != kinds[name]]
    if initial.isStreaming or wrong:
        raise _wrong(
            "the initial state is a stream"
            if initial.isStreaming
            else f"the initial state has no key column '{wrong[0]}' of type {kinds[wrong[0]]}",
            "Give a batch DataFrame with the same key columns.",
        )


def _wrong(found: str, advice: str) -> UsageError:
    return UsageError(_WHAT, found=found, advice=advice)
