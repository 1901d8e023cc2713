"""Queries that take turns, each with its bytes in other places."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from tests.bench.workloads import CHANGELOG, PARTITIONS, PROVIDER, PROVIDERS
from tests.spark.streams import PREFIX
from tests.support.memory_sampler import SCRIPT

SCHEME = "slow"
SLOW_CLASS = "org.apache.spark.sql.redisstate.bench.SlowFileSystem"
REQUEST_MS = "redisstate.test.slow.ms"
SHARE_MIN = (1 << 20) + (64 << 10)
BOUND_PART = 20
_MADE_ROOM_S = 120
_DISK = "4g"


@dataclass(frozen=True, slots=True)
class Place:
    """Location of a query's state.

    Attributes:
        title: Cell of the table.
        name: Also the option `keyPrefix` of the query.
        provider: A name of `PROVIDERS`.
        is_bounded: Whether it has the option `redisMemory`.
        is_slow: Whether a request to its folder takes 20 ms.
        has_disk: Whether it has the option `localDisk`.
    """

    title: str
    name: str
    provider: str = "redis"
    is_bounded: bool = False
    is_slow: bool = False
    has_disk: bool = False

    @property
    def is_near(self) -> bool:
        """True if the disk of this machine has all that leaves Redis."""
        return not self.is_slow or self.has_disk


ALL_IN_REDIS = Place("all in Redis", "all")
PLACES = (
    ALL_IN_REDIS,
    Place("bound, folder on the local disk", "near", is_bounded=True),
    Place("bound, folder of 20 ms", "far", is_bounded=True, is_slow=True),
    Place(
        "bound, folder of 20 ms, `localDisk`", "disk", is_bounded=True, is_slow=True, has_disk=True
    ),
    Place("RocksDB with change log", "rocksdb", provider="rocksdb"),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Figures of a batch: its time, and sums of all stores."""

    ms: float
    reads: int
    hits: int
    round_trips: int
    rows: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A query over rows with a key `k`.

    Attributes:
        is_distinct: Whether it drops duplicates; otherwise it aggregates.
        texts: Number of 128 random letters that each row of the state has.
    """

    is_distinct: bool
    texts: int

    def of(self, rows: DataFrame) -> DataFrame:
        """Returns the rows that the query writes."""
        if self.is_distinct:
            text = self._text("k")
            return rows.select(
                sf.concat(sf.col("k").cast("string"), text).alias("k")
            ).dropDuplicates()
        text = self._text("k", "v")
        return rows.groupBy("k").agg(
            sf.sum("v").alias("v"), sf.count("*").alias("n"), sf.max(text).alias("p")
        )

    def _text(self, *of: str) -> Any:
        seeds = [sf.concat_ws("-", *of, sf.lit(number)) for number in range(self.texts)]
        return sf.concat(sf.lit(""), *(sf.sha2(seed, 512) for seed in seeds))


@dataclass(slots=True)
class Lane:
    """One query; it is fed file by file."""

    spark: SparkSession
    folder: Path
    place: Place
    shape: Shape
    client: redis.Redis
    bound: int = 0
    _fed: int = 0
    _query: StreamingQuery | None = field(default=None)

    @property
    def prefix(self) -> str:
        """The option `keyPrefix`."""
        return f"{'distinct' if self.shape.is_distinct else 'counts'}-{self.place.name}"

    def fill(self, files: Sequence[Path]) -> None:
        """Writes the first rows: with a bound, a batch for each file, otherwise one batch."""
        (self.folder / "in").mkdir(parents=True)
        if self.place.is_bounded:
            self._start()
            for file in files:
                self._add(file)
                self._running().processAllAvailable()
        else:
            for file in files:
                self._add(file)
            self._start()
            self._running().processAllAvailable()

    def restart(self) -> None:
        """Starts the query anew: its stores are opened from Redis and files."""
        self._running().stop()
        self._start()

    def files(self) -> int:
        """Number of files with state of the query."""
        return sum(1 for _ in (self.folder / "segments").rglob("*.seg"))

    def _bounds(self) -> Mapping[str, str]:
        if not self.place.is_bounded:
            return {}
        scheme = SCHEME if self.place.is_slow else "file"
        options = {
            "redisMemory": f"{self.bound}b",
            "placesFolder": f"{scheme}://{self.folder / 'segments'}",
        }
        if self.place.has_disk:
            # A process has one local disk, which the queries of all shapes use.
            disk = self.folder.parent.parent / "local-disk"
            options |= {"localDisk": _DISK, "localDiskFolder": str(disk)}
        return options

    def wait_for_room(self) -> None:
        """Waits until maintenance has moved what is above the bound."""
        until = time.monotonic() + _MADE_ROOM_S
        while self.used() > self.bound:
            if time.monotonic() > until:
                raise SystemExit(f"{self.prefix} is not below its bound after {_MADE_ROOM_S} s")
            time.sleep(1)

    def used(self) -> int:
        """Bytes of the state in Redis, by the server's count."""
        return int(self.client.eval(SCRIPT, 0, f"{{{self.prefix}:rs:*"))

    def feed(self, file: Path) -> Batch:
        """Runs one batch."""
        self._add(file)
        query = self._running()
        query.processAllAvailable()
        progress = next(p for p in reversed(query.recentProgress) if p["numInputRows"] > 0)
        operator = progress["stateOperators"][0]
        custom: Mapping[str, int] = operator["customMetrics"]
        return Batch(
            ms=float(progress["durationMs"]["triggerExecution"]),
            reads=int(custom.get("redisStateFileReads", 0)),
            hits=int(custom.get("redisStateDiskHits", 0)),
            round_trips=int(custom.get("redisStateRoundTrips", 0)),
            rows=int(operator["numRowsTotal"]),
        )

    def _add(self, file: Path) -> None:
        copy = self.folder / "staged.parquet"
        shutil.copyfile(file, copy)
        copy.rename(self.folder / "in" / f"{self._fed:05d}.parquet")
        self._fed += 1

    def digest(self) -> str:
        """Digest of the whole state by Spark's own reader."""
        with self._options({"keyPrefix": self.prefix}):
            frame = self.spark.read.format("statestore").load(str(self.folder / "check"))
            # The value of a deduplication has no meaning.
            of = ["key.*"] if self.shape.is_distinct else ["key.*", "value.*"]
            hashed = sf.xxhash64(*of).cast("decimal(38,0)")
            return str(frame.select(sf.count("*"), sf.sum(hashed)).collect())

    def close(self) -> None:
        """Ends the query."""
        self._running().stop()
        shutil.rmtree(self.folder)

    def _running(self) -> StreamingQuery:
        assert self._query is not None
        return self._query

    def _start(self) -> None:
        conf = self.spark.conf
        conf.set(PROVIDER, PROVIDERS[self.place.provider])
        conf.set(CHANGELOG, "true")
        with self._options({**self._bounds(), "keyPrefix": self.prefix}):
            rows = self.spark.readStream.schema("k long, v long").parquet(str(self.folder / "in"))
            self._query = (
                self.shape.of(rows)
                .writeStream.outputMode("append" if self.shape.is_distinct else "update")
                .format("noop")
                .option("checkpointLocation", str(self.folder / "check"))
                .trigger(processingTime="0 seconds")
                .start()
            )

    @contextmanager
    def _options(self, options: Mapping[str, str]) -> Iterator[None]:
        for name, text in options.items():
            self.spark.conf.set(PREFIX + name, text)
        yield
        for name in options:
            self.spark.conf.unset(PREFIX + name)


def be_slow(spark: SparkSession, ms: int) -> None:
    """Sets the time of a request to the slow folders."""
    assert spark.sparkContext._jvm is not None
    spark.sparkContext._jvm.java.lang.System.setProperty(REQUEST_MS, str(ms))


def least_bound() -> int:
    """Least value of `redisMemory` for a query of one operator."""
    return PARTITIONS * SHARE_MIN


def slow_classes(spark_minor: str) -> Path:
    """Folder with the class of the slow file system."""
    module = Path(__file__).resolve().parents[3] / "jvm-adapter" / f"spark-{spark_minor}"
    found = module / "target" / "test-classes"
    name = f"{SLOW_CLASS.replace('.', '/')}.class"
    if not (found / name).is_file():
        raise SystemExit(f"{found / name} is missing: `make jvm-test-build` builds it")
    return found


def copy_classes(spark_minor: str, to: Path) -> Path:
    """Copies the slow file system alone, without what else tests have on their class path."""
    package = Path(SLOW_CLASS.replace(".", "/")).parent
    target = to / "classes"
    (target / package).mkdir(parents=True)
    for one in (slow_classes(spark_minor) / package).glob("SlowFileSystem*.class"):
        shutil.copy(one, target / package / one.name)
    return target
