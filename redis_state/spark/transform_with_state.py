"""`transform_with_state`: PySpark's stateful processors with their state in the Python worker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from redis_state import keys as redis_keys
from redis_state.backend.client import Client
from redis_state.codec.typed_row import TypedKey, TypedRow, schema_json
from redis_state.config import Config
from redis_state.errors import InternalError, UsageError
from redis_state.protocol import register_run
from redis_state.spark.batches import PARTITIONS_MAX
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
from redis_state.spark.processor.groups import FORMS, Form
from redis_state.spark.processor.spreading import spread_with_markers
from redis_state.spark.processor.watermark_plan import watermark_of_plan
from redis_state.spark.stream_batches import (
    Inputs,
    Plan,
    known_partitions,
    layout_of,
    list_store,
    make_plan,
    time_mode_of,
)
from redis_state.spark.transform_once import transformed_once
from redis_state.store.partition_state import EPHEMERAL_KEEP_MS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import DataType, StructType
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options
    from redis_state.spark.batch_metrics import Counted
    from redis_state.spark.processor.columns import ColumnEngine, ColumnFunction
    from redis_state.spark.processor.engine import Engine

    class ProcessedDataFrame(DataFrame):
        """The DataFrame that `transform_with_state` returns."""

        def state_metrics(self) -> dict[str, int]:
            """What the partitions counted in all batches since the call, together.

            ``rows_read``, ``function_ms``, and the figures of
            `StateStoreProvider.supported_custom_metrics`, such as ``load_ms`` and ``commit_ms``.
            What is evaluated again counts again.

            Raises:
                UsageError: The session is one of Spark Connect, which has no accumulators.
            """

        def batch_metrics(self) -> dict[int, dict[str, int]]:
            """The same for each of the ten newest batches, by batch id.

            With ``num_keys`` and ``memory_bytes`` after the batch. Of a partition that was run
            again only the last run counts. That of a batch DataFrame has the id 0.

            Raises:
                UsageError: As `state_metrics`.
            """


_WHAT = "transform_with_state"


def transform_with_state(
    df: DataFrame,
    processor: StatefulProcessor,
    *,
    store: str,
    key: str | Sequence[str],
    schema: StructType | str,
    rows: Form = "pandas",
    time_mode: str = "None",
    initial_state: DataFrame | None = None,
    ticks: bool = False,
    partitions: int | None = None,
    first_batch_id: int = 0,
    url: str | None = None,
    **options: Unpack[Options],
) -> ProcessedDataFrame:
    """Run a `StatefulProcessor` of PySpark over a DataFrame, without our jar.

    Stands where ``df.groupBy(key).transformWithStateInPandas(processor, …)`` stood. The state is
    kept in the Python worker and in Redis, so that `get`, `update` and timers take no round trip to
    the JVM. Each batch of a stream commits one version of every partition; Spark may run a batch
    again at any time.

    A batch DataFrame is run over once, as by Spark's operator: every group begins without state or
    with its initial one, there is no watermark, and the state is gone afterwards. It takes no
    server: `store`, `ticks`, `first_batch_id`, `url` and options have no effect then.

    Args:
        df: A DataFrame. Event time of a stream goes by its `withWatermark`, of which there is one.
        processor: As it is: `init`, `handleInputRows`, `handleExpiredTimer`, `close`.
        store: Name of the store; any text. It is made with the first batch of the query and belongs
            to that query's checkpoint.
        key: The grouping columns; they never change.
        schema: Of what the processor gives out.
        rows: What the processor takes and gives: ``pandas`` frames as in
            `transformWithStateInPandas`, ``rows`` as in `transformWithState`, or ``arrow`` tables.
        time_mode: ``None``, ``ProcessingTime`` or ``EventTime``, as Spark's. Once the processor
            could set timers, it never changes.
        initial_state: A batch DataFrame with the key columns, whose rows `handleInitialState` gets.
            The call takes it into a new store at once, by a job of Spark; give it at each start.
            That of a batch DataFrame is taken in where the rows are.
        ticks: Have a batch at each trigger, at most one a second, also where there are no rows, so
            that timers fire in time. It adds a source (``rate``) to the query, so it never changes
            for a checkpoint; a batch without rows costs what Spark's batches cost, some 0.3 s.
        partitions: Never changes; ``None`` means those of the store, or
            ``spark.sql.shuffle.partitions`` if it is new. For a batch DataFrame ``None`` leaves the
            number to Spark.
        first_batch_id: The batch id that the store begins with: 0, unless a query that ran already
            gets the operator.
        url: The server; ``None`` means that of the session's configuration.
        **options: Options of `docs/configuration.md` in snake case, before those of the session.

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
    """Run a function over the whole Arrow table of each partition, beside the state of its keys.

    The fast form of `transform_with_state`: nothing is called for each key.

    Args:
        df: A DataFrame, streaming or batch.
        function: Gets a `ColumnState` and the table of the partition's rows, and returns a table
            with the columns of `schema`, or ``None``. It is called once for each partition and
            batch, also where there are no rows.
        state: The state columns of a key, such as ``total long, seen timestamp``.
        schema: Of what the function gives out.
        name: What the state is called for live reads.

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
        raise _wrong("there is no key column", "Give the column that tells the groups apart.")
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
    # It imports pyspark, which workers without Spark have not.
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


def _with_metrics(mapped: DataFrame, counted: Counted | None) -> ProcessedDataFrame:
    made = cast("ProcessedDataFrame", mapped)

    def known() -> Counted:
        if counted is None:
            raise without_figures("The workers log each open and commit, at level INFO.")
        return counted

    made.state_metrics = lambda: dict(known().sums.value)  # type: ignore[method-assign]  # see it
    made.batch_metrics = lambda: known().by_batch()  # type: ignore[method-assign]  # see it
    return made


def _key_schema(grouping: Sequence[tuple[str, DataType]]) -> str:
    """The key columns as Spark's JSON.

    Raises:
        UsageError: One has a type that cannot be kept as a key.
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
        raise _wrong("first_batch_id is not a whole number from 0 on", "Leave it out, or give 0.")
    if partitions is not None and not 1 <= partitions <= PARTITIONS_MAX:
        raise _wrong(
            f"{partitions} partitions were asked for",
            f"Give 1 to {PARTITIONS_MAX}, or leave it out.",
        )


def _take_initial(
    client: Client, initial: DataFrame, plan: Plan, config: Config, engine: Engine
) -> None:
    """Commit version 1 of each partition of a new store; one that began a batch has it already."""
    from redis_state.spark.processor.task import InitialTask

    if known_partitions(client, plan.gen, tenant=plan.tenant) is not None:
        return
    list_store(client, plan, keep_ms=EPHEMERAL_KEEP_MS if config.ephemeral else 0)
    owner = register_run(client, plan.gen, uuid.uuid4().hex, by_driver=True, tenant=plan.tenant)
    schema = arrow_schema(initial.sparkSession, initial.schema)
    (time,) = client.call("reading the time of the server", [("TIME",)])
    # Values with a time to live expire by it, as those of batches do.
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
