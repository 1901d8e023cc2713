"""The examples of docs/rescale.md, run as they stand."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import redis_state
from redis_state.cli.main import main
from redis_state.spark.partition_task import BatchStore
from tests.spark.streams import PREFIX, Streams
from tests.support.pages import fenced
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

PAGE = Path(__file__).resolve().parents[3] / "docs" / "rescale.md"
URL = "redis://localhost:6379/0"
blocks = partial(fenced, PAGE)


def counting() -> Any:
    """A closure travels by value."""

    def count(store: BatchStore, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            key = row["user"], "visits"
            store.put(key, (store.get(key) or 0) + 1)
            yield {"user": row["user"], "visits": store.get(key)}

    return count


def test_the_examples_run(
    streams: Streams,
    spark: SparkSession,
    redis_server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = streams.input("visits", "user string")
    source.add([{"user": f"user {number}"} for number in range(200)])
    url = redis_server.url

    def keep(frame: DataFrame, number: int) -> None:
        mapped = redis_state.map_partitions_with_state_store(
            frame, counting(), store=name, batch_id=number, key="user",
            schema="user string, visits long", url=url,
        )  # fmt: skip
        mapped.collect()

    for name in ("visits", "pages"):
        query = (
            source.stream(spark)
            .writeStream.option("checkpointLocation", str(tmp_path / name))
            .foreachBatch(keep)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    streams.run(source.stream(spark).groupBy("user").count(), "flights")
    builder = SparkSession.Builder()
    scope = {"redis_state": redis_state, "spark": spark, "url": url, "builder": builder}
    for text in blocks("python"):
        folder = streams.checkpoint("flights")
        with warnings.catch_warnings():
            # On the page nothing runs yet when it calls `configure`.
            warnings.simplefilter("ignore", RuntimeWarning)
            exec(text.replace('"/data/flights', f'"{folder}').replace(URL, url), scope)
    assert builder._options[f"{PREFIX}rescaleTo"] == "8"
    (commands,) = blocks("console")
    for line in commands.splitlines():
        assert main(shlex.split(line.removeprefix("$ redis-state ").replace(URL, url))) == 0
    out = capsys.readouterr().out
    assert "200 rows after batch 0" in out
    assert "200 rows after batch 0 would go from 8 partitions to 4" in out
