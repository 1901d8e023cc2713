"""The examples of docs/stateful-python.md, run as they stand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import kept

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "stateful-python.md"
URL = "redis://localhost:6379/0"
CONF = ("spark.sql.session.timeZone", "spark.sql.streaming.stateStore.providerClass")


def blocks() -> list[tuple[str, str]]:
    """Language and text, in the order of the page."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.M)
    assert {language for language, _ in found} == {"python", "text"}
    return found


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[None]:
    with kept(spark, *CONF):
        yield


@pytest.mark.compatibility("redis_state.transform_with_state", "the examples of its page")
@pytest.mark.usefixtures("conf")
def test_the_examples_run(
    spark: SparkSession,
    shared_redis_server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The processor belongs to a script, so it travels to the workers by value.
    scope: dict[str, Any] = {"__name__": "__main__", "spark": spark}
    shown = ""
    for language, text in blocks():
        if language == "text":
            assert shown == text
            shown = ""
            continue
        assert shown == "", "the page does not say what was printed"
        capsys.readouterr()
        code = text.replace(URL, shared_redis_server.url)
        exec(code.replace('"visits")\nGONE', f"{json.dumps(str(tmp_path))})\nGONE"), scope)
        if "query" in scope:
            scope.pop("query").awaitTermination()
        shown = capsys.readouterr().out
    assert shown == ""
    # Readers look first in the partition in which Spark's hash puts a group, and found all there.
    assert not scope["counts"]._keyed._placement.scattered
