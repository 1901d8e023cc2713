"""The option `rescaleTo`: a query that starts with another number of partitions goes on with it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from redis_state.cli.main import main
from redis_state.files import folder_at
from redis_state.recovery.marker import gen_of, marker_of
from tests.spark.moving.test_rescale import (
    COUNTS,
    FAMILIES,
    Parts,
    confs,
    marks_of,
    partitions_of,
    with_one_partition,
)
from tests.spark.streams import FORMAT, HDFS, REDIS, Output, Streams
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark
__all__ = ["confs"]

SHORT = (("windows", "1"), ("processor", "2"), ("without a key", "2"))
CASES = [
    pytest.param(family, format_, marks=marks_of(family, format_, short=(family, format_) in SHORT))
    for format_ in ("1", "2")
    for family in FAMILIES
    if family != "limit"
]


def with_rows(output: Output, family: str) -> list[list[str]]:
    """Returns rows in the order of batches; the batch of the rescale has no new data."""
    batches = [rows for _, rows in sorted(output.items()) if rows]
    if family == "without a key":  # It gives out its only row in every batch.
        return [rows for rows, _ in groupby(batches)]
    return batches


def newest_entry(checkpoint: Path, log: str) -> Path:
    return max((checkpoint / log).glob("[0-9]*"), key=lambda path: int(path.name))


@pytest.mark.compatibility("rescaleTo", "{family}, checkpoint format {format_}")
@pytest.mark.usefixtures("confs")
@pytest.mark.parametrize(("family", "format_"), CASES)
def test_query_rescaled_at_start_equals_an_unscaled_one(
    streams: Streams,
    spark: SparkSession,
    redis_conf: Callable[[dict[str, str]], None],
    family: str,
    format_: str,
) -> None:
    stays = with_one_partition(streams, family, format_)
    moves = Parts(streams, family)
    moves.run("moves", 2)
    checkpoint = streams.checkpoint("moves")
    gens = [gen_of(folder_at(str(checkpoint)))]
    for count in COUNTS[1:]:
        redis_conf({"rescaleTo": str(count)})
        moves.run("moves", 1)
        assert partitions_of(checkpoint, spark) == {count}
        gens.append(gen_of(folder_at(str(checkpoint))))
        folders = {int(path.name) for path in (checkpoint / "state" / "0").glob("[0-9]*")}
        assert max(folders) < count
    assert len(set(gens)) == len(COUNTS)
    assert not list(checkpoint.glob("_redis_state_scratch*"))
    assert with_rows(moves.output, family) == with_rows(stays.output, family)
    assert any(moves.output.values())
    if family in ("windows", "counts"):
        state = [
            spark.read.format("statestore").load(str(one.streams.checkpoint(name)))
            for one, name in ((stays, "stays"), (moves, "moves"))
        ]
        one, other = (sorted(map(str, frame.select("key", "value").collect())) for frame in state)
        assert one == other
    # The option may stay: nothing is changed any more.
    files = sorted(path.name for path in (checkpoint / "state").glob("_redis_state*"))
    moves.run("moves", 0)
    assert files == sorted(path.name for path in (checkpoint / "state").glob("_redis_state*"))


@pytest.fixture
def rescaled(streams: Streams, redis_conf: Callable[[dict[str, str]], None]) -> Parts:
    """A query that went from two partitions to five after its second batch."""
    query = Parts(streams, "counts")
    query.run("c", 2)
    redis_conf({"rescaleTo": "5"})
    query.run("c", 1)
    return query


def test_logs_from_before_the_rescale_are_refused(
    rescaled: Parts,
    streams: Streams,
    shared_redis_server: RedisServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Such logs would lead to partitions that do not have the rows any more."""
    checkpoint = streams.checkpoint("c")
    since = marker_of(folder_at(str(checkpoint))).since
    assert since == 2
    rewind = ["rewind", "--url", shared_redis_server.url, "--checkpoint", str(checkpoint)]
    assert main([*rewind, "--to-batch", "1", "--yes", "--force"]) != 0
    assert "batch 2 changed the number of partitions" in capsys.readouterr().err
    kept = {}
    for log in ("offsets", "commits"):
        for path in list((checkpoint / log).iterdir()):
            number = path.name.strip(".").split(".")[0]
            if number.isdecimal() and int(number) >= since:
                kept[path] = path.read_bytes()
                path.unlink()
    with pytest.raises(Exception, match="its logs were set back to batch 1, but batch 2 changed"):
        rescaled.run("c", 0)
    for path, raw in kept.items():
        path.write_bytes(raw)
    rescaled.run("c", 1)
    assert main([*rewind, "--to-batch", "2", "--yes", "--force"]) == 0


