"""A query with `redisMemory` below its state, whose files lie in a file system under test."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import fsspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import redis_state
from redis_state import keys
from redis_state.cli.main import main
from redis_state.files import Folder, folder_at
from redis_state.format.entry import segments_in
from redis_state.ids import PartitionId, StoreId
from redis_state.keys import tenant_of
from redis_state.places.moving import rows_of
from redis_state.recovery.marker import gen_of
from tests.file_systems.servers import Store
from tests.spark.streams import PREFIX, Input
from tests.spark.test_redis_memory import BOUND, PARTITIONS, SCHEMA, newest
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import kept
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
BOUND_OPTION = f"{BOUND >> 10}k"
OPTIONS = {"redisMemory": BOUND_OPTION, "copyEveryBatches": "0", "versionsToRetain": "200"}
RETAINED = "spark.sql.streaming.minBatchesToRetain"
AWS = {
    "AWS_ENDPOINT_URL": "endpoint_url",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
}
READER_S = 120
_READER = """
import json, sys
import redis_state
url, prefix, gen = sys.argv[1:]
with redis_state.connect(url, key_prefix=prefix) as reader:
    rows = reader.query(gen).operator(0).items()
    print(json.dumps([[*key.values(), *row.values()] for key, row in rows]))
"""

Rows = Sequence[Mapping[str, str]]
State = dict[str, tuple[str, int]]


class Expected:
    """Counts and greatest texts of what was fed, kept by plain Python."""

    def __init__(self) -> None:
        self.state: State = {}
        self.after: list[State] = []
        self.output: dict[int, State] = {}

    def add(self, rows: Rows) -> None:
        for row in rows:
            pad, count = self.state.get(row["k"], ("", 0))
            self.state[row["k"]] = (max(pad, row["pad"]), count + 1)
        self.output[len(self.after)] = {row["k"]: self.state[row["k"]] for row in rows}
        self.after.append(dict(self.state))


class Bounded:
    """The query, what it was fed, and what it gave out.

    Args:
        store: File system of the checkpoint.
        folder: Local folder of the input.
    """

    def __init__(
        self, spark: SparkSession, store: Store, server: RedisServer, folder: Path
    ) -> None:
        self.spark, self.store, self.server = spark, store, server
        self.url = f"{store.url}/{folder.name}/bounded"
        self.prefix = folder.name
        self.input = Input(folder / "input", SCHEMA)
        self.expected = Expected()
        self.output: dict[int, State] = {}
        self._options_file = folder / "storage.json"
        self._options_file.write_text(json.dumps(store.options))

    def feed(self, *batches: Rows) -> None:
        for rows in batches:
            self.input.add(rows)
            self.expected.add(rows)

    def writer(self, into: dict[int, State]) -> DataStreamWriter:
        """The query, not started; `into` gets the rows of each batch."""

        def keep(batch: DataFrame, number: int) -> None:
            into[number] = {row["k"]: (row["pad"], row["n"]) for row in batch.collect()}

        frame = newest([self.input.stream(self.spark)])
        return frame.writeStream.outputMode("update").foreachBatch(keep)

    def run(self) -> None:
        """Processes what there is."""
        self._run(self.url, self.output)

    def unbounded(self, folder: Path) -> dict[int, State]:
        """Returns the output of a query over the same input, all of whose state is in Redis."""
        output: dict[int, State] = {}
        with kept(self.spark, PREFIX + "redisMemory"):
            self.spark.conf.unset(PREFIX + "redisMemory")
            self._run(str(folder / "unbounded"), output)
        return output

    def _run(self, checkpoint: str, into: dict[int, State]) -> None:
        writer = self.writer(into).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()

    @property
    def gen(self) -> str:
        return gen_of(self.folder())

    def folder(self) -> Folder:
        return folder_at(self.url, storage_options=self.store.options)

    def ids(self) -> list[PartitionId]:
        of = StoreId(self.gen, 0, tenant=tenant_of(self.prefix))
        return [PartitionId(of, number) for number in range(PARTITIONS)]

    def in_files(self) -> int:
        """Returns the bytes of all segments that lie in files."""
        with self.server.client() as raw:
            return sum(
                one.place.bytes
                for id_ in self.ids()
                for one in segments_in(raw.hgetall(keys.meta(id_)))
                if one.place is not None
            )

    def file_states(self) -> set[str]:
        """Returns the states of all files of the query (docs/format.md, section 17)."""
        with redis_state.connect(self.server.url, key_prefix=self.prefix) as reader:
            return {row.state for id_ in self.ids() for row in rows_of(reader.client, id_)}

    def live(self) -> State:
        """Returns the newest rows, read live by another process."""
        command = [sys.executable, "-c", _READER, self.server.url, self.prefix, self.gen]
        found = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=READER_S
        )
        assert found.returncode == 0, found.stderr[-3000:]
        return {key: (pad, count) for key, pad, count in json.loads(found.stdout)}

    def at(self, batch: int) -> State:
        """Returns the rows after a batch, by Spark's reader of state."""
        frame = self.spark.read.format("statestore").option("batchId", batch).load(self.url)
        return {key: (pad, n) for key, pad, n in frame.select("key.*", "value.*").collect()}

    def check(self) -> None:
        """Compares all output and the newest rows."""
        assert self.output == self.expected.output
        self.check_live()

    def check_live(self) -> None:
        """Compares the newest rows, which the driver may confirm a moment late."""
        wait_until(lambda: self.live() == self.expected.state, "the rows of the newest batch")

    def places(self, *words: str) -> int:
        return self._main("places", self.gen, *words)

    def command(self, name: str, *words: str) -> int:
        return self._main(name, "--checkpoint", self.url, *words)

    def _main(self, *words: str) -> int:
        server = ["--url", self.server.url, "--key-prefix", self.prefix]
        return main([*words, *server, "--storage-options", str(self._options_file)])


@contextmanager
def reached(store: Store, variables: Callable[[str, str], None]) -> Iterator[None]:
    """Names the server to tools that get no options, and to processes that a test starts."""
    if store.root:
        for name, option in AWS.items():
            variables(name, str(store.options[option]))
        yield
        return
    before = dict(fsspec.config.conf.get("webhdfs", {}))
    variables("FSSPEC_WEBHDFS", json.dumps(store.options))
    fsspec.config.conf["webhdfs"] = dict(store.options)
    yield
    fsspec.config.conf["webhdfs"] = before


@contextmanager
def bound(job: Bounded, **more: str | None) -> Iterator[None]:
    """Sets the options of a bounded query, which keeps its versions.

    Args:
        more: Options to set or, where they are ``None``, to leave out.
    """
    spark, options = job.spark, {**OPTIONS, "keyPrefix": job.prefix, **more}
    with kept(spark, *(PREFIX + name for name in options), RETAINED):
        for name, value in options.items():
            if value is None:
                spark.conf.unset(PREFIX + name)
            else:
                spark.conf.set(PREFIX + name, value)
        spark.conf.set(RETAINED, OPTIONS["versionsToRetain"])
        yield
