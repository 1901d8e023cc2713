"""The examples of docs/pandas-with-state.md, run as they stand."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import redis_state
from redis_state.errors import ConfigError
from tests.spark.streams import HDFS, PROVIDER, REDIS, Output, Streams
from tests.support.pages import fenced
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pandas-with-state.md"
URL = "redis://localhost:6379/0"
VISITS = [
    [{"user": "ann", "page": "/", "at": "2024-01-01T10:00:00.000Z"}] * 2,
    [{"user": "bob", "page": "/", "at": "2024-01-01T12:00:00.000Z"}],
]
blocks = partial(fenced, PAGE)


def test_the_examples_run(
    streams: Streams,
    spark: SparkSession,
    shared_redis_server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spark.conf.set(PROVIDER, REDIS)
    folder = tmp_path / "visits"
    folder.mkdir()
    for number, rows in enumerate(VISITS):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{number}.json").write_text(text)
    codes = [
        code.replace(URL, shared_redis_server.url).replace('"visits")', f'"{folder}")')
        for code in blocks("python")
    ]
    # The functions belong to a script, so they travel to the workers by value.
    scope: dict[str, Any] = {"__name__": "__main__"}
    with pytest.warns(RuntimeWarning, match="while a Spark session runs"):
        exec(codes[0], scope)
    for code in codes[1:3]:
        exec(code, scope)
    outputs: dict[str, Output] = {}
    for name in ("native", "wrapped"):
        outputs[name] = {}
        spark.conf.set("spark.sql.streaming.stateStore.redis.url", shared_redis_server.url)
        started = streams.run(scope[name], name, output=outputs[name])
        scope["id"] = str(started.id)
    assert outputs["wrapped"] == outputs["native"]
    assert "visits=2, open=False" in str(outputs["native"])
    for code in codes[3:5]:
        exec(code, scope)
    capsys.readouterr()
    # The page reads amid the query; its last batch closes the sessions.
    reading = codes[5].replace('"sessions"', f'"{scope["id"]}"')
    reading = reading.replace('"ann"})', '"ann"}, version=1)')
    reading = reading.replace("items()", "items(version=1)")
    exec(reading, scope)
    assert capsys.readouterr().out == blocks("text")[0]


def test_error_equals_the_page(spark: SparkSession) -> None:
    spark.conf.set(PROVIDER, HDFS)
    frame = spark.createDataFrame([("a",)], "user string")
    with pytest.raises(ConfigError):
        redis_state.apply_in_pandas_with_state(
            frame.groupBy("user"),
            lambda *_: iter(()),
            "user string",
            state=int,
            output_mode="update",
        )
