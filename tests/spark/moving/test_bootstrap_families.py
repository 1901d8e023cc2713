"""Rows for every operator that takes some: the bytes are those that Spark's operator wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import redis_state
from redis_state.errors import ConfigError
from tests.spark.moving.test_rescale import Parts
from tests.spark.streams import FORMAT, Streams

pytestmark = pytest.mark.spark

SERVED = (
    "windows", "counts", "without a key", "deduplication", "within watermark", "sessions",
    "groups", "processor", "several",
)  # fmt: skip
REFUSED = {
    "inner join": "a join keeps the rows of both sides",
    "limit": "how its state is built is not documented",
}


@pytest.fixture(params=("1", "2"))
def checkpoint_format(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    before = spark.conf.get(FORMAT)
    spark.conf.set(FORMAT, request.param)
    yield
    spark.conf.set(FORMAT, before or "1")


def state_of(spark: SparkSession, at: str, wanted: redis_state.BootstrapColumns) -> DataFrame:
    """State as Spark's own reader finds it, under the wanted names."""
    reader = spark.read.format("statestore").option("operatorId", wanted.operator)
    if wanted.variable is None:
        found = reader.load(at)
        names = [name.strip().split(" ")[0] for name in split(wanted.columns or "")]
        inner = {
            name: f"{part}.`{name}`"
            for part in ("value", "key")
            for name in found.select(f"{part}.*").columns
        }
        return found.select(*(sf.col(inner[name]).alias(name) for name in names))
    options = {"stateVarName": wanted.variable, "flattenCollectionTypes": "false"}
    found = reader.options(**options).load(at)
    if "list_value" in found.columns:
        return found.select("key.*", sf.col("list_value.v").alias("values"))
    if "map_value" in found.columns:
        pairs = found.select("key", sf.explode("map_value").alias("userKey", "value"))
        return pairs.select("key", "userKey", "value.*")
    return found.select("key.*", "value.*")


def split(ddl: str) -> list[str]:
    """Splits DDL at the commas outside of types."""
    parts, depth = [""], 0
    for letter in ddl:
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def give(spark: SparkSession, streams: Streams, name: str, to_name: str) -> str:
    """All state in two calls, half of the keys and then the others beside it: the last folder."""
    there, half, to = (str(streams.checkpoint(one)) for one in (name, f"{to_name}-half", to_name))
    source = redis_state.migrate(spark, there, to, to="rocksdb", dry_run=True)
    digests = {store.operator: store.source for store in source.stores}
    wanted = redis_state.bootstrap_columns(spark, there)
    for operator in sorted({one.operator for one in wanted}):
        own = [one for one in wanted if one.operator == operator]
        frames = {one.variable or "": state_of(spark, there, one) for one in own}
        odd = sf.hash("*") % 2 != 0
        parts = [
            {name: frame.where(part) for name, frame in frames.items()} for part in (odd, ~odd)
        ]
        first, second = (part.get("", part) for part in parts)
        last = f"{to}-{operator}"
        redis_state.bootstrap(spark, first, there, f"{half}-{operator}", operator=operator)
        done = redis_state.bootstrap(
            spark, second, f"{half}-{operator}", last, operator=operator, mode="merge"
        )
        assert {store.operator: store.source for store in done.stores} == digests
        there = last
    return Path(there).name


@pytest.mark.long
@pytest.mark.usefixtures("checkpoint_format")
@pytest.mark.parametrize("family", SERVED)
def test_bootstrapped_rows_equal_the_operators_rows(
    streams: Streams, spark: SparkSession, family: str
) -> None:
    stays = Parts(Streams(spark, streams.folder / "stays"), family)
    for batches in (2, 1, 1):
        stays.run("stays", batches)
    gets = Parts(streams, family)
    gets.run("old", 2)
    new = give(spark, streams, "old", "new")
    gets.run(new, 1)
    gets.run(new, 1)
    assert gets.output == stays.output
    assert any(gets.output.values())


@pytest.mark.long
@pytest.mark.parametrize("family", REFUSED)
def test_operator_without_bootstrap_is_named(
    streams: Streams, spark: SparkSession, family: str
) -> None:
    query = Parts(streams, family)
    query.run("c", 1)
    at = str(streams.checkpoint("c"))
    assert all(one.refused for one in redis_state.bootstrap_columns(spark, at))
    with pytest.raises(ConfigError, match=f"takes no rows: {REFUSED[family]}"):
        redis_state.bootstrap(spark, spark.range(1), at, str(streams.checkpoint("new")))
    assert not streams.checkpoint("new").exists()
