"""The examples of docs/bootstrap.md, run as they stand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import redis_state
from redis_state.cli.main import main
from redis_state.files import folder_at
from redis_state.recovery.marker import gen_of
from tests.spark.streams import PROVIDER, REDIS, Streams
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bootstrap.md"
URL = "redis://localhost:6379/0"
SCHEMA = "customer string, amount long"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.M)


@pytest.mark.usefixtures("stays")
def test_the_page_runs(
    streams: Streams,
    spark: SparkSession,
    shared_redis_server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spark.conf.set(PROVIDER, REDIS)
    url = shared_redis_server.url
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
    assert shell(tmp_path, url) == 3
    out = capsys.readouterr().out
    assert "operator 0 (stateStoreSave): customer STRING,sum BIGINT" in out
    assert "1 rows would be the state; stop the query, then add --yes" in out
    assert "1 rows are the state now, and were read again: equal digests" in out


def shell(tmp_path: Path, url: str) -> int:
    """Runs the commands of the page, and counts them."""
    (commands,) = blocks("console")
    lines = commands.splitlines()
    for line in lines:
        words = line.replace("/data/", f"{tmp_path}/").replace(URL, url)
        assert main(shlex.split(words.removeprefix("$ redis-state "))) == 0
    return len(lines)


@pytest.fixture
def stays(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command takes the session that there is, and leaves it as it was for other tests."""
    before = dict(spark.conf.getAll)
    with monkeypatch.context() as patch:
        patch.setattr(SparkSession, "stop", lambda _: None)
        yield
    for name, value in spark.conf.getAll.items():
        if value != before.get(name) and spark.conf.isModifiable(name):
            spark.conf.unset(name)
            if name in before:
                spark.conf.set(name, before[name])
