"""A stream-stream join whose state is in Redis.

Every click comes a batch later than the advertisement that was clicked, so the join finds the
advertisement in its state. Clicks after more than an hour do not count.
Run it with `python examples/join.py`.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession

import redis_state

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
SHOWN = ("a,10:00\nb,10:05\n", "c,10:20\nd,10:30\n", "e,10:40\n")
CLICKED = ("", "a,10:07\nb,12:00\n", "d,10:31\n")
EXPECTED = ["a", "d"]  # b was clicked after two hours, c and e never

with ExitStack() as stack:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    url = os.environ.get("REDIS_STATE_URL") or stack.enter_context(redis_state.EmbeddedRedis()).url
    builder = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR")
    builder = builder.config("spark.ui.enabled", False).config("spark.sql.shuffle.partitions", 2)
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    spark = stack.enter_context(redis_state.configure(builder, url=url).getOrCreate())

    for name, batches in (("shown", SHOWN), ("clicked", CLICKED)):
        for number, text in enumerate(batches):
            path = folder / f"{name}-{number}.csv"
            path.write_text(text)
            os.utime(path, (number, number))  # Spark reads the oldest file first
        source = spark.readStream.schema(f"ad string, {name} timestamp")
        source = source.option("timestampFormat", "HH:mm").option("maxFilesPerTrigger", 1)
        stream = source.csv(f"{folder}/{name}-*.csv")
        stream.withWatermark(name, "1 hour").createTempView(name)
    in_time = "clicked BETWEEN shown AND shown + INTERVAL 1 HOUR"
    joined = spark.sql(f"SELECT ad FROM shown JOIN clicked USING (ad) WHERE {in_time}")
    writer = joined.writeStream.queryName("found").format("memory")
    writer.trigger(availableNow=True).start().awaitTermination()
    found = sorted(row["ad"] for row in spark.table("found").collect())
    print("clicked within an hour:", found)
    print("as it should be:", found == EXPECTED)
