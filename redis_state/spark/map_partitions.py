"""`map_partitions_with_state_store`: stateful processing of a DataFrame, without a jar."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from redis_state.backend.client import Client
from redis_state.batches.driver import Batch, begin_batch, verify_committed
from redis_state.codec import MSGPACK, RAW, Codec
from redis_state.config import Config
from redis_state.errors import UsageError
from redis_state.spark.driver_jvm import java_class
from redis_state.spark.frames import (
    Frame,
    arrow_schema,
    check_names,
    column_of,
    config_of,
    named_columns,
    repartition_by_number,
    row_type,
    sql_conf,
    with_methods,
    without_figures,
)
from redis_state.spark.partition_task import Function, PartitionTask
from redis_state.spark.rows import KINDS, RowFormat, RowKind

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options


class StatefulDataFrame(Frame):
    """DataFrame that `map_partitions_with_state_store` returns."""

    _batch: Batch
    _config: Config
    _counted: Accumulator[dict[str, int]] | None

    def verify_committed(self) -> None:
        """Checks that every partition ran to its end and has committed.

        Raises:
            StateError: A partition has not committed; the message names it.
            ConflictError: A later call took the store.
        """
        from redis_state.spark import batch_metrics

        with closing(Client(self._config)) as client:
            verify_committed(client, self._batch)
        batch_metrics.report(self.sparkSession, self._batch.name, self._counted)

    def state_metrics(self) -> dict[str, int]:
        """Returns the present figures of the batch over all partitions.

        These are ``num_keys`` and ``memory_bytes`` after the batch, and the figures of
        `StateStoreProvider.supported_custom_metrics`: sums, sizes in bytes and timings in
        milliseconds. A second evaluation counts again.

        Raises:
            UsageError: The session is one of Spark Connect, which has no accumulators.
        """
        if self._counted is None:
            raise without_figures("Use `BatchStore.metrics` in the function.")
        return dict(self._counted.value)


_PARTITION, _ROW = "partition", "row"


def map_partitions_with_state_store(
    df: DataFrame,
    func: Function,
    *,
    store: str,
    batch_id: int,
    key: str | Sequence[str],
    schema: StructType | str,
    rows: RowKind = "dicts",
    order_by: str | Sequence[str] = (),
    partitions: int | None = None,
    first_batch_id: int = 0,
    codec: Codec = MSGPACK,
    url: str | None = None,
    **options: Unpack[Options],
) -> StatefulDataFrame:
    """Runs a function once for each partition of a batch, with the state of that partition.

    The call takes the store for this batch at once. The function runs when the returned DataFrame
    is evaluated. Each evaluation starts from the state before the batch and replaces the commit of
    an earlier one. Evaluations after the next call are refused.

    Args:
        df: Rows of the batch; not a streaming DataFrame.
        func: Takes a `BatchStore` and an iterator of the partition's rows; returns an iterable of
            output rows, or ``None``. Its changes are committed when it has read all rows. They are
            dropped if it fails or its output is not read to the end.
        store: Name of the store; any text. The first batch creates the store.
        batch_id: Rises by one from batch to batch; the newest batch may be run again.
        key: Columns whose rows meet in one partition; never changes.
        schema: Schema of the output rows.
        rows: Row format of `func`: ``dicts``, one for each row, or ``pandas`` frames or ``arrow``
            record batches of many rows.
        order_by: Columns by which the rows of a partition are sorted; without them the order may
            differ when a batch is run again.
        partitions: Never changes; ``None`` uses the store's number, or
            ``spark.sql.shuffle.partitions`` for a new store.
        first_batch_id: Id of the store's first batch.
        codec: Encoding of keys and values; never changes.
        url: The server; ``None`` uses the session's configuration.
        **options: Options of `docs/configuration.md` in snake case; they override those of the
            session.

    Raises:
        UsageError: The batch id is neither the next nor the newest, or columns, partitions, names
            or the codec do not fit the store.
        StateError: The store does not hold the version of the previous batch.
        ConflictError: Another driver took the store in the meantime.
        ConfigError: An option is wrong.
    """
    spark = df.sparkSession
    config = config_of(spark, url, options)
    keys = named_columns(df, key, "key")
    if not keys:
        raise _wrong("there is no key column", "Give the column that identifies the groups.")
    sorting = named_columns(df, order_by, "order_by")
    _check(df, keys, store, rows)
    # Imported here: these modules import pyspark, which workers without Spark lack.
    from redis_state.spark import batch_metrics

    kind = row_type(schema)
    format_ = RowFormat(rows, arrow_schema(spark, kind), sql_conf(spark, "session.timeZone"))
    types = dict(df.dtypes)
    with closing(Client(config)) as client:
        batch = begin_batch(
            client,
            config,
            name=store,
            number=batch_id,
            first=first_batch_id,
            partitions=partitions,
            partitions_default=int(sql_conf(spark, "shuffle.partitions")),
            layout=_layout([(name, types[name]) for name in keys], codec.name),
            codec_name=codec.name,
            query_id=_query_id(spark),
        )
    ours = codec is MSGPACK or codec is RAW
    counted = batch_metrics.sums(spark)
    shows = batch_metrics.can_show(spark)
    given_out = batch_metrics.widened(kind) if shows else kind
    task = PartitionTask(
        batch,
        config,
        codec.name if ours else codec,
        func,
        format_,
        counted,
        arrow_schema(spark, given_out) if shows else None,
    )

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task.run(batches)

    spread = _placed(spread_with_each(df, keys, sorting, batch.partitions), batch)
    mapped = spread.mapInArrow(run, given_out)
    if shows:
        mapped = batch_metrics.shown(mapped, store, kind)
    return with_methods(mapped, StatefulDataFrame, _batch=batch, _config=config, _counted=counted)


def foreach_batch_with_state_store(
    func: Function,
    write: Callable[[StatefulDataFrame, int], None],
    *,
    store: str,
    key: str | Sequence[str],
    schema: StructType | str,
    rows: RowKind = "dicts",
    order_by: str | Sequence[str] = (),
    partitions: int | None = None,
    first_batch_id: int = 0,
    codec: Codec = MSGPACK,
    url: str | None = None,
    **options: Unpack[Options],
) -> Callable[[DataFrame, int], None]:
    """Returns a function for `DataStreamWriter.foreachBatch`: map each batch, write it, verify it.

    Args:
        write: Takes the mapped DataFrame and the batch id, and evaluates the whole DataFrame. Spark
            may run a batch again, so `write` must replace earlier output of the same batch id.

    The other arguments are those of `map_partitions_with_state_store`.
    """

    def run(df: DataFrame, batch_id: int) -> None:
        mapped = map_partitions_with_state_store(
            df,
            func,
            store=store,
            batch_id=batch_id,
            key=key,
            schema=schema,
            rows=rows,
            order_by=order_by,
            partitions=partitions,
            first_batch_id=first_batch_id,
            codec=codec,
            url=url,
            **options,
        )
        write(mapped, batch_id)
        mapped.verify_committed()

    return run


def spread_with_each(
    df: DataFrame, keys: Sequence[str], sorting: Sequence[str], partitions: int
) -> DataFrame:
    """Returns rows as structs in the partitions of their keys, and a null struct in each partition.

    Spark leaves out partitions that it knows to be empty; but their versions must rise, too.
    """
    from pyspark.sql import functions as f

    whole = f.struct(*(column_of(df, name) for name in df.columns))
    number = f.pmod(f.hash(*(column_of(df, name) for name in keys)), f.lit(partitions))
    numbered = df.select(number.alias(_PARTITION), whole.alias(_ROW))
    kind = numbered.schema[_ROW].dataType
    each = df.sparkSession.range(0, partitions, 1, 1).select(
        f.col("id").cast("int").alias(_PARTITION), f.lit(None).cast(kind).alias(_ROW)
    )
    spread = repartition_by_number(numbered.unionAll(each), partitions, _PARTITION)
    if sorting:
        spread = spread.sortWithinPartitions(*(f.col(_ROW).getField(name) for name in sorting))
    return spread


def _placed(spread: DataFrame, batch: Batch) -> DataFrame:
    """Prefers for each partition the executor of the store's last batch; the rows stay the same.

    This needs a class of the project's jar and a driver in this process; Spark Connect has neither.
    """
    places = java_class(spread.sparkSession, "batches.BatchPlaces")
    if places is None:
        return spread
    from pyspark.sql import DataFrame

    placed = places.placed(spread._jdf, f"{batch.gen}:{batch.partitions}")
    return DataFrame(placed, spread.sparkSession)


def _query_id(spark: SparkSession) -> str:
    """Returns Spark's id of the query whose foreachBatch calls; empty if unknown.

    With Spark Connect the function runs in another process, which Spark does not tell the id.
    """
    if getattr(spark, "_jvm", None) is None:
        return ""
    return spark.sparkContext.getLocalProperty("sql.streaming.queryId") or ""


def _layout(keys: Sequence[tuple[str, str]], codec: str) -> str:
    """Returns the layout of a store's rows: placement and encoding, which never change."""
    columns = ", ".join(f"{name} {kind}" for name, kind in keys)
    return json.dumps(f"key {columns}; codec {codec}")


def _check(df: DataFrame, keys: Sequence[str], store: str, rows: str) -> None:
    if df.isStreaming:
        raise _wrong(
            "the DataFrame is a stream",
            "Call it in foreachBatch; foreach_batch_with_state_store makes such a function.",
        )
    if rows not in KINDS:
        raise _wrong(f"rows is {rows!r}", f"Give one of {', '.join(KINDS)}.")
    check_names(df, keys, store)


def _wrong(found: str, advice: str) -> UsageError:
    return UsageError("map_partitions_with_state_store", found=found, advice=advice)
