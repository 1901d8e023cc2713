"""Sessions with timers: a `StatefulProcessor` of PySpark with its state in the Python worker.

Sessions end ten minutes after the last visit. Run it with `python examples/processor_sessions.py`.
"""

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import redis_state

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
VISITS = ("ann,10:00\nbob,10:02\nann,10:05", "ann,10:09\ndan,11:00", "cid,12:00", "cid,12:03")


class Sessions(StatefulProcessor):
    def init(self, handle):
        self.handle, self.visits = handle, handle.getValueState("visits", "n long")

    def handleInputRows(self, key, rows, timerValues):
        frame = pd.concat(rows)
        self.visits.update((len(frame) + (self.visits.get() or (0,))[0],))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(int(frame["at"].max().timestamp() * 1000) + 600_000)
        return ()

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield pd.DataFrame({"user": [key[0]], "visits": [self.visits.get()[0]]})
        self.visits.clear()


with ExitStack() as stack:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    url = os.environ.get("REDIS_STATE_URL") or stack.enter_context(redis_state.EmbeddedRedis()).url
    builder = SparkSession.builder.master("local[2]").config("spark.log.level", "ERROR")
    builder = builder.config("spark.ui.enabled", False).config("spark.sql.shuffle.partitions", 2)
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    spark = stack.enter_context(builder.getOrCreate())
    source = spark.readStream.schema("user string, at timestamp").option("maxFilesPerTrigger", 1)
    rows = source.csv(f"{folder}/*.csv", timestampFormat="HH:mm").withWatermark("at", "5 minutes")
    for number, text in enumerate(VISITS):
        (folder / f"{number}.csv").write_text(text)
        os.utime(folder / f"{number}.csv", (number, number))  # Spark reads the oldest file first
    sessions = redis_state.transform_with_state(
        rows, Sessions(), store=folder.name, key="user", schema="user string, visits long", url=url,
        time_mode="EventTime", ephemeral=True)  # fmt: skip
    writer = sessions.writeStream.format("memory").queryName("sessions")
    writer.trigger(availableNow=True).start().awaitTermination()
    print("closed:", sorted(map(tuple, spark.table("sessions").collect())))
    with redis_state.connect(url) as reader:
        print("open, in Redis:", reader.query(folder.name).operator(0, family="visits").get("cid"))
