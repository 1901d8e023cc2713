"""A query whose state gets other numbers of partitions gives out what it would have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import redis_state
from redis_state.errors import ConfigError
from tests.spark.streams import FORMAT, REDIS, Output, Streams
from tests.spark.test_checkpoint_format_2 import ONE_PARTITION
from tests.spark.test_operators import EVENTS, events, joined, two_inputs
from tests.support.spark_sessions import kept
from tests.upgrades.job import (
    deduplication,
    deduplication_within_watermark,
    pandas_with_state,
    transform_with_state,
    windows,
)

pytestmark = pytest.mark.spark

Build = Callable[[Sequence[DataFrame]], DataFrame]
SHUFFLE = "spark.sql.shuffle.partitions"
COUNTS = (3, 5, 2)
"""The partitions of each part of a query; each part has one batch, the first has two."""


def sessions(inputs: Sequence[DataFrame]) -> DataFrame:
    late = inputs[0].withWatermark("ts", "5 minutes")
    return late.groupBy(sf.session_window("ts", "3 minutes"), "k").agg(sf.sum("v"))


def several(inputs: Sequence[DataFrame]) -> DataFrame:
    """Builds several operators; the last one has no key, and always one partition."""
    late = inputs[0].withWatermark("ts", "5 minutes").dropDuplicates(["k", "v", "ts"])
    small = late.groupBy(sf.window("ts", "5 minutes"), "k").agg(sf.sum("v").alias("v"))
    return small.groupBy(sf.window(sf.window_time("window"), "10 minutes")).agg(sf.sum("v"))


FAMILIES: dict[str, tuple[Build, Any, str]] = {
    "windows": (windows, events(2), "append"),
    "counts": (lambda inputs: inputs[0].groupBy("k", "v").count(), events(1), "update"),
    "without a key": (
        lambda inputs: inputs[0].agg(sf.sum("v"), sf.count("k")),
        events(3),
        "update",
    ),
    "deduplication": (deduplication, events(4), "append"),
    "within watermark": (deduplication_within_watermark, events(5), "append"),
    "sessions": (sessions, events(7), "append"),
    "inner join": (lambda inputs: joined(inputs, "inner"), two_inputs(6), "append"),
    "full outer join": (lambda inputs: joined(inputs, "full_outer"), two_inputs(6), "append"),
    "groups": (pandas_with_state, events(9), "update"),
    "processor": (transform_with_state, events(11), "update"),
    "several": (several, events(10), "append"),
    "limit": (lambda inputs: inputs[0].limit(90).select(sf.lit(1)), events(8), "append"),
}


FORMAT_1 = ("windows", "full outer join", "processor")
"""Of which checkpoint format 1 is run, too."""

SHORT = ("windows", "full outer join", "without a key")
"""Of which checkpoint format 2 is run in each `make test`."""

SINGLE = ("without a key", "limit")
"""They have one partition whatever the number is."""


def marks_of(family: str, format_: str, *, short: bool) -> list[pytest.MarkDecorator]:
    single = [ONE_PARTITION] if format_ == "2" and family in SINGLE else []
    return single if short else [*single, pytest.mark.long]


CASES = [
    pytest.param(
        family,
        format_,
        marks=marks_of(family, format_, short=format_ == "2" and family in SHORT),
    )
    for format_, families in (("2", FAMILIES), ("1", FORMAT_1))
    for family in families
]


@pytest.fixture
def confs(spark: SparkSession) -> Iterator[None]:
    with kept(spark, SHUFFLE, FORMAT):
        yield


class Parts:
    """A query that runs part by part, in the same checkpoint or in others."""

    def __init__(self, streams: Streams, family: str, *, provider: str = REDIS) -> None:
        self.streams, self.provider = streams, provider
        self.build, self.batches, self.mode = FAMILIES[family]
        self.inputs = [streams.input(str(n), EVENTS) for n in range(len(self.batches[0]))]
        self.done = 0
        self.output: Output = {}

    def run(self, name: str, batches: int) -> None:
        for batch in self.batches[self.done : self.done + batches]:
            for source, rows in zip(self.inputs, batch, strict=True):
                source.add(rows)
        self.done += batches
        frame = self.build([source.stream(self.streams.spark) for source in self.inputs])
        self.streams.run(frame, name, mode=self.mode, provider=self.provider, output=self.output)

    def rescale(self, name: str, to_name: str, partitions: int, **given: Any) -> Any:
        there, to = (str(self.streams.checkpoint(one)) for one in (name, to_name))
        return redis_state.rescale(self.streams.spark, there, to, partitions, **given)


def partitions_of(checkpoint: Path, spark: SparkSession) -> set[int]:
    """As Spark's operator metadata and its offset log have them."""
    rows = spark.read.format("state-metadata").load(str(checkpoint)).collect()
    newest = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    planned = json.loads(newest.read_text().splitlines()[1])["conf"][SHUFFLE]
    return {int(planned), *(row["numPartitions"] for row in rows)}


