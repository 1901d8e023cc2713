"""The examples of docs/map-partitions.md, run as they stand."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.streams import Streams
from tests.support.pages import fenced
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

PAGE = Path(__file__).resolve().parents[2] / "docs" / "map-partitions.md"
GEN = "0123456789abcdef0123456789abcdef"
URL = "redis://localhost:6379/0"
blocks = partial(fenced, PAGE)


def test_the_examples_run(
    streams: Streams,
    spark: SparkSession,
    shared_redis_server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = streams.input("visits", "user string, page string")
    source.add([{"user": "ann", "page": "/"}] * 2)
    source.add([{"user": "ann", "page": "/"}, {"user": "bob", "page": "/"}])
    # The functions belong to a script, so they travel to the workers by value.
    scope: dict[str, Any] = {
        "__name__": "__main__",
        "spark": spark,
        "stream": source.stream(spark),
    }
    outputs = iter(blocks("text"))
    for code in blocks("python"):
        capsys.readouterr()
        text = code.replace(URL, shared_redis_server.url)
        text = text.replace('"checkpoint"', json.dumps(str(tmp_path / "checkpoint")))
        exec(text.replace('f"visits/', f'f"{tmp_path}/visits/'), scope)
        if "query" in scope:
            scope.pop("query").awaitTermination()
        else:
            # The page shows a gen of its own.
            out = re.sub(r"\b[0-9a-f]{32}\b", GEN, capsys.readouterr().out)
            assert out == next(outputs)
    assert next(outputs, None) is None
    written = spark.read.parquet(str(tmp_path / "visits")).select("batch", "user", "visits")
    assert sorted(map(tuple, written.collect())) == [(0, "ann", 2), (1, "ann", 3), (1, "bob", 1)]
