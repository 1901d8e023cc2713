"""A streaming aggregation whose state is in Redis.

Counts orders by country in three batches, reads one count from Redis by its key, and compares all
counts with a plain computation. Run it with `python examples/aggregation.py`.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

import redis_state

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
ORDERS = ("de\nfr\nde\n", "it\nfr\nde\n", "es\nde\nit\n")
EXPECTED = Counter("".join(ORDERS).split())

with ExitStack() as stack:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    url = os.environ.get("REDIS_STATE_URL") or stack.enter_context(redis_state.EmbeddedRedis()).url
    builder = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR")
    builder = builder.config("spark.ui.enabled", False).config("spark.sql.shuffle.partitions", 2)
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    spark = stack.enter_context(redis_state.configure(builder, url=url).getOrCreate())

    for number, text in enumerate(ORDERS):
        (folder / f"{number}.csv").write_text(text)
    source = spark.readStream.schema("country string").option("maxFilesPerTrigger", 1)
    counts = source.csv(f"{folder}/*.csv").groupBy("country").count()
    writer = counts.writeStream.queryName("orders").outputMode("complete").format("memory")
    writer.trigger(availableNow=True).start().awaitTermination()

    # Any process can do this, even while the query runs. Three batches make version 3.
    with redis_state.connect(url) as reader:
        state = reader.query("orders").operator(0)
        print("key 'de' in Redis:", state.get({"country": "de"}, version=len(ORDERS)))
    found = {row["country"]: row["count"] for row in spark.table("orders").collect()}
    print("all countries:", dict(sorted(found.items())))
    print("equal to a plain computation:", found == EXPECTED)
