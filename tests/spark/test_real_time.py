"""Real-time mode: which Spark runs a stateful query in it, and on which provider."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.real_time import MemoryStream
from tests.spark.real_time_job import ROUNDS
from tests.spark.streams import PREFIX, PROVIDER, REDIS
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 240  # for a machine that is busy with other work
NONE = "it has no real-time mode"
NONE_IN_PYTHON = "its Python has no real-time mode"
NO_STATE = "its real-time mode takes no stateful operator"
NO_TRIGGER = "unexpected keyword argument 'realTime'"
ALLOWLIST = "OPERATOR_OR_SINK_NOT_IN_ALLOWLIST"
REFUSED = "takes no stateful query"


@pytest.mark.application
@pytest.mark.compatibility(
    "real-time mode",
    "of a new query, with the option `realTime`",
    refused={
        "4.0": (REFUSED, NONE),
        "4.1": (REFUSED, NONE_IN_PYTHON),
        "4.2": (REFUSED, NO_STATE),
    },
)
def test_query_starts_and_continues_in_real_time_mode(
    shared_redis_server: RedisServer, tmp_path: Path
) -> None:
    settings = {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.real_time_job", str(tmp_path), shared_redis_server.url],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **settings},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [run["counts"] for run in found] == [expected for _, expected in ROUNDS]
    assert all("redisStateRowsWritten" in run["metrics"] for run in found)


@pytest.mark.compatibility(
    "real-time mode",
    "of a new query, where the session names the provider",
    refused={
        "4.0": (NO_TRIGGER, NONE),
        "4.1": (NO_TRIGGER, NONE_IN_PYTHON),
        "4.2": (ALLOWLIST, NO_STATE),
        "4.3": ("providerClass must be", "set `realTime` instead"),
    },
)
def test_new_query_with_a_named_provider_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set(PROVIDER, REDIS)
    # Older ones lack the trigger; the stream below would hide that.
    rate: Any = spark.readStream.format("rate").load().writeStream  # its stub lacks real time
    rate.trigger(realTime="5 seconds")
    writer: Any = MemoryStream(spark).frame.groupBy("value").count().writeStream
    query = (
        writer.outputMode("update")
        .format("console")
        .option("checkpointLocation", str(tmp_path))
        .trigger(realTime="5 seconds")
        .start()
    )
    query.processAllAvailable()


def test_wrong_option_ends_a_query_instead_of_leaving_redis(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.unset(PROVIDER)
    spark.conf.set(f"{PREFIX}realTime", "perhaps")
    try:
        rows = spark.readStream.format("rate").load().groupBy("value").count()
        writer = rows.writeStream.outputMode("update").format("noop")
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        with pytest.raises(StreamingQueryException, match=r"REDIS_CONFIG.*realTime"):
            writer.start().awaitTermination()
    finally:
        spark.conf.unset(f"{PREFIX}realTime")
        spark.conf.set(PROVIDER, REDIS)
