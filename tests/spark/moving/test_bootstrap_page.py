"""The examples of docs/bootstrap.md, run as they stand."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import redis_state
from redis_state.files import folder_at
from redis_state.recovery.marker import gen_of
from tests.spark.streams import PROVIDER, REDIS, Streams
from tests.support.pages import fenced
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.long]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "bootstrap.md"
URL = "redis://localhost:6379/0"
SCHEMA = "customer string, amount long"
blocks = partial(fenced, PAGE)


def test_examples_of_the_page_run(
    streams: Streams,
    spark: SparkSession,
    shared_redis_server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spark.conf.set(PROVIDER, REDIS)
    source = streams.input("orders", SCHEMA)
    old = [{"customer": "ann", "amount": 150}, {"customer": "bob", "amount": 7}]
    new = [{"customer": "ann", "amount": 1}, {"customer": "eve", "amount": 3}]
    source.add(old)
    spark.createDataFrame(old, SCHEMA).write.parquet(str(tmp_path / "history"))
    given: list[dict[str, int]] = []

    def keep(frame: DataFrame, _: int) -> None:
        given.append({row["customer"]: row["total"] for row in frame.collect()})

    scope = {
        "redis_state": redis_state,
        "spark": spark,
        "sf": sf,
        "keep": keep,
        "orders": source.stream(spark),
        "everything": spark.createDataFrame(old + new, SCHEMA),
    }
    parts = [text.replace('"/data/', f'"{tmp_path}/') for text in blocks("python")]
    query, empty, columns, give, start, merge, lost = parts
    for text in (query, empty, columns, give):
        exec(text, scope)
    source.add(new)
    exec(start, scope)
    assert given[-1] == {"ann": 151, "eve": 3}
    exec(merge, scope)
    fixed = spark.read.format("statestore").load(str(tmp_path / "totals-2"))
    found = {row["key"]["customer"]: row["value"]["sum"] for row in fixed.collect()}
    assert found == {"ann": 51, "bob": 7, "eve": 3}

    client = shared_redis_server.client()
    gen = gen_of(folder_at(str(tmp_path / "totals-2")))
    client.delete(*client.scan_iter(match=f"*{gen}*".encode(), count=1000))
    source.add([{"customer": "eve", "amount": 5}])
    exec(lost, scope)
    assert given[-1] == {"eve": 8}

    spark.createDataFrame([("fay", 9)], "customer string, sum long").write.parquet(
        str(tmp_path / "rows")
    )
    out = capsys.readouterr().out
    (printed,) = blocks("text")
    assert printed in out
    assert "2 customers" in out
    out = shell(tmp_path, shared_redis_server.url)
    assert "operator 0 (stateStoreSave): customer STRING,sum BIGINT" in out
    assert "1 rows would be the state; stop the query, then add --yes" in out
    assert "1 rows are the state now, and were read again: equal digests" in out


RUN_EACH = (
    "import json, sys; from redis_state.cli.main import main; "
    "sys.exit(any([main(words) for words in json.loads(sys.argv[1])]))"
)


def shell(tmp_path: Path, url: str) -> str:
    """Runs the page's commands in one process with one JVM; returns their output."""
    (commands,) = blocks("console")
    lines = commands.replace("/data/", f"{tmp_path}/").replace(URL, url).splitlines()
    words = [shlex.split(line.removeprefix("$ redis-state ")) for line in lines]
    words = [[*line, "--master", "local[1]"] for line in words]
    arguments = [sys.executable, "-c", RUN_EACH, json.dumps(words)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout
