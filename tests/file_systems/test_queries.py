"""Queries whose checkpoints lie in a real S3 server, by S3A, and in a real HDFS."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.readwriter import DataStreamWriter

import redis_state
from redis_state.cli.main import main
from redis_state.files import Folder, folder_at
from redis_state.recovery.copies import copies_of
from redis_state.recovery.copies.files import version_of
from redis_state.testing import replay
from tests.file_systems.servers import Store
from tests.spark.streams import Input
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.spark]

SCHEMA = "k string, v long"
COPIED = 4


class Job:
    """A sum per key over files, with its checkpoint in a file system."""

    def __init__(self, spark: SparkSession, store: Store, folder: Path) -> None:
        self._spark = spark
        self._store = store
        self.url = f"{store.url}/{folder.name}/flights"
        self._input = Input(folder / "input", SCHEMA)
        self._fed = 0
        self.output: dict[int, dict[str, int]] = {}

    def feed(self, batches: int) -> None:
        for _ in range(batches):
            self._fed += 1
            self._input.add([{"k": f"k{n}", "v": self._fed} for n in range(4)])

    def run(self) -> None:
        def keep(batch: object, number: int) -> None:
            rows = batch.collect()  # type: ignore[attr-defined]  # PySpark's stub of the function
            self.output[number] = {row["k"]: row["total"] for row in rows}

        query = (
            self.writer()
            .option("checkpointLocation", self.url)
            .foreachBatch(keep)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def writer(self) -> DataStreamWriter:
        """The query, not started."""
        sums = self._input.stream(self._spark).groupBy("k").agg(sf.sum("v").alias("total"))
        return sums.writeStream.outputMode("update")

    def check(self) -> None:
        assert self.output == self.totals(range(self._fed))

    def folder(self) -> Folder:
        return folder_at(self.url, storage_options=self._store.options)

    def forked(self, store: Store, url: str) -> Job:
        """The query of a fork, which reads the same files."""
        made = Job(self._spark, store, self._input.folder.parent)
        made.url, made._fed = url, self._fed
        return made

    def totals(self, batches: range) -> dict[int, dict[str, int]]:
        """Returns the output of some batches."""
        return {n: {f"k{k}": sum(range(n + 2)) for k in range(4)} for n in batches}


def test_query_survives_the_loss_of_its_server(
    spark: SparkSession,
    store: Store,
    shared_redis_server: RedisServer,
    options_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Marker file, copies, doctor, restore and rewind, each where the checkpoint is."""

    def command(name: str, *words: str) -> int:
        place = ["--url", shared_redis_server.url, "--checkpoint", job.url]
        return main([name, *place, "--storage-options", str(options_file), *words])

    job = Job(spark, store, tmp_path)
    job.feed(6)
    job.run()
    job.check()
    wait_until(
        lambda: [version_of(one) for one in copies_of(job.folder())][:1] == [COPIED],
        f"a copy of version {COPIED}",
    )
    assert command("doctor") == 0
    names = [item.name for item in (job.folder() / "state").items() or ()]
    assert [name for name in names if name.startswith("._redis_state")] == []
    with shared_redis_server.client() as client:
        client.flushdb()
    job.feed(1)
    with pytest.raises(Exception, match="REDIS_STATE_LOST"):
        job.run()
    # The start that failed is younger than three minutes.
    assert command("restore", "--yes", "--force") == 0
    assert "2 partitions were restored" in capsys.readouterr().out
    job.output.clear()
    job.run()
    assert command("doctor") == 0
    # The file source gives out in one batch what it had seen before.
    assert job.output[max(job.output)] == {f"k{k}": sum(range(8)) for k in range(4)}
    assert command("rewind", "--to-batch", "3", "--yes", "--force") == 0
    job.output.clear()
    job.run()
    assert job.output[max(job.output)] == {f"k{k}": sum(range(8)) for k in range(4)}
    assert command("doctor") == 0


def test_fork_goes_on_behind_its_batch(
    spark: SparkSession,
    store: Store,
    shared_redis_server: RedisServer,
    options_file: Path,
    tmp_path: Path,
) -> None:

    def command(*words: str) -> int:
        options = ["--storage-options", str(options_file)]
        return main([*words, "--url", shared_redis_server.url, *options])

    job = Job(spark, store, tmp_path)
    job.feed(5)
    job.run()
    to = f"{job.url}-fork"
    assert command("fork", job.url, "--at-batch", "2", "--to", to) == 0
    forked = job.forked(store, to)
    forked.run()
    assert forked.output == job.totals(range(3, 5))
    job.feed(1)
    for one in (job, forked):
        one.run()
        assert command("doctor", "--checkpoint", one.url) == 0
    job.output |= job.totals(range(5))
    assert job.output == job.totals(range(6))
    assert forked.output[5] == job.output[5]


@pytest.mark.parametrize("way", ["local to s3", "s3 to hdfs", "hdfs to local"])
def test_fork_in_another_file_system_goes_on(
    spark: SparkSession,
    s3_store: Store,
    hdfs_store: Store,
    shared_redis_server: RedisServer,
    tmp_path: Path,
    way: str,
) -> None:
    local = Store(f"file://{tmp_path}", {}, {}, None, str(tmp_path))
    stores = {"local": local, "s3": s3_store, "hdfs": hdfs_store}
    source, target = (stores[one] for one in way.split(" to "))
    job = Job(spark, source, tmp_path)
    job.feed(4)
    job.run()
    to = f"{target.url}/{tmp_path.name}/fork"
    made = redis_state.fork(
        shared_redis_server.url,
        job.url,
        to=to,
        at_batch=1,
        storage_options={"s3a://": s3_store.options, "hdfs://": hdfs_store.options},
    )
    assert (made.batch, made.version) == (1, 2)
    job.feed(1)
    forked = job.forked(target, to)
    forked.run()
    assert forked.output == job.totals(range(2, 5))


def test_batch_is_replayed_on_a_fork(
    spark: SparkSession, store: Store, shared_redis_server: RedisServer, tmp_path: Path
) -> None:
    """The checkpoint is in the file system, and the fork of the replay in the local one."""
    job = Job(spark, store, tmp_path)
    job.feed(4)
    job.run()
    with replay(
        spark,
        lambda _spark, _replay: job.writer(),
        batch=2,
        checkpoint=job.url,
        url=shared_redis_server.url,
        storage_options=store.options,
    ) as run:
        assert (run.input_rows, run.state.same) == (4, True)
