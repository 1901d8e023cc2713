"""Rows of a DataFrame become the state of a query, which goes on from them."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import redis_state
from redis_state.errors import ConfigError, RedisStateError
from redis_state.files import folder_at
from redis_state.recovery.marker import gen_of
from tests.spark.moving.test_moving import undone
from tests.spark.streams import Output, Streams
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

COLUMNS = "k STRING,sum BIGINT,sum.2 DOUBLE,count BIGINT"


class Totals:
    """A query of sums, with a checkpoint for each part of its life."""

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.spark = streams.spark
        self.input = streams.input("in", "k string, v long, w double")

    def run(self, name: str, rows: list[tuple[str, int, float]], where: str = "true") -> list[str]:
        self.input.add([dict(zip("kvw", row, strict=True)) for row in rows])
        grouped = self.input.stream(self.spark).where(where).groupBy("k")
        frame = grouped.agg(sf.sum("v"), sf.sum("w"), sf.count("*"))
        output: Output = {}
        self.streams.run(frame, name, output=output)
        return output[max(output)]

    def rows(self, rows: list[Any], schema: str = "k string, s int, w float, n int") -> DataFrame:
        frame = self.spark.createDataFrame(rows, schema)
        return frame.withColumnsRenamed({"s": "sum", "w": "sum.2", "n": "count"})

    def give(self, rows: Any, name: str, to_name: str, **given: Any) -> redis_state.Migration:
        there, to = (str(self.streams.checkpoint(one)) for one in (name, to_name))
        return redis_state.bootstrap(self.spark, rows, there, to, **given)


def refused_frames(query: Totals) -> list[tuple[Any, dict[str, Any], str]]:
    good = query.rows([("a", 1, 1.0, 1)])
    twice = query.rows([("a", 1, 1.0, 1), ("b", 1, 1.0, 1), ("a", 2, 1.0, 1)])
    text = good.withColumn("sum", sf.lit("1"))
    rounded = good.withColumn("sum.2", sf.lit(1).cast("bigint"))
    number = good.withColumn("k", sf.lit(1))
    stream = query.input.stream(query.spark)
    return [
        (good.drop("sum"), {}, r"'sum' missing. The rows need the columns: k STRING,sum BIGINT"),
        (good.withColumn("x", sf.lit(1)), {}, "'x' not of the state"),
        (good.select("*", "k"), {}, "'k' given twice"),
        (text, {}, "'sum' is STRING, which is not safely BIGINT"),
        (rounded, {}, r"'sum\.2' is BIGINT, which is not safely DOUBLE"),
        (number, {}, "'k' is INT, which is not safely STRING"),
        (twice, {}, r"two rows have the same key. Find them by groupBy\('k'\)"),
        (good, {"operator": 3}, r"it has no operator 3. It has: 0 \(stateStoreSave\)"),
        ({"total": good}, {}, "has no state variables. Give a single DataFrame"),
        ({}, {}, "has no state variables"),
        (good, {"mode": "append"}, "Give one of: replace, merge"),
        (stream, {}, "the DataFrame is a stream"),
    ]


def test_a_new_query_begins_with_rows_and_is_repaired(
    streams: Streams, shared_redis_server: RedisServer
) -> None:
    query = Totals(streams)
    query.run("empty", [("a", 5, 5.0)], where="false")
    (columns,) = redis_state.bootstrap_columns(streams.spark, str(streams.checkpoint("empty")))
    assert columns.columns is not None
    assert columns.columns.replace("`", "") == COLUMNS
    rows = query.rows([(f"k{n}", n, n / 2, 1) for n in range(40)] + [(None, 7, None, 1)])
    looked = query.give(rows, "empty", "begun", dry_run=True)
    assert not streams.checkpoint("begun").exists()
    done = query.give(rows.repartition(3), "empty", "begun")
    assert (looked.rows, done.rows) == (41, 41)
    assert looked.stores[0].source == done.stores[0].source == done.stores[0].target
    first = query.run("begun", [("k3", 10, 1.0), ("new", 1, 1.0)])
    assert [row.replace("(*)", "(1)") for row in first] == [
        "Row(k='k3', sum(v)=13, sum(w)=2.5, count(1)=2)",
        "Row(k='new', sum(v)=1, sum(w)=1.0, count(1)=1)",
    ]

    # A repair: one key is set right, one comes new, the others stay.
    fixed = query.rows([("k3", -1, 0.0, 9), ("late", 2, 2.0, 1)])
    query.give(fixed, "begun", "fixed", mode="merge")
    keys = [("k3", 1, 1.0), ("k4", 1, 1.0), ("late", 1, 1.0), ("new", 1, 1.0)]
    assert [row.split("sum(v)=")[1].split(",")[0] for row in query.run("fixed", keys)] == [
        "0", "5", "3", "2",
    ]  # fmt: skip

    for frame, given, found in refused_frames(query):
        with pytest.raises(ConfigError, match=found):
            query.give(frame, "fixed", "refused", **given)
        assert not streams.checkpoint("refused").exists()

    # State that is lost cannot be read, and is not when it is replaced.
    client = shared_redis_server.client()
    gen = gen_of(folder_at(str(streams.checkpoint("fixed"))))
    for key in client.scan_iter(match=f"*{gen}*".encode(), count=1000):
        client.delete(key)
    with pytest.raises(RedisStateError, match=r"cannot open it|lost|no longer"):
        query.give(rows, "fixed", "merged", mode="merge")
    query.give(rows, "fixed", "found")
    (row,) = query.run("found", [("k3", 10, 1.0)])
    assert "sum(v)=13" in row


def test_interrupted_bootstrap_resumes_with_the_same_rows_only(streams: Streams) -> None:
    query = Totals(streams)
    query.run("old", [("a", 5, 5.0)])
    rows, others = query.rows([("a", 1, 1.0, 1)]), query.rows([("a", 2, 1.0, 1)])
    done = query.give(rows, "old", "new")
    new = streams.checkpoint("new")
    digest = done.stores[0].source
    record = (
        f'{{"from":"file:{streams.checkpoint("old")}","batch":0,"to":"{done.target}",'
        f'"given":{{"operator":0,"variables":[""],"merges":false,"digest":"{digest}"}}}}'
    )
    undone(new, record, ("offsets", "commits"))
    with pytest.raises(ConfigError, match="a move of another checkpoint, batch or target"):
        query.give(others, "old", "new")
    with pytest.raises(ConfigError, match="a move of another checkpoint, batch or target"):
        query.give(rows, "old", "new", mode="merge")
    assert query.give(rows, "old", "new").stores[0].target == digest
    assert "sum(v)=6" in query.run("new", [("a", 5, 5.0)])[0]
