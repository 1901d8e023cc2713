"""Forks of Spark queries: parent and fork go on with input of their own, as if each were alone."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.state import GroupStateTimeout

import redis_state
from redis_state import config
from redis_state.errors import ConfigError
from redis_state.files import folder_at
from redis_state.forks import Forked, fork_with
from redis_state.live import Reader
from redis_state.maintain.compaction import add_snapshot
from redis_state.protocol.partition import PartitionClient
from redis_state.recovery.doctor import diagnose
from redis_state.recovery.rewind import newest_commit
from tests.spark import test_transform_with_state as transform
from tests.spark.streams import PREFIX, PROVIDER, REDIS, Output, Streams
from tests.spark.test_checkpoint_format_2 import format_of
from tests.spark.test_operators import EVENTS, joined, running_sum
from tests.support.interruptions import Interrupted, interrupting
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("interpreted"),
]

AT = 2
COMMON = range(AT + 1)
# Of a running query: batches before the first fork, between two forks, and still to come.
FORKS, BEFORE, BETWEEN, AHEAD = 3, 3, 4, 5
_FIRST = datetime(2024, 1, 1, 10, tzinfo=timezone.utc)
_FIRST_MTIME_S = 1_000_000_000

Build = Callable[[Sequence[DataFrame], str], DataFrame]


def feed(streams: Streams, name: str, seed: int, numbers: Sequence[int], inputs: int = 1) -> None:
    """Writes events whose times rise by ten minutes a batch, into one file a batch and input.

    Spark reads files in the order of their times, whichever folders they are in.
    """
    for number in numbers:
        for at in range(inputs):
            rng = random.Random(seed * 10_000 + number * 10 + at)
            rows = [_event(number, rng) for _ in range(14)]
            path = streams.folder / f"input-{at}" / name / f"{number:05d}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            hidden = path.with_name("." + path.name)
            hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(hidden, (_FIRST_MTIME_S + number,) * 2)
            hidden.rename(path)


def _event(number: int, rng: random.Random) -> dict[str, Any]:
    at = _FIRST + timedelta(minutes=number * 10 + rng.randrange(10))
    return {"k": f"k{rng.randrange(6)}", "v": rng.randrange(-50, 50), "ts": at.isoformat()}


@dataclass(frozen=True)
class Case:
    """A query with one operator or several.

    Attributes:
        store: Whether its state is in a Python store, whose name `build` is given.
    """

    build: Build
    inputs: int = 1
    mode: str = "update"
    store: bool = False


def deduplicated(inputs: Sequence[DataFrame], _: str) -> DataFrame:
    return inputs[0].dropDuplicates(["k", "v"])


def aggregated(inputs: Sequence[DataFrame], _: str) -> DataFrame:
    return inputs[0].groupBy("k").agg(sf.sum("v"), sf.count("*"), sf.max("ts"))


def sessions(inputs: Sequence[DataFrame], _: str) -> DataFrame:
    late = inputs[0].withWatermark("ts", "10 minutes")
    return late.groupBy(sf.session_window("ts", "3 minutes"), "k").agg(sf.sum("v"))


def groups(inputs: Sequence[DataFrame], _: str) -> DataFrame:
    return (
        inputs[0]
        .withWatermark("ts", "1 minute")
        .groupBy("k")
        .applyInPandasWithState(
            running_sum(),
            "k string, total long, timed_out boolean",
            "total long",
            "update",
            GroupStateTimeout.EventTimeTimeout,
        )
    )


def processed(inputs: Sequence[DataFrame], _: str) -> DataFrame:
    return (
        inputs[0]
        .withWatermark("ts", "1 minute")
        .groupBy("k")
        .transformWithStateInPandas(
            transform.Everything(),
            outputStructType=transform.OUT,
            outputMode="Update",
            timeMode="EventTime",
        )
    )


def in_rows(inputs: Sequence[DataFrame], _: str) -> DataFrame:
    return transform.started(inputs[0], in_pandas=False)


def ours(inputs: Sequence[DataFrame], store: str) -> DataFrame:
    return redis_state.transform_with_state(
        inputs[0].withWatermark("ts", "1 minute"),
        transform.Everything(),
        store=store,
        key="k",
        schema=transform.OUT,
        time_mode="EventTime",
    )


def several(inputs: Sequence[DataFrame], _: str) -> DataFrame:
    late = inputs[0].withWatermark("ts", "5 minutes").dropDuplicates(["k", "v", "ts"])
    small = late.groupBy(sf.window("ts", "5 minutes"), "k").agg(sf.sum("v").alias("v"))
    return small.groupBy(sf.window(sf.window_time("window"), "10 minutes")).agg(sf.sum("v"))


CASES = {
    "aggregation": Case(aggregated),
    "deduplication": Case(deduplicated, mode="append"),
    "stream-stream join": Case(
        lambda inputs, _: joined(inputs, "full_outer"), inputs=2, mode="append"
    ),
    "session windows": Case(sessions, mode="append"),
    "applyInPandasWithState": Case(groups),
    "transformWithStateInPandas": Case(processed),
    "transformWithState, rows, initial state": Case(in_rows),
    "several operators": Case(several, mode="append"),
    "transform_with_state of ours": Case(ours, store=True),
}
REFUSED = {"transformWithState, rows, initial state": transform.ROWS}


@dataclass
class Story:
    """One query and its output.

    Attributes:
        feeds: Names of the feeds that it reads.
    """

    streams: Streams
    case: Case
    name: str
    feeds: tuple[str, ...]
    output: Output = field(default_factory=dict)

    @property
    def store(self) -> str:
        return f"{self.streams.folder} {self.name}"

    @property
    def folder(self) -> Path:
        return self.streams.checkpoint(self.name)

    def frame(self) -> DataFrame:
        names = f"{{{','.join(self.feeds)}}}"
        frames = []
        for at in range(self.case.inputs):
            reader = self.streams.spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
            frames.append(reader.json(str(self.streams.folder / f"input-{at}" / names)))
        return self.case.build(frames, self.store)

    def run(self) -> None:
        """Processes what the feeds have by now, in one start."""
        self.streams.run(self.frame(), self.name, mode=self.case.mode, output=self.output)

    def behind(self, batch: int) -> Output:
        """Returns the output of the batches behind one."""
        return {number: rows for number, rows in self.output.items() if number > batch}

    def state(self, reader: Reader) -> list[str]:
        return state_of(reader, self.store if self.case.store else gen_of(self.folder))

    def fork(self, name: str, *feeds: str, **given: Any) -> tuple[Story, Forked]:
        """Returns the story of a fork, which reads these feeds, and what the call returned."""
        forked = Story(self.streams, self.case, name, feeds)
        stores = {self.store: forked.store} if self.case.store else None
        url = self.streams.spark.conf.get(f"{PREFIX}url") or ""
        to = str(forked.folder)
        return forked, redis_state.fork(url, str(self.folder), to=to, stores=stores, **given)


def gen_of(folder: Path) -> str:
    gen: str = json.loads((folder / "state/_redis_state").read_text())["gen"]
    return gen


def state_of(reader: Reader, which: str) -> list[str]:
    """All rows of a query's newest state, as text."""
    query, found = reader.query(which), []
    for one in query.operators():
        for family in one.families:
            state = query.operator(one.operator, one.store, family=family.name)
            where = f"{one.operator} {one.store} {family.name}"
            try:
                rows = [f"{where} {key} {value}" for key, value in state.items(at="latest")]
            except ConfigError:
                rows = [f"{where} {key} {value}" for key, value in state.list_items(at="latest")]
            found += rows
    return sorted(found)


