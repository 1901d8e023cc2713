"""A streaming aggregation with its state in a real Redis container, restart included."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import redis_state
from tests.support.redis_container import RedisContainer

pytestmark = [pytest.mark.docker, pytest.mark.spark]


@pytest.fixture
def spark(redis_container: RedisContainer, tmp_path: Path) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.Builder()
        .master("local[2]")
        .appName("redis-state container test")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(tmp_path / "warehouse"))
    )
    session = redis_state.configure(builder, url=redis_container.url).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def test_aggregation_continues_after_a_restart(
    spark: SparkSession, redis_container: RedisContainer, tmp_path: Path
) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    expected: Counter[str] = Counter()
    output: dict[int, dict[str, int]] = {}

    def feed(batch: int) -> None:
        keys = [f"k{(batch * 7 + i) % 11}" for i in range(20)]
        expected.update(keys)
        path = folder / f"{batch:05d}.json"
        path.write_text("".join(json.dumps({"k": key}) + "\n" for key in keys))
        os.utime(path, (1_000_000_000 + batch,) * 2)

    def keep(batch: DataFrame, batch_id: int) -> None:
        output[batch_id] = {row["k"]: row["count"] for row in batch.collect()}

    def run() -> None:
        reader = spark.readStream.schema("k string").option("maxFilesPerTrigger", 1)
        query = (
            reader.json(str(folder))
            .groupBy("k")
            .count()
            .writeStream.outputMode("complete")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(keep)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for batches in (range(3), range(3, 6)):
        for batch in batches:
            feed(batch)
        run()
        assert output[batches[-1]] == expected
    assert sorted(output) == list(range(6))
    with redis_container.client() as client:
        assert int(client.info("commandstats")["cmdstat_exec"]["calls"]) >= 6 * 2
