"""Every operator in real-time mode: the same rows as on RocksDB's provider, or Spark's refusal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.real_time_operators_job import CASES
from tests.support.redis_server import RedisServer
from tools import compatibility

pytestmark = [pytest.mark.spark, pytest.mark.application, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "real-time.md"
LIMIT_S = 600  # for a machine that is busy with other work
MODE_PREFIX = "STREAMING_REAL_TIME_MODE."
MODE = ("OUTPUT_MODE_NOT_SUPPORTED", "it takes update mode only")
METADATA = ("STDS_FAILED_TO_READ_OPERATOR_METADATA", "it plans none of Python in this mode")
LIST = ("OPERATOR_OR_SINK_NOT_IN_ALLOWLIST", "not on its list of operators")


def case(
    name: str, *row: str, refused: tuple[str, str] | None = None
) -> Any:  # the type of pytest.param is private
    marker = pytest.mark.compatibility(
        *row, column=compatibility.REAL_TIME, refused={"4.3": refused} if refused else {}
    )
    return pytest.param(name, marks=marker, id=name)


SERVED_AND_REFUSED = [
    case("aggregation", "aggregation", "update mode"),
    case("aggregation, complete mode", "aggregation", "complete mode", refused=MODE),
    case("windows, append mode", "aggregation", "event-time windows, append mode", refused=MODE),
    case("windows", "aggregation", "event-time windows, update mode"),
    case("without a key", "aggregation", "without a key"),
    case("deduplication", "dropDuplicates"),
    case("deduplication within watermark", "dropDuplicatesWithinWatermark", refused=LIST),
    case("join", "stream-stream join", "inner, state format 2", refused=LIST),
    case("sessions, append mode", "session windows", "append mode", refused=MODE),
    case("limit", "limit", refused=MODE),
    case("several", "several stateful operators in one query"),
    case("groups", "applyInPandasWithState", "NoTimeout", refused=LIST),
    case(
        "transformWithStateInPandas",
        "transformWithStateInPandas",
        "time to live, processing-time timers",
        refused=METADATA,
    ),
    case(
        "transformWithState, rows",
        "transformWithState in Python, rows",
        "initial state",
        refused=METADATA,
    ),
    case(
        "transform_with_state",
        "redis_state.transform_with_state",
        "time to live, processing-time timers",
        refused=LIST,
    ),
]


@pytest.fixture(scope="module")
def printed(
    shared_redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """Lines of one application for all cases."""
    folder = tmp_path_factory.mktemp("real-time")
    settings = {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    words = ["-m", "tests.spark.real_time_operators_job", str(folder), shared_redis_server.url]
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **settings},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture
def outcomes(printed: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Outcomes of both providers by case."""
    return {line["case"]: line for line in printed if "case" in line}


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("name", SERVED_AND_REFUSED)
def test_operator_gives_the_rows_of_rocksdb(outcomes: dict[str, dict[str, Any]], name: str) -> None:
    rocksdb, redis = outcomes[name]["rocksdb"], outcomes[name]["redis"]
    if "error" in rocksdb:
        raise RuntimeError(rocksdb["error"])
    assert redis == rocksdb
    assert redis["rows"], "the query gave nothing out: the test would prove nothing"


def test_both_providers_are_refused_with_the_same_words(
    outcomes: dict[str, dict[str, Any]],
) -> None:
    assert outcomes.keys() == CASES.keys()
    for found in outcomes.values():
        # Behind the name of the error there may be the folder of a checkpoint.
        ours, theirs = (
            found[name].get("error", "").partition("]")[0] for name in ("redis", "rocksdb")
        )
        assert ours == theirs


@pytest.mark.timeout(LIMIT_S + 60)
def test_refusals_have_the_words_of_the_page(printed: list[dict[str, Any]]) -> None:
    errors = {line["refused"]: line["error"] for line in printed if "refused" in line}
    words = {
        "source without real-time mode": MODE_PREFIX + "INPUT_STREAM_NOT_SUPPORTED",
        "changes of a query": MODE_PREFIX + "INPUT_STREAM_NOT_SUPPORTED",
        "foreachBatch": MODE_PREFIX + "OPERATOR_OR_SINK_NOT_IN_ALLOWLIST",
        "short batch": "INVALID_STREAMING_REAL_TIME_MODE_TRIGGER_INTERVAL",
        "fewer cores than tasks": "CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT",
        "session with checkpoint format 1": MODE_PREFIX + "SQL_CONFIGURATION_NOT_SUPPORTED",
        "checkpoint of format 1": MODE_PREFIX + "CHECKPOINT_FORMAT_V1_NOT_SUPPORTED",
        "session with a provider": MODE_PREFIX + "SQL_CONFIGURATION_NOT_SUPPORTED",
    }
    assert errors.keys() == words.keys()
    page = PAGE.read_text("utf-8")
    for name, word in words.items():
        assert word in errors[name], name
        assert f"`{word.rsplit('.', 1)[-1]}`" in page
    for word, _ in (MODE, LIST, METADATA):
        assert f"`{word}`" in page
