"""The way in through Spark's operators: many schemas as columns of a few operators of one query."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from tests.spark.fuzz_values.literals import literal, written
from tests.spark.fuzz_values.schemas import Case, Kind, fields
from tests.spark.fuzz_values.texts import settled
from tests.spark.fuzz_values.values import rows_of
from tests.spark.streams import REDIS, ROCKSDB, Input, Streams

ROWS = 12
COLUMNS = 9
INDEX = "k int, v int"
BATCHES = [
    [{"k": at, "v": at} for at in range(ROWS)],
    [{"k": at, "v": (at + 1) % ROWS} for at in range(0, ROWS, 2)],
    [{"k": at, "v": (at + 5) % ROWS} for at in range(0, ROWS, 3)],
]
"""For each batch which key gets which value."""

_SHAPES = ("aggregate", "join", "deduplicate")
_CONFS = {
    "spark.sql.timeType.enabled": "true",
    "spark.sql.timestampNanosTypes.enabled": "true",
    "spark.sql.geospatial.enabled": "true",
    # Several aggregations stand side by side here, not one behind the other.
    "spark.sql.streaming.unsupportedOperationCheck": "false",
    # A column of each schema: it takes longer to compile their code than to run without.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_NAMES = {
    "byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint",
    "interval": "calendar", "string": "string", "variant": "variant", "void": "void",
}  # fmt: skip


@contextmanager
def every_type(spark: SparkSession) -> Iterator[None]:
    """Allows the types that Spark has behind a conf."""
    before = {name: spark.conf.get(name, None) for name in _CONFS}
    for name, value in _CONFS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def table(spark: SparkSession, columns: Mapping[str, tuple[Kind, Sequence[Any]]]) -> DataFrame:
    """Rows of literals, evaluated once, behind a column `i` that counts them.

    Args:
        columns: Types and values by their names.
    """
    lines = (
        ", ".join([str(at), *(literal(kind, rows[at]) for kind, rows in columns.values())])
        for at in range(ROWS)
    )
    text = ", ".join(f"({line})" for line in lines)
    return spark.sql(f"SELECT * FROM VALUES {text} AS t(i, {', '.join(columns)})").localCheckpoint()


class Trial:
    """A query over the schemas of some cases, which runs on both providers."""

    def __init__(self, streams: Streams, cases: Sequence[Case]) -> None:
        self.streams = streams
        self.spark = streams.spark
        self.cases = cases
        self.groups = [cases[at : at + COLUMNS] for at in range(0, len(cases), COLUMNS)]
        keys = {f"k{at}": (one.key, f"{one.seed} key") for at, one in enumerate(cases)}
        values = {f"v{at}": (one.value, one.seed) for at, one in enumerate(cases)}
        self._table = table(
            self.spark,
            {
                name: (kind, rows_of(kind, seed, ROWS))
                for name, (kind, seed) in {**keys, **values}.items()
            },
        )
        self.ids: dict[str, str] = {}

    def run(self, batches: int = len(BATCHES)) -> None:
        """Run the query from its start on Spark's provider and on ours."""
        for provider in (ROCKSDB, REDIS):
            source = self.streams.input(label(provider), INDEX)
            for batch in BATCHES[:batches]:
                source.add(batch)
            frame = self._frame(source)
            query = self.streams.run(frame, label(provider), mode="update", provider=provider)
            self.ids[provider] = str(query.id)

    def checkpoint(self, provider: str) -> str:
        """The folder of one of the two."""
        return str(self.streams.checkpoint(label(provider)))

    def shape(self, at: int) -> str:
        """Shape of the query, which decides the operator for a group of cases."""
        return _SHAPES[(at + self.cases[0].seed) % len(_SHAPES)]

    def _frame(self, source: Input) -> DataFrame:
        frames = [self._operator(at, source) for at in range(len(self.groups))]
        return reduce(DataFrame.unionAll, frames)

    def _operator(self, at: int, source: Input) -> DataFrame:
        numbers = range(at * COLUMNS, at * COLUMNS + len(self.groups[at]))
        named = [f"k{number}" for number in numbers]
        valued = [f"v{number}" for number in numbers]
        # Spark groups by maps, and neither joins nor deduplicates by them.
        whole = [f"k{number}" for number in numbers if not self.cases[number].key.has("map")]
        keys = self._table.select(sf.col("i").alias("k"), *named)
        rows = source.stream(self.spark).join(sf.broadcast(keys), "k")
        if self.shape(at) == "deduplicate":
            return rows.dropDuplicates(whole or ["k"]).select(_told(at))
        values = self._table.select(sf.col("i").alias("v"), *valued)
        both = rows.join(sf.broadcast(values), "v")
        if self.shape(at) == "aggregate":
            last = [sf.last(name).alias(name) for name in valued]
            return both.groupBy("k", *named).agg(*last).select(_told(at, *valued))
        # A null is equal to nothing, so a join goes by one of the columns only.
        near = ["k", *[name for name in whole if not self._void(name)][:1]]
        others = rows.where("v < 3").select(*near).alias("b")
        same = [sf.col(f"a.{name}") == sf.col(f"b.{name}") for name in near]
        found = both.alias("a").join(others, reduce(operator.and_, same))
        return found.select(_told(at, *(f"a.{name}" for name in (*named, *valued))))

    def _void(self, name: str) -> bool:
        return self.cases[int(name[1:])].key.has("void")


