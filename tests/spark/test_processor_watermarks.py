"""Watermarks that `transform_with_state` serves, and those that it refuses by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from redis_state.errors import UsageError
from tests.spark.test_stateful_processors import (
    OPS,
    Given,
    Machine,
    Queries,
    batches,
    queries,
    same,
)

__all__ = ["queries"]

pytestmark = pytest.mark.spark

Union = Callable[[DataFrame, DataFrame], DataFrame]


def watermarked(frame: DataFrame, delay: str = "1 minute") -> DataFrame:
    return frame.withWatermark("ts", delay)


REFUSED: dict[str, tuple[Union, str]] = {
    "both, one delay": (
        lambda one, two: watermarked(one).unionAll(watermarked(two)),
        "comes from 2 calls of withWatermark",
    ),
    "both, two delays": (
        lambda one, two: watermarked(one).unionByName(watermarked(two, "2 hours")),
        "comes from 2 calls of withWatermark",
    ),
    "the first only": (
        lambda one, two: watermarked(one).unionAll(two),
        "only some of the united streams have a watermark",
    ),
    "three": (
        lambda one, two: watermarked(one).unionAll(watermarked(two)).unionAll(watermarked(one)),
        "comes from 3 calls of withWatermark",
    ),
    "one stream in two branches": (
        lambda one, _: watermarked(one).where("v > 3").unionAll(watermarked(one).where("v < 3")),
        "comes from 2 calls of withWatermark",
    ),
    "twice on one stream": (
        lambda one, _: watermarked(watermarked(one), "2 hours"),
        "comes from 2 calls of withWatermark",
    ),
    "a join of two": (
        lambda one, two: watermarked(one).join(
            watermarked(two).select(sf.col("k").alias("other"), sf.col("ts").alias("when")),
            sf.expr("k = other and when >= ts and when <= ts + interval 1 hour"),
        ).drop("when"),
        "comes from 2 calls of withWatermark",
    ),
    "the second only": (
        lambda one, two: one.unionAll(watermarked(two)),
        "the DataFrame has no watermark",
    ),
}  # fmt: skip


@pytest.mark.parametrize("which", REFUSED)
def test_plan_with_several_watermarks_is_refused_at_the_call(queries: Queries, which: str) -> None:
    one, two = (queries.streams.input(name, OPS).stream(queries.spark) for name in ("one", "two"))
    unite, found = REFUSED[which]
    with pytest.raises(UsageError, match=found):
        queries.ours(unite(one, two), Machine(), "s")
    # Without event time no watermark counts.
    queries.ours(unite(one, two), Machine(), "s", time_mode="None")


def test_watermark_behind_a_view_is_found(queries: Queries) -> None:
    one, two = (
        watermarked(queries.streams.input(name, OPS).stream(queries.spark))
        for name in ("one", "two")
    )
    one.unionAll(two).createOrReplaceTempView("united")
    with pytest.raises(UsageError, match="comes from 2 calls of withWatermark"):
        queries.ours(queries.spark.table("united"), Machine(), "s")


def test_watermark_behind_a_union_equals_sparks(queries: Queries) -> None:
    """As the refusal says: one call of withWatermark, behind the union of both streams."""
    outputs: list[Given] = []
    for which in ("theirs", "ours"):
        given: Given = []
        sources = [queries.streams.input(f"{which} {at}", OPS) for at in (0, 1)]
        for at, source in enumerate(sources):
            for batch in batches(90 + at, count=3):
                # Rows are taken in the order of `seq`. Spark lists timers in no order, so an
                # operation that takes the first of them differs.
                rows = [{**row, "seq": row["seq"] * 2 + at} for row in batch]
                source.add([row for row in rows if row["op"] != "untimer"])
        one, two = (source.stream(queries.spark) for source in sources)
        frame = one.unionAll(two).withWatermark("ts", "2 minutes")
        if which == "theirs":
            made = queries.theirs(frame, Machine())
        else:
            made = queries.ours(frame, Machine(), "s")
        queries.start(made, which, given)
        outputs.append(given)
    same(*outputs)
