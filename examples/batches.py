"""A stateful function in `foreachBatch`: no jar, and no stateful operator of Spark.

Counts visits by user. The sink fails once, in the last batch, after the state was written. Then the
query is started again, and every visit counts once. Run it with `python examples/batches.py`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import redis_state

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
VISITS = ("ann\nbob\n", "ann\n", "ann\nbob\n")
written, failures = dict[int, dict[str, int]](), [OSError("the sink is away")]


def count(store, rows):
    for row in rows:
        store.put(row["user"], (store.get(row["user"]) or 0) + 1)
        yield {"user": row["user"], "visits": store.get(row["user"])}


def write(counted, batch_id):
    written[batch_id] = {row["user"]: row["visits"] for row in counted.collect()}
    if batch_id == 2 and failures:
        raise failures.pop()


with ExitStack() as stack:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    url = os.environ.get("REDIS_STATE_URL") or stack.enter_context(redis_state.EmbeddedRedis()).url
    builder = SparkSession.builder.master("local[2]").config("spark.log.level", "OFF")
    builder = builder.config("spark.ui.enabled", False).config("spark.sql.shuffle.partitions", 2)
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    spark = stack.enter_context(builder.getOrCreate())
    for number, text in enumerate(VISITS):
        (folder / f"{number}.csv").write_text(text)
        os.utime(folder / f"{number}.csv", (number, number))  # Spark reads the oldest file first
    source = spark.readStream.schema("user string").option("maxFilesPerTrigger", 1)
    writer = source.csv(f"{folder}/*.csv").writeStream.trigger(availableNow=True)
    name, schema = f"visits {folder.name}", "user string, visits long"
    batch = redis_state.foreach_batch_with_state_store(
        count, write, store=name, key="user", schema=schema, url=url, ephemeral=True
    )  # ephemeral state expires by itself after its last use
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").foreachBatch(batch)
    with suppress(StreamingQueryException):
        writer.start().awaitTermination()
    print("the sink has failed:", not failures)
    writer.start().awaitTermination()
    print("visits:", written)
    print("each counted once:", written[2] == {"ann": 3, "bob": 2})
