"""`transform_with_state`: PySpark's stateful processors with their state in the Python worker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from redis_state import keys as redis_keys
from redis_state.backend.client import Client
from redis_state.backend.replies import time_ms
from redis_state.batches.streams import Inputs, StreamPlan, known_partitions, list_store, make_plan
from redis_state.codec.typed_row import TypedRow
from redis_state.config import Config
from redis_state.errors import InternalError
from redis_state.protocol import register_run
from redis_state.spark.frames import (
    Frame,
    arrow_schema,
    config_of,
    row_type,
    sql_conf,
    with_methods,
    without_figures,
)
from redis_state.spark.map_partitions import spread_with_each
from redis_state.spark.processor.call import CalledStore, KeyedRows, wrong
from redis_state.spark.processor.groups import FORMS, RowForm
from redis_state.spark.processor.spreading import spread_with_markers
from redis_state.spark.processor.transform_once import transformed_once
from redis_state.types.declared import schema_json

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options
    from redis_state.spark.batch_metrics import BatchCounters
    from redis_state.spark.processor.columns import ColumnEngine, ColumnFunction
    from redis_state.spark.processor.engine import Engine


class ProcessedDataFrame(Frame):
    """DataFrame that `transform_with_state` returns."""

    _counted: BatchCounters | None

    def state_metrics(self) -> dict[str, int]:
        """Returns the sums over all partitions and all batches since the call.

        ``rows_read``, ``function_ms``, and the figures of
        `StateStoreProvider.supported_custom_metrics`, such as ``load_ms`` and ``commit_ms``.
        A second evaluation counts again.

        Raises:
            UsageError: The session is one of Spark Connect, which has no accumulators.
        """
        return dict(self._known.sums.value)

    def batch_metrics(self) -> dict[int, dict[str, int]]:
        """Returns the sums over all partitions for each of the ten newest batches, by batch id.

        These include ``num_keys`` and ``memory_bytes`` after the batch. Of a partition that was
        run again only the last run counts. The batch of a batch DataFrame has the id 0.

        Raises:
            UsageError: See `state_metrics`.
        """
        return self._known.by_batch()

    @property
    def _known(self) -> BatchCounters:
        if self._counted is None:
            raise without_figures("The workers log each open and commit, at level INFO.")
        return self._counted


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
        raise wrong(f"rows is {rows!r}", f"Give one of {', '.join(FORMS)}.")

    def engine(inputs: Inputs) -> Engine:
        from redis_state.spark.processor.engine import Engine

        return Engine(processor, inputs, rows, arrow_schema(df.sparkSession, output))

    keyed = KeyedRows(df, key, time_mode, ticks, initial_state)
    called = CalledStore(store, partitions, first_batch_id, url, options)
    return _operator(keyed, called, engine, output)


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

    keyed = KeyedRows(df, key, time_mode, ticks)
    called = CalledStore(store, partitions, first_batch_id, url, options)
    return _operator(keyed, called, engine, output)


def _operator(
    rows: KeyedRows,
    store: CalledStore,
    engine: Callable[[Inputs], Engine | ColumnEngine],
    output: StructType,
) -> ProcessedDataFrame:
    inputs, delay_ms = rows.inputs(store.name)
    made = engine(inputs)
    store.check()
    # Imported here: the module imports pyspark, which workers without Spark lack.
    from redis_state.spark import batch_metrics

    counted = batch_metrics.counted_by(rows.df.sparkSession)
    if rows.df.isStreaming:
        mapped = _streamed(rows, store, made, output, delay_ms, counted)
    else:
        mapped = transformed_once(rows, store, made, output, counted)
    return with_methods(mapped, ProcessedDataFrame, _counted=counted)


def _streamed(
    rows: KeyedRows,
    store: CalledStore,
    engine: Engine | ColumnEngine,
    output: StructType,
    delay_ms: int | None,
    counted: BatchCounters | None,
) -> DataFrame:
    from redis_state.spark.processor.engine import Engine
    from redis_state.spark.processor.task import ProcessorTask

    spark, keys, initial = rows.df.sparkSession, engine.inputs.keys, rows.initial_state
    config = config_of(spark, store.url, store.options)
    with closing(Client(config)) as client:
        plan = make_plan(
            client,
            name=store.name,
            tenant=redis_keys.tenant_of(config.key_prefix),
            layout=rows.layout(keys),
            partitions=store.partitions,
            partitions_default=int(sql_conf(spark, "shuffle.partitions")),
            delay_ms=delay_ms,
            first=store.first_batch_id,
            before=0 if initial is None else 1,
        )
        engine = replace(engine, ttl_ms=config.state_ttl)
        if not isinstance(engine, Engine):
            engine = replace(engine, partitions=plan.partitions)
        elif initial is not None:
            _take_initial(client, initial, plan, config, engine)
    task = ProcessorTask(plan, config, engine, arrow_schema(spark, rows.df.schema), counted)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task.run(batches)

    spread = spread_with_markers(rows.df, plan.name, keys, plan.partitions, ticks=rows.ticks)
    return spread.mapInArrow(run, output)


def _take_initial(
    client: Client, initial: DataFrame, plan: StreamPlan, config: Config, engine: Engine
) -> None:
    """Commits version 1 of each partition of a new store; a store that began a batch has it."""
    from redis_state.spark.processor.task import InitialTask

    if known_partitions(client, plan.gen, tenant=plan.tenant) is not None:
        return
    list_store(client, plan, keep_ms=config.keep_ms)
    owner = register_run(client, plan.gen, uuid.uuid4().hex, by_driver=True, tenant=plan.tenant)
    schema = arrow_schema(initial.sparkSession, initial.schema)
    (time,) = client.call("reading the time of the server", [("TIME",)])
    # Values with a time to live expire by the server's time, like those of batches.
    began_ms = time_ms(time)
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
