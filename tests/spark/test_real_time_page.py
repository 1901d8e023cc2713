"""The code of docs/real-time.md, run as it stands; its source is Spark's in-memory one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import fenced
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.application, pytest.mark.slow]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "real-time.md"
ROOT = PAGE.parents[1]
LIMIT_S = 240

# In place of the block that reads a topic: there is no Kafka here.
SOURCE = """
spark.conf.set("spark.sql.streaming.stateStore.redis.publishEvery", "200ms")

from tests.spark.real_time import MemoryStream

stream = MemoryStream(spark)
rows = stream.frame.select(sf.col("value").alias("page"))
"""
BETWEEN = """
from redis_state.errors import NotFoundError
from tests.support.waiting import wait_until

def has_confirmed():
    if (error := query.exception()) is not None:
        raise error
    with redis_state.connect("redis://localhost:6379/0") as reader:
        try:
            return reader.query("visits").operator(0).get({"page": "/"}) is not None
        except NotFoundError:
            return False

assert rows.columns == COLUMNS
stream.add(["/", "/about", "/"])
wait_until(has_confirmed, "the state of a batch")
"""


def columns_of(block: str) -> list[str]:
    """Names of the columns of a block that ends with a `select` of aliases."""
    return re.findall(r'\.alias\("(\w+)"\)', block)


def test_the_page_starts_a_query_and_reads_its_state(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    session, topic, query, read, uncommitted = fenced(PAGE, "python")
    compile(topic, str(PAGE), "exec")
    between = BETWEEN.replace("COLUMNS", repr(columns_of(topic)))
    script = tmp_path / "visits.py"
    parts = [session, SOURCE, query, between, read, uncommitted, "query.stop()\nspark.stop()\n"]
    text = "\n".join(parts).replace("redis://localhost:6379/0", redis_server.url)
    script.write_text(text)
    settings = {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    shown = done.stdout.splitlines()
    rows = {tuple(line.strip("|").split("|")) for line in shown if line.startswith("|")}
    found = {tuple(word.strip() for word in row) for row in rows}
    assert {("/", "1"), ("/", "2"), ("/about", "1")} <= found
    assert "{'count': 2}" in shown