@pytest.fixture
def reader(shared_redis_server: RedisServer) -> Iterator[Reader]:
    with redis_state.connect(shared_redis_server.url) as reader:
        yield reader


@pytest.fixture(params=["1", "2"])
def by_format(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    with format_of(spark, request.param):
        yield request.param


@pytest.mark.compatibility("fork", "{which}, checkpoint format {by_format}")
@pytest.mark.parametrize(
    "which", [pytest.param(which, marks=REFUSED.get(which, ())) for which in CASES]
)
def test_parent_and_fork_continue_as_if_each_were_alone(
    streams: Streams, reader: Reader, by_format: str, which: str
) -> None:
    """Four batches, a fork after the third, and further input for each."""
    case = CASES[which]
    feed(streams, "common", 1, COMMON, case.inputs)
    feed(streams, "of-parent", 2, [AT + 1], case.inputs)
    parent = Story(streams, case, "parent", ("common", "of-parent"))
    parent.run()
    alone = Story(streams, case, "alone", parent.feeds)
    alone.run()
    forked, made = parent.fork("fork", "common", "of-fork", at_batch=AT)
    assert (made.batch, made.version) == (AT, AT + 1)
    if by_format == "2" and not case.store:
        assert "stateUniqueIds" in (forked.folder / f"commits/{AT}").read_text()
    feed(streams, "of-fork", 3, range(AT + 1, AT + 3), case.inputs)
    feed(streams, "of-parent", 2, [AT + 2], case.inputs)
    forked.run()
    parent.run()
    alone.run()
    assert parent.output == alone.output
    assert parent.state(reader) == alone.state(reader)

    as_fork = Story(streams, case, "as-fork", forked.feeds)
    as_fork.run()
    assert forked.output == as_fork.behind(AT)
    assert any(forked.output.values()), "without output the test would prove nothing"
    assert forked.state(reader) == as_fork.state(reader)
    assert forked.output != parent.behind(AT)


@pytest.mark.usefixtures("by_format")
@pytest.mark.parametrize("which", ["aggregation", "stream-stream join"])
def test_fork_of_a_fork_outlives_the_versions_of_both(
    streams: Streams, reader: Reader, which: str
) -> None:
    case = CASES[which]
    feed(streams, "common", 1, range(6), case.inputs)
    feed(streams, "of-parent", 2, range(6, 8), case.inputs)
    feed(streams, "sixth", 4, [6], case.inputs)
    feed(streams, "of-first", 4, range(7, 9), case.inputs)
    parent = Story(streams, case, "parent", ("common", "of-parent"))
    parent.run()
    first, _ = parent.fork("first", "common", "sixth", "of-first", at_batch=5)
    first.run()
    second, made = first.fork("second", "common", "sixth", "of-second", at_batch=6)
    assert made.batch == 6
    feed(streams, "of-parent", 2, range(8, 10), case.inputs)
    feed(streams, "of-first", 4, range(9, 10), case.inputs)
    for story, batch in ((parent, 5), (first, 6)):
        story.run()
        drop_older_versions(reader, gen_of(story.folder))
        assert not diagnose(reader.client, gen_of(story.folder)).serves(batch)
    feed(streams, "of-second", 5, range(7, 10), case.inputs)
    second.run()

    alone = Story(streams, case, "alone", second.feeds)
    alone.run()
    assert second.output == alone.behind(6)
    assert second.state(reader) == alone.state(reader)


def drop_older_versions(reader: Reader, gen: str) -> None:
    """Adds a snapshot of the newest confirmed version, and drops the versions below."""
    query = reader.query(gen)
    for one in query.operators():
        for id_ in query.ids(one, range(one.partitions)):
            partition = PartitionClient(reader.client, id_, versions_to_retain=1)
            add_snapshot(partition, partition.open("", None))
            partition.retain(retained=0)


@pytest.mark.usefixtures("by_format")
def test_running_query_is_forked(streams: Streams, spark: SparkSession, reader: Reader) -> None:
    """The fork begins at the newest batch of that moment, while others follow."""
    case = CASES["aggregation"]
    names = [f"batch-{number}" for number in range(BEFORE + FORKS * BETWEEN + AHEAD)]

    def feed_up_to(end: int) -> None:
        for number in range(end):
            if not (streams.folder / "input-0" / names[number]).exists():
                feed(streams, names[number], 1, [number])

    feed_up_to(BEFORE)
    parent = Story(streams, case, "parent", tuple(names))
    spark.conf.set(PROVIDER, REDIS)
    writer = parent.frame().writeStream.outputMode("update").format("noop")
    query = writer.option("checkpointLocation", str(parent.folder)).start()
    made: list[tuple[Story, int]] = []
    try:
        for number in range(FORKS):
            batch = BEFORE + number * BETWEEN
            # However fast the query is, the last fork begins with a later batch than the first.
            feed_up_to(batch + AHEAD)
            wait_for_batch(parent.folder, batch)
            forked, one = parent.fork(f"fork-{number}")
            assert one.batch is not None
            made.append((forked, one.batch))
        feed_up_to(len(names))
        wait_for_batch(parent.folder, len(names) - 1)
    finally:
        query.stop()
    assert len({batch for _, batch in made}) > 1
    for number, (forked, batch) in enumerate(made):
        further = f"further-{number}"
        feed(streams, further, 9, [batch + 1])
        forked.feeds = (*names[: batch + 1], further)
        forked.run()
        alone = Story(streams, case, f"alone-{number}", forked.feeds)
        alone.run()
        assert forked.output == alone.behind(batch)
        assert forked.state(reader) == alone.state(reader)


def wait_for_batch(folder: Path, batch: int) -> None:
    def is_there() -> bool:
        try:
            newest = newest_commit(folder_at(str(folder)))
        except ConfigError:
            return False
        return newest is not None and newest >= batch

    wait_until(is_there, f"batch {batch} to be committed")


def test_forks_run_beside_their_parent(streams: Streams) -> None:
    """Three queries of one session at the same time."""
    case = CASES["aggregation"]
    feed(streams, "common", 1, COMMON)
    parent = Story(streams, case, "parent", ("common", "own-0"))
    parent.run()
    stories = [parent]
    stories += [parent.fork(f"fork-{at}", "common", f"own-{at}")[0] for at in (1, 2)]
    for number in range(3):
        feed(streams, f"own-{number}", 10 + number, range(AT + 1, AT + 5))
    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(story.run) for story in stories]:
            done.result()
    for story in stories:
        alone = Story(streams, case, f"{story.name}-alone", story.feeds)
        alone.run()
        assert story.behind(AT) == alone.behind(AT)


