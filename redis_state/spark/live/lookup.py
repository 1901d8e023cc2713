"""`lookup`: adds columns of another query's live state to a DataFrame, by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Literal

from redis_state.backend.client import Client
from redis_state.errors import UsageError
from redis_state.ids import DEFAULT_STORE
from redis_state.reader.family import DEFAULT_FAMILY
from redis_state.reader.version_request import CONFIRMED
from redis_state.spark.frames import (
    arrow_schema,
    check_key_types,
    column_of,
    config_of,
    named_columns,
)
from redis_state.spark.live.live_state import LiveState
from redis_state.spark.live.lookup_task import (
    PIN,
    LookUp,
    LookupBatch,
    VersionChoice,
    join_names,
    name_of,
)
from redis_state.types.decoding import Texts, Variants, decoding_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options
    from redis_state.reader.state_table import StateTable

_WHAT = "looking state up"
_KINDS = ("left", "inner")


def lookup(
    df: DataFrame,
    *,
    query: str,
    on: str | Sequence[str] | Mapping[str, str],
    operator: int = 0,
    store: str = DEFAULT_STORE,
    family: str = DEFAULT_FAMILY,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    prefix: str = "",
    how: Literal["left", "inner"] = "left",
    at: str | int = CONFIRMED,
    text: Texts = "strict",
    variant: Variants = "json",
    url: str | None = None,
    **options: Unpack[Options],
) -> DataFrame:
    """Joins a DataFrame with the live state of another query, key by key and without a scan.

    All tasks of a batch read one version. A batch that is run again reads the same version, while
    it exists; see docs/dataframes.md. A null equals no key. A watermark is kept.

    Args:
        df: A streaming or batch DataFrame.
        query: Name or id of the query whose state is read.
        on: Columns whose values are the key: names that both sides have, or a mapping of `df`'s
            columns to key columns. For a Python store, the columns whose value, or tuple of values,
            is the key.
        operator: See `Query.operator`; also for `store` and `family`.
        columns: Value columns to add, or a mapping of them to new names; ``None`` for all. A Python
            store has one column, ``value``, as JSON text.
        prefix: Prefix of the names of added columns.
        how: ``inner`` leaves out rows whose key has no state.
        at: Version to read, resolved for each batch; see docs/reading.md.
        text: Form of texts that are not UTF-8, as in `Query.operator`; keys are always compared by
            their bytes.
        variant: Form of a VARIANT, as in `Query.operator`.
        url: The server; ``None`` uses the session's configuration.
        **options: Options of `docs/configuration.md` in snake case; they override those of the
            session.

    Raises:
        UsageError: A column is missing, of another type than the key column, or duplicated; the
            state has lists; equal values of a column may differ in bytes.
        NotFoundError: The query, operator, store or family does not exist.
        ConfigError: An option is wrong, or rows cannot be looked up by a key column of the state.
        RedisStateError: The state cannot be read. `UnreadableError` in a task: a value has no form
            that was asked for.
    """
    spark = df.sparkSession
    forms = decoding_of(text, variant)
    if how not in _KINDS:
        raise _wrong(f"how is {how!r}", f"Give one of: {', '.join(_KINDS)}.")
    state = LiveState(config_of(spark, url, options), query, operator, store, family, at, forms)
    here = state.with_password()
    with closing(Client(here.config)) as client:
        table = here.table(client, here.pinned())
    if table.has_lists:
        raise _wrong(
            "the state has a list for each key",
            'Read it by spark.read.format("redis_state"), a row for each element, and join it.',
        )
    by = _by(df, on, table)
    added = _added(df, columns, prefix, table)
    kind = _schema(df, added, table)
    _check_types(df, by, table)
    inner = how == "inner"
    choice = VersionChoice(state, name_of(state, by, added, inner=inner))
    names = join_names(len(df.columns))
    on_place = tuple(names[df.columns.index(one)] for one in by)
    look_up = LookUp(state, on_place, tuple(added), inner, arrow_schema(spark, kind))

    def choose(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for _ in batches:
            pass  # Spark requires that the input is read.
        yield pa.RecordBatch.from_pydict({PIN: [choice.run(_batch())]})

    def join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return look_up.run(batches)

    version = spark.range(0, 1, 1, 1).mapInArrow(choose, f"{PIN} string")
    # Spark runs a scalar subquery once for each batch, before the tasks that use its answer.
    return df.withColumn(PIN, version.scalar()).toDF(*names, PIN).mapInArrow(join, kind)


def _batch() -> LookupBatch | None:
    """Returns the batch of this task; ``None`` outside of a streaming query."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None
    number = context.getLocalProperty("streaming.sql.batchId")
    query_id = context.getLocalProperty("sql.streaming.queryId")
    return LookupBatch(query_id, int(number)) if number and query_id else None


