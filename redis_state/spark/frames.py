"""Access of stateful operators to a DataFrame and its session: options, schemas, columns."""

from __future__ import annotations

import difflib
import inspect
import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from redis_state import config as options_table
from redis_state.config import Config
from redis_state.errors import UsageError
from redis_state.protocol.runs import check_name
from redis_state.types.declared import check_key

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    Frame: TypeAlias = DataFrame
else:
    Frame = object
    """Base of classes that add methods to a DataFrame; see `with_methods`."""

_MAKING = "making a stateful DataFrame"

M = TypeVar("M", bound=Frame)


def config_of(spark: SparkSession, url: str | None, options: Mapping[str, object]) -> Config:
    """Merges given options over those of the session.

    Raises:
        ConfigError: An option is wrong.
    """
    prefix = options_table.conf_prefix()
    values: dict[str, object] = {}
    for name in options_table.options():
        found = spark.conf.get(prefix + name, None)
        if found is not None:
            values[name] = found
    given = {"url": url, **options} if url is not None else options
    named = {options_table.option_named(name).name: value for name, value in given.items()}
    return options_table.parse({**values, **named})


def with_methods(df: DataFrame, methods: type[M], **attributes: object) -> M:
    """Adds the methods of a class to a DataFrame, of the classic session or of Spark Connect."""
    made: Any = df
    made.__class__ = _subclass(methods, type(df))  # type: ignore[arg-type]  # classes are hashable
    vars(made).update(attributes)
    return cast(M, made)


@lru_cache
def _subclass(methods: type, kind: type) -> type:
    return type(methods.__name__, (methods, kind), {})


def sql_conf(spark: SparkSession, name: str) -> str:
    """Returns the value of ``spark.sql.NAME``."""
    return cast(str, spark.conf.get(f"spark.sql.{name}"))


def row_type(schema: StructType | str) -> StructType:
    """Parses a schema of rows.

    Raises:
        UsageError: The schema is not a list of columns.
    """
    from pyspark.sql.types import DataType, StructType

    kind = DataType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(kind, StructType):
        raise _wrong(
            "the schema is not a list of columns", "Give it as 'user string, visits long'."
        )
    return kind


def arrow_schema(spark: SparkSession, kind: StructType) -> pa.Schema:
    """Returns the Arrow schema in which the session's Python functions exchange rows."""
    return as_arrow(kind, large=sql_conf(spark, "execution.arrow.useLargeVarTypes") == "true")


def as_arrow(kind: StructType, *, large: bool = False) -> pa.Schema:
    """Returns the Arrow schema of rows, in which Spark expects a function's output: times in UTC.

    Args:
        large: True if texts and binaries have 64-bit offsets.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    # Older minors support no other zone.
    known = inspect.signature(to_arrow_schema).parameters
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in known else {}
    return to_arrow_schema(kind, prefers_large_types=large, **zone)


def column_of(df: DataFrame, name: str) -> Column:
    """Returns a column by its name, which may contain dots."""
    return df["`" + name.replace("`", "``") + "`"]


def repartition_by_number(df: DataFrame, partitions: int, name: str) -> DataFrame:
    """Repartitions the rows of a DataFrame by a column with partition numbers.

    Args:
        name: A column of whole numbers from 0 up to, and not including, `partitions`.
    """
    if hasattr(df, "repartitionById"):
        return df.repartitionById(partitions, name)
    # Spark 4.0 hashes, so each partition number is replaced by a number whose hash leads to it.
    from pyspark.sql import functions as f

    led = f.array(*(f.lit(number) for number in _numbers_hashed_to(partitions)))
    return df.repartition(partitions, f.element_at(led, column_of(df, name).cast("int") + 1))


def _numbers_hashed_to(partitions: int) -> list[int]:
    """Returns for each partition the least number that Spark's hash partitioning assigns to it."""
    from redis_state.rows.murmur3 import SEED, hash_int

    found: dict[int, int] = {}
    for number in itertools.count():
        found.setdefault(((hash_int(number, SEED) ^ 1 << 31) - (1 << 31)) % partitions, number)
        if len(found) == partitions:
            return [found[at] for at in range(partitions)]
    raise AssertionError


def named_columns(df: DataFrame, given: str | Sequence[str], what: str) -> list[str]:
    """Returns the names of one or several columns, in the given order.

    Args:
        what: Name of the argument, for the error.

    Raises:
        UsageError: The DataFrame lacks a column.
    """
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in df.columns:
            near = difflib.get_close_matches(str(name), df.columns, n=1, cutoff=0.5)
            hint = f"Did you mean '{near[0]}'? " if near else ""
            raise _wrong(
                f"{what} names the column {name!r}, which the DataFrame does not have",
                f"{hint}Columns: {', '.join(df.columns)}.",
            )
    return names


def check_names(df: DataFrame, keys: Sequence[str], store: str) -> None:
    """Checks the store's name, that columns have different names, and the types of key columns.

    Raises:
        UsageError: Two columns have one name, or equal values of a key column may differ in bytes.
    """
    check_name(store, what="a store's name")
    twice = {name for name in df.columns if df.columns.count(name) > 1}
    if twice:
        raise _wrong(
            f"two columns are named {min(twice)!r}",
            "Rename one of them: columns are matched by name.",
        )
    check_key_types(df, keys)


def check_key_types(df: DataFrame, keys: Sequence[str], *, attempted: str = _MAKING) -> None:
    """Refuses key columns whose equal values may differ in bytes.

    Raises:
        UsageError: A key column is of such a type, or has a part of such a type.
    """
    for field in df.schema.fields:
        if field.name in keys:
            check_key(field.jsonValue(), f"the key column '{field.name}'", attempted=attempted)


def without_figures(advice: str) -> UsageError:
    """Returns the error for metrics in a session of Spark Connect."""
    return UsageError(
        "reading the metrics of a batch", found="Spark Connect has no accumulators", advice=advice
    )


def _wrong(found: str, advice: str) -> UsageError:
    return UsageError(_MAKING, found=found, advice=advice)
