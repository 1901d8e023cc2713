"""`transformWithState` in a session that lacks the extension: the log names the conf to add."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.application]

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240
JOB = """
import sys

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import redis_state


class Count(StatefulProcessor):
    def init(self, handle):
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key, rows, timerValues):
        self.total.update((sum(len(frame) for frame in rows),))
        yield pd.DataFrame({"k": [key[0]]})


url, folder = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = redis_state.configure(builder, url=url).config("spark.sql.extensions", "")
builder = builder.config("spark.sql.shuffle.partitions", "1")
spark = builder.getOrCreate()
stream = spark.readStream.schema("k string").json(folder + "/input")
counted = stream.groupBy("k").transformWithStateInPandas(
    Count(), outputStructType="k string", outputMode="update", timeMode="none"
)
query = counted.writeStream.format("noop").outputMode("update")
query = query.option("checkpointLocation", folder + "/checkpoint").start()
try:
    query.awaitTermination(120)
finally:
    spark.stop()
"""


def test_missing_extension_is_logged_with_its_conf(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "a.json").write_text(json.dumps({"k": "a"}))
    settings = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    settings["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", JOB, redis_server.url, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode != 0
    conf = "spark.sql.extensions=org.apache.spark.sql.redisstate.RedisStateSparkExtension"
    assert conf in done.stderr, done.stderr[-4000:]