def test_uncommitted_batch_runs_before_the_rescale(
    streams: Streams, redis_conf: Callable[[dict[str, str]], None], spark: SparkSession
) -> None:
    query = Parts(streams, "counts")
    query.run("c", 2)
    checkpoint = streams.checkpoint("c")
    commit = newest_entry(checkpoint, "commits")
    commit.with_name(f".{commit.name}.crc").unlink()
    commit.unlink()
    redis_conf({"rescaleTo": "5"})
    query.run("c", 0)
    assert partitions_of(checkpoint, spark) == {2}
    query.run("c", 0)
    assert partitions_of(checkpoint, spark) == {5}


@pytest.mark.parametrize("format_", ["1", "2"])
@pytest.mark.usefixtures("confs")
def test_interrupted_rescale_is_finished_or_discarded(
    streams: Streams,
    spark: SparkSession,
    redis_conf: Callable[[dict[str, str]], None],
    format_: str,
) -> None:
    """The process ends right before, or right after, it writes the entry of the log."""
    spark.conf.set(FORMAT, format_)
    query = Parts(streams, "counts")
    query.run("c", 2)
    checkpoint = streams.checkpoint("c")
    before = gen_of(folder_at(str(checkpoint)))
    commit = newest_entry(checkpoint, "commits")
    logged = commit.read_bytes()
    redis_conf({"rescaleTo": "5"})
    query.run("c", 1)
    after = gen_of(folder_at(str(checkpoint)))
    switch = int(commit.name) + 1

    def back_to_the_switch() -> None:
        for log, first in (("offsets", switch + 1), ("commits", switch)):
            for path in list((checkpoint / log).iterdir()):
                number = path.name.strip(".").split(".")[0]
                if number.isdecimal() and int(number) >= first:
                    path.unlink()
        commit.write_bytes(logged)
        commit.with_name(f".{commit.name}.crc").unlink(missing_ok=True)
        (checkpoint / "state" / "_redis_state.2").unlink(missing_ok=True)
        for metadata in (checkpoint / "state" / "0" / "_metadata").rglob("*"):
            if metadata.is_file() and not metadata.name.startswith("."):
                text = metadata.read_text().replace('"numPartitions":5', '"numPartitions":2')
                metadata.with_name(f".{metadata.name}.crc").unlink(missing_ok=True)
                metadata.write_text(text)

    back_to_the_switch()
    assert gen_of(folder_at(str(checkpoint))) == after
    redis_conf({"rescaleTo": "2"})
    # The change that was planned is finished first; this one waits for its batch.
    again = dict(query.output)
    query.run("c", 0)
    assert partitions_of(checkpoint, spark) == {5}
    assert query.output == again
    redis_conf({"rescaleTo": "5"})
    back_to_the_switch()
    (checkpoint / "offsets" / str(switch)).unlink()
    (checkpoint / "offsets" / f".{switch}.crc").unlink(missing_ok=True)
    assert gen_of(folder_at(str(checkpoint))) == before


@pytest.mark.parametrize("option", ["rescaleTo", "adopt"])
def test_query_with_a_limit_is_refused(
    streams: Streams, redis_conf: Callable[[dict[str, str]], None], option: str
) -> None:
    """Spark takes it out of a batch without rows, and then misses its state."""
    query = Parts(streams, "limit", provider=HDFS if option == "adopt" else REDIS)
    query.run("c", 1)
    query.provider = REDIS
    redis_conf({"rescaleTo": "5", "adopt": "true"})
    with pytest.raises(Exception, match=r"the query has a limit .* Nothing was changed"):
        query.run("c", 1)
    redis_conf({"rescaleTo": "2", "adopt": "false"})
    query.run("c", 1)


def test_rescale_without_enough_memory_is_refused(
    streams: Streams,
    redis_conf: Callable[[dict[str, str]], None],
    shared_redis_server: RedisServer,
) -> None:
    query = Parts(streams, "counts")
    query.run("c", 2)
    checkpoint = streams.checkpoint("c")
    files = sorted(path.name for path in checkpoint.rglob("*"))
    redis_conf({"rescaleTo": "5"})
    with shared_redis_server.client() as client:
        client.config_set("maxmemory", "100kb")
        try:
            with pytest.raises(Exception, match=r"it may need .* bytes free below its maxmemory"):
                query.run("c", 0)
        finally:
            client.config_set("maxmemory", "0")
    assert sorted(path.name for path in checkpoint.rglob("*")) == files
