"""The state of a pandas function as a Python object, kept in Redis.

Spark calls `follow` for each user of a batch. The state of a user is a `Session`, which any process
reads from Redis as that object. Run it with `python examples/pandas_with_state.py`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession

import redis_state

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
VISITS = ("ann,/\nbob,/\n", "ann,/cart\n", "ann,/pay\nbob,/help\n")
EXPECTED = {"ann": ["/", "/cart", "/pay"], "bob": ["/", "/help"]}


@dataclass
class Session:
    pages: list[str] = field(default_factory=list)


def follow(key, frames, state):
    session = state.getOption or Session()
    session.pages += [page for frame in frames for page in frame["page"]]
    state.update(session)
    yield pd.DataFrame({"user": [key[0]], "visits": [len(session.pages)]})


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
    source = spark.readStream.schema("user string, page string").option("maxFilesPerTrigger", 1)
    users = source.csv(f"{folder}/*.csv").groupBy("user")
    output = {"output_schema": "user string, visits long", "output_mode": "update"}
    counts = redis_state.apply_in_pandas_with_state(users, follow, state=Session, **output)
    writer = counts.writeStream.queryName("visits").outputMode("update").format("noop")
    writer.trigger(availableNow=True).start().awaitTermination()
    with redis_state.connect(url) as reader:
        sessions = redis_state.state_objects(reader.query("visits").operator(0), Session)
        found = {key["user"]: one.pages for key, one in sessions.items(version=len(VISITS))}
        print("ann:", sessions.get({"user": "ann"}, version=len(VISITS)))
    print("every page of every user:", found == EXPECTED)