def with_one_partition(streams: Streams, family: str, format_: str) -> Parts:
    """The query as it is when nothing moves; what comes then has the first count of partitions."""
    spark = streams.spark
    spark.conf.set(FORMAT, format_)
    spark.conf.set(SHUFFLE, "1")
    stays = Parts(Streams(spark, streams.folder / "stays"), family)
    for batches in (2, 1, 1):
        stays.run("stays", batches)
    spark.conf.set(SHUFFLE, str(COUNTS[0]))
    return stays


@pytest.mark.compatibility("rescale", "{family}, checkpoint format {format_}")
@pytest.mark.usefixtures("confs")
@pytest.mark.parametrize(("family", "format_"), CASES)
def test_rescaled_query_equals_an_unscaled_one(
    streams: Streams, spark: SparkSession, family: str, format_: str
) -> None:
    stays = with_one_partition(streams, family, format_)
    moves = Parts(streams, family)
    moves.run("part-0", 2)
    for part, count in enumerate(COUNTS[1:], 1):
        before, after = f"part-{part - 1}", f"part-{part}"
        looked = moves.rescale(before, after, count, dry_run=True)
        assert not streams.checkpoint(after).exists()
        done = moves.rescale(before, after, count)
        assert [one.source for one in done.stores] == [one.target for one in done.stores]
        assert [one.source for one in looked.stores] == [one.source for one in done.stores]
        assert partitions_of(streams.checkpoint(after), spark) == {count}
        moves.run(after, 1)
    assert moves.output == stays.output
    assert any(moves.output.values())
    if family in ("windows", "counts"):
        state = [
            spark.read.format("statestore").load(str(one.streams.checkpoint(name)))
            for one, name in ((stays, "stays"), (moves, "part-2"))
        ]
        one, other = (sorted(map(str, frame.select("key", "value").collect())) for frame in state)
        assert one == other


def test_invalid_rescale_is_named(streams: Streams) -> None:
    query = Parts(streams, "counts")
    query.run("c", 1)
    for partitions, found in (
        (2, "it already has 2 partitions"),
        (0, "0 partitions were requested"),
    ):
        with pytest.raises(ConfigError, match=found):
            query.rescale("c", "to", partitions)
    checkpoint = streams.checkpoint("c")
    entry = checkpoint / "offsets" / "0"
    strict = "spark.sql.streaming.statefulOperator.useStrictDistribution"
    text = entry.read_text()
    (checkpoint / "offsets" / ".0.crc").unlink()
    entry.write_text(text.replace(f'"{strict}":"true"', f'"{strict}":"false"'))
    with pytest.raises(ConfigError, match=r"it began with a Spark before 3\.3"):
        query.rescale("c", "to", 3)
    entry.write_text(text.replace(f'"{SHUFFLE}":"2"', f'"{SHUFFLE}":"7"'))
    with pytest.raises(ConfigError, match="its offset log has 7 partitions, but the metadata of"):
        query.rescale("c", "to", 3)
    assert not streams.checkpoint("to").exists()