def test_spark_does_not_start_from_an_unfinished_fork(
    streams: Streams, reader: Reader, shared_redis_server: RedisServer
) -> None:
    """Forks that were killed after a change of their folder are refused, and then finished."""
    url = shared_redis_server.url
    feed(streams, "common", 1, COMMON)
    parent = Story(streams, CASES["aggregation"], "parent", ("common",))
    parent.run()
    killed = []
    for at in (0, 1, 5, 9):
        killed.append(Story(streams, parent.case, f"fork-{at}", ("common",)))
        interrupt_fork(url, parent.folder, killed[-1].folder, at)
    feed(streams, "common", 1, [AT + 1])
    for forked in killed:
        with pytest.raises(Exception, match="This_fork_is_not_complete"):
            forked.run()
    parent.run()
    for forked in killed:
        made = redis_state.fork(url, str(parent.folder), to=str(forked.folder))
        assert made.batch == AT
        forked.run()
        assert forked.output == parent.behind(AT)
        assert forked.state(reader) == parent.state(reader)


def interrupt_fork(url: str, parent: Path, to: Path, at: int) -> None:
    """Begins a fork that is killed after a number of changes of its folder."""

    def opened(address: str) -> Any:
        folder = folder_at(address)
        return interrupting(folder, at=at) if address == str(to) else folder

    with pytest.raises(Interrupted):
        fork_with(config.parse({"url": url}), str(parent), to=str(to), open_folder=opened)