def _by(df: DataFrame, on: str | Sequence[str] | Mapping[str, str], table: StateTable) -> list[str]:
    """Returns the columns of the rows, in the order of the key columns."""
    if isinstance(on, Mapping):
        pairs = dict(on)
    else:
        names = [on] if isinstance(on, str) else list(on)
        pairs = dict(zip(names, names, strict=True))
    named = named_columns(df, list(pairs), "on")
    if not named:
        raise _wrong("on names no column", f"Key columns: {', '.join(table.key_names)}.")
    if table.key is None:
        return named
    keys = table.key_names
    if sorted(pairs.values()) != sorted(keys):
        raise _wrong(
            f"on names the key columns {', '.join(pairs.values())}",
            f"Name each of these once: {', '.join(keys)}.",
        )
    by_key = {key: name for name, key in pairs.items()}
    return [by_key[key] for key in keys]


def _added(
    df: DataFrame, columns: Sequence[str] | Mapping[str, str] | None, prefix: str, table: StateTable
) -> dict[str, str]:
    """Returns the value columns to add, and their names in the result."""
    there = table.value_names
    if columns is None:
        chosen = {name: name for name in there}
    elif isinstance(columns, Mapping):
        chosen = dict(columns)
    else:
        chosen = {name: name for name in ([columns] if isinstance(columns, str) else columns)}
    unknown = [name for name in chosen if name not in there]
    if unknown:
        raise _wrong(
            f"columns names '{unknown[0]}', which the state does not have",
            f"Value columns: {', '.join(there)}.",
        )
    made = {name: prefix + new for name, new in chosen.items()}
    names = [name.lower() for name in (*df.columns, *made.values())]
    twice = [name for name in made.values() if names.count(name.lower()) > 1]
    if twice:
        raise _wrong(
            f"two columns would be named '{twice[0]}'",
            "Give prefix='state_', or a mapping to new names as columns.",
        )
    return made


def _schema(df: DataFrame, added: Mapping[str, str], table: StateTable) -> StructType:
    from pyspark.sql.types import StructField, StructType

    from redis_state.spark.live.data_source import spark_schema

    kinds = spark_schema(table.chosen(list(added)))
    new = zip(added.values(), kinds.fields, strict=True)
    return StructType(
        [*df.schema.fields, *(StructField(name, field.dataType) for name, field in new)]
    )


def _check_types(df: DataFrame, by: Sequence[str], table: StateTable) -> None:
    """Refuses columns of other types than the key's, whose values would never be found."""
    if table.key is None:
        check_key_types(df, by, attempted=_WHAT)
        return
    table.check_look_up()
    from redis_state.spark.live.data_source import spark_schema

    wanted = spark_schema(table.chosen(table.key_names))
    for name, field in zip(by, wanted.fields, strict=True):
        (given,) = df.select(column_of(df, name)).schema.fields
        if given.dataType.simpleString() != field.dataType.simpleString():
            raise _wrong(
                f"column '{name}' is of type {given.dataType.simpleString()}, and key column "
                f"'{field.name}' of type {field.dataType.simpleString()}",
                "Cast the column.",
            )


def _wrong(found: str, advice: str) -> UsageError:
    return UsageError(_WHAT, found=found, advice=advice)
