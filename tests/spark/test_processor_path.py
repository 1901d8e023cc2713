"""The path of a processor's batch in docs/design.md, followed in a worker of Spark."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from redis_state import transform_with_state
from tests.spark.test_stateful_processors import Queries, queries
from tests.support.paths import PROJECT, Walk, check

__all__ = ["queries"]

pytestmark = pytest.mark.spark

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


TASK = "spark.processor.transform_with_state._streamed.<locals>.run"


class Followed(StatefulProcessor):
    """Follows its worker from the end of the first batch on; writes down the batch before."""

    def __init__(self, project: str, out: str) -> None:
        self._project, self._out = project, out

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        n = (self._count.get() or (0,))[0] + 1
        self._count.update((n,))
        yield pd.DataFrame({"n": [n]})

    def close(self) -> None:
        """Runs in the thread of the worker, before the batch commits."""
        import redis_state

        sys.path.insert(0, self._project)
        from tests.support import paths

        follower = vars(redis_state).get("followed")
        if follower is None:
            vars(redis_state)["followed"] = follower = paths.Follower(TASK)
            sys.setprofile(follower)
        elif follower.before is not None and follower.before.functions[:1] == [TASK]:
            Path(self._out).write_text(json.dumps(asdict(follower.before)))


def test_processor_batch_follows_the_documented_path(
    queries: Queries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark keeps idle workers by environment: one of its own, so that each batch meets one worker.
    monkeypatch.setitem(queries.spark.sparkContext.environment, "REDIS_STATE_TEST", "followed")
    out, source = tmp_path / "walk.json", tmp_path / "source"
    source.mkdir()
    for number in range(5):
        (source / f"{number}.json").write_text('{"k": 1}')
    frame = (
        queries.spark.readStream.schema("k long").option("maxFilesPerTrigger", 1).json(str(source))
    )
    counted = transform_with_state(
        frame, Followed(str(PROJECT), str(out)), store=f"{queries.folder} path", key="k",
        schema="n long", partitions=1,
    )  # fmt: skip
    given: list[Any] = []
    queries.start(counted, "path", given)
    assert [rows for _, rows in given] == [[(number,)] for number in range(1, 6)]
    # A batch is several calls: it joins, opens, runs the processor and commits.
    check("Path of a processor's batch", Walk(**json.loads(out.read_text())), files_max=24)