def _told(at: int, *columns: str) -> Column:
    """Marks the operator of a row; Spark keeps no column in the state that the output ignores."""
    nulls = (sf.isnull(sf.col(name)).cast("string") for name in columns)
    return sf.concat_ws(" ", sf.lit(str(at)), *nulls).alias("told")


def label(provider: str) -> str:
    """The name of a provider's checkpoint and input."""
    return provider.rsplit(".", 1)[-1]


def kind_of(node: Any) -> Kind:
    """A type from Spark's JSON; the fields of a struct are called f0, f1 and so on."""
    if isinstance(node, dict):
        match node["type"]:
            case "struct":
                return Kind("struct", tuple(kind_of(one["type"]) for one in node["fields"]))
            case "array":
                return Kind("array", (kind_of(node["elementType"]),))
            case _:
                return Kind("map", (kind_of(node["keyType"]), kind_of(node["valueType"])))
    name, _, rest = node.partition("(")
    if name in ("decimal", "time"):
        return Kind(name, sizes=tuple(map(int, rest[:-1].split(","))))
    if name in ("geometry", "geography"):
        return Kind(name, sizes=(4326,))
    if name.startswith("timestamp") and rest:
        which = "nanos_ntz" if "ntz" in name else "nanos"
        return Kind(which, sizes=(int(rest[:-1]),))
    if name.startswith("interval ") or name == "interval":
        months = "year" in name or "month" in name
        return Kind("calendar" if name == "interval" else "year-month" if months else "day-time")
    if name.startswith("string"):
        return Kind("string")
    return Kind(_NAMES.get(name, name))


def rows_in(frame: DataFrame, *structs: str) -> list[tuple[tuple[str, ...], ...]]:
    """The rows of a DataFrame, each as texts of the columns of some of its structs, sorted."""
    columns = []
    for name in structs:
        kind = _of_column(frame, name)
        # Spark gives two buffers of one function the same name.
        renamed = ", ".join(
            f"{new}: {part.ddl}" for new, part in zip(fields(kind), kind.parts, strict=True)
        )
        parts = [
            written(part, f"CAST({name} AS STRUCT<{renamed}>).{field}")
            for field, part in zip(fields(kind), kind.parts, strict=True)
        ]
        columns.append(f"array({', '.join(parts)})")
    found = frame.selectExpr(*columns).collect()
    return sorted(tuple(tuple(map(settled, texts)) for texts in row) for row in found)


def kinds_in(frame: DataFrame, *structs: str) -> list[Kind]:
    """The types of the columns of some of a DataFrame's structs, one behind the other."""
    return [part for name in structs for part in _of_column(frame, name).parts]


def kinds_of(frame: DataFrame) -> list[Kind]:
    """The types of a DataFrame's columns."""
    return [kind_of(one["type"]) for one in _columns(frame)]


def _of_column(frame: DataFrame, name: str) -> Kind:
    return next(kind_of(one["type"]) for one in _columns(frame) if one["name"] == name)


def _columns(frame: DataFrame) -> list[dict[str, Any]]:
    # PySpark's own parser of types does not know all that the JVM has.
    found: list[dict[str, Any]] = json.loads(frame._jdf.schema().json())["fields"]
    return found
