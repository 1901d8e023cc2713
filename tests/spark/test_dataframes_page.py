"""The examples of docs/dataframes.md, run as they stand beside a planted query."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.contract.planting import Planted
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "dataframes.md"
URL = "redis://localhost:6379/0"


def test_the_examples_print_what_the_page_says(
    spark: SparkSession, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = Planted(redis_server.client())
    planted.register()
    rows = {"UA": {"count": 2, "total": 1.5}, "AA": {"count": 1, "total": 4.0}}
    planted.commit(1, [({"carrier": carrier}, values) for carrier, values in rows.items()])
    text = PAGE.read_text("utf-8")
    found = re.findall(r"^```(python|text)\n(.*?)^```", text, re.DOTALL | re.M)
    assert [language for language, _ in found] == ["python", "text"] * 3
    for (_, code), (_, printed) in zip(found[::2], found[1::2], strict=True):
        assert URL in code
        exec(code.replace(URL, redis_server.url), {"spark": spark})
        assert capsys.readouterr().out == printed
