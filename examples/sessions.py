"""Session windows whose state is in Redis.

Visits of a user with less than ten minutes between them are a session. Spark outputs the sessions
that the watermark closed; the open session is read from Redis.
Run it with `python examples/sessions.py`.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import redis_state

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
VISITS = ("ann,10:00\nbob,10:02\nann,10:05\n", "ann,10:09\nbob,11:00\n", "cid,12:00\n")
EXPECTED = [("ann", "10:00", 3), ("bob", "10:02", 1), ("bob", "11:00", 1)]

with ExitStack() as stack:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    url = os.environ.get("REDIS_STATE_URL") or stack.enter_context(redis_state.EmbeddedRedis()).url
    builder = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR")
    builder = builder.config("spark.ui.enabled", False).config("spark.sql.shuffle.partitions", 2)
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    spark = stack.enter_context(redis_state.configure(builder, url=url).getOrCreate())

    for number, text in enumerate(VISITS):
        (folder / f"{number}.csv").write_text(text)
        os.utime(folder / f"{number}.csv", (number, number))  # Spark reads the oldest file first
    source = spark.readStream.schema("user string, at timestamp").option("maxFilesPerTrigger", 1)
    visits = source.option("timestampFormat", "HH:mm").csv(f"{folder}/*.csv")
    window = f.session_window("at", "10 minutes").alias("session")
    sessions = visits.withWatermark("at", "5 minutes").groupBy("user", window).count()
    shown = sessions.select("user", f.date_format("session.start", "HH:mm"), "count")
    writer = shown.writeStream.queryName("sessions").format("memory")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()

    closed = sorted(map(tuple, spark.table("sessions").collect()))
    print("closed:", closed)
    print("as it should be:", closed == EXPECTED)
    assert query.lastProgress is not None
    with redis_state.connect(url) as reader:
        rows = reader.query("sessions").operator(0).items(query.lastProgress["batchId"] + 1)
        print("open, in Redis:", [(key["user"], value["count"]) for key, value in rows])
