"""A batch of a query that runs again with changed code, beside the query.

Sums orders by customer in three batches. Then the last batch runs again on a fork of the state
before it, with code that halves large orders; the keys that come out otherwise are printed. Run it
with `python examples/replay_batch.py`.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import redis_state
from redis_state.testing import replay

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
ORDERS = ("ann,10\nbob,20\n", "bob,30\n", "ann,5\nbob,100\ncy,7\n")


def totals(spark, price):
    source = spark.readStream.schema("customer string, amount long").option("maxFilesPerTrigger", 1)
    rows = source.csv(f"{folder}/*.csv").withColumn("amount", price(sf.col("amount")))
    return rows.groupBy("customer").agg(sf.sum("amount").alias("total")).writeStream


def changed(spark, _):
    # Of the same type as before: Spark keeps a state to its columns.
    half = (sf.col("amount") / 2).cast("long")
    query = totals(spark, lambda amount: sf.when(amount > 50, half).otherwise(amount))
    return query.outputMode("update")


with ExitStack() as stack:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    url = os.environ.get("REDIS_STATE_URL") or stack.enter_context(redis_state.EmbeddedRedis()).url
    builder = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR")
    builder = builder.config("spark.ui.enabled", False).config("spark.sql.shuffle.partitions", 2)
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    spark = stack.enter_context(redis_state.configure(builder, url=url).getOrCreate())

    for number, text in enumerate(ORDERS):
        (folder / f"{number}.csv").write_text(text)
        os.utime(folder / f"{number}.csv", (1_700_000_000 + number,) * 2)
    writer = totals(spark, lambda amount: amount).outputMode("complete").format("noop")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    writer.start().awaitTermination()

    with replay(spark, changed, batch=2, checkpoint=f"{folder}/checkpoint", url=url) as run:
        print("rows of the batch:", run.input_rows)
        for one in run.state.keys:
            print(one.key["customer"], "production:", one.produced, "replay:", one.replayed)
        print("only the large order differs:", len(run.state.keys) == 1)
