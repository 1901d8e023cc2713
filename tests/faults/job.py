"""A driver to be killed: `python -m tests.faults.job SCRATCH URL`, told by lines on its input.

`run FOLDER FORMAT KINDS FAMILIES` starts one query for each family, all at once, over FOLDER/input,
with checkpoints below FOLDER/checkpoints, of the given checkpoint format. A query appends to
FOLDER/output/<family>.jsonl one line a batch: its number and its sorted rows. A query that ends
with an error of one of KINDS is started again and leaves a line in FOLDER/restarts. In the end
there is FOLDER/done-<process>, or FOLDER/failed-<process> with the errors of what could not go on.

Where FOLDER/stops/<place> is a file, the process that comes there first writes its process id into
FOLDER/stopped/<place> and waits to be killed. Places are `rows-<batch>`, after half the rows of a
partition of `map_partitions`, and `sink-<family>-<batch>`, when the batch was evaluated and nothing
of it is written.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import redis_state
from tests.faults.families import COUNTED, PARTITIONS, QUERIES, counting, processed
from tests.faults.feed import SCHEMA
from tests.support.spark_sessions import two_executors

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
TTL = "spark.sql.streaming.stateStore.redis.stateTtl"
MORE = "REDIS_STATE_FAULTS_MORE"
"""Variable with more of the application as JSON: `settings` of Spark, `options` of redis-state, and
`ttl` with a time to live for each of some families."""
DEADLINE_S = 8
SOCKET_TIMEOUT_S = 2
VERSIONS_TO_RETAIN = 2  # so that maintenance removes, too
EXECUTOR_LOST_S = 5
# Spark waits for ten seconds for a Python process, whatever its conf says.
SPARK_BUSY = "Python worker failed to connect back"
BUSY_PAUSE_S = 10  # in which the process that came too late is gone


def more(of: str) -> dict[str, str]:
    """Returns a part of the variable, empty if it is not set."""
    found: dict[str, dict[str, str]] = json.loads(os.environ.get(MORE, "{}"))
    return found.get(of, {})


def store_name(folder: Path) -> str:
    """The store of a run's `map_partitions`."""
    return f"kills {folder.name}"


def session(scratch: Path, url: str) -> SparkSession:
    settings = {
        # A stopped executor counts as lost, and is replaced, while it may still wake up.
        "spark.executor.heartbeatInterval": "1s",
        "spark.storage.blockManagerHeartbeatTimeoutMs": f"{EXECUTOR_LOST_S}s",
        "spark.network.timeoutInterval": "1s",
        # Tries enough for the faults, and few enough for what fails each time to show.
        "spark.task.maxFailures": "40",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.python.authenticate.socketTimeout": "270s",
        "spark.scheduler.mode": "FAIR",
        # A young JVM compiles code for longer than it takes to do without.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
        "spark.sql.streaming.stopTimeout": "60s",
    }
    return redis_state.configure(
        two_executors("kills", scratch, settings | more("settings")),
        url=url,
        deadline=f"{DEADLINE_S}s",
        socket_timeout=f"{SOCKET_TIMEOUT_S}s",
        versions_to_retain=VERSIONS_TO_RETAIN,
        **more("options"),  # type: ignore[arg-type]  # options are given by name, as texts
    ).getOrCreate()


def stop_at(folder: Path, place: str) -> None:
    if not (folder / "stops" / place).exists():
        return
    try:
        descriptor = os.open(folder / "stopped" / place, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    os.write(descriptor, f"{os.getpid()}\n".encode())
    os.close(descriptor)
    threading.Event().wait()


def append_line(path: Path, line: object) -> None:
    """One write, so that lines of two processes do not mix; on disk before it returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Run:
    """Queries of some families over one folder."""

    def __init__(
        self, spark: SparkSession, folder: Path, kinds: list[str], families: list[str]
    ) -> None:
        self._spark = spark
        self._families = families
        self._folder = folder
        self._kinds = kinds
        self._failures: list[str] = []

    def all(self) -> None:
        """Runs every query to its end."""
        threads = [threading.Thread(target=self._one, args=(name,)) for name in self._families]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        name = "failed" if self._failures else "done"
        part = self._folder / f".{name}"
        part.write_text("\n".join(self._failures))
        part.replace(self._folder / f"{name}-{os.getpid()}")

    def _one(self, family: str) -> None:
        try:
            while not self._ends(family):
                pass
        except Exception as error:  # noqa: BLE001 - whatever it is, the rig has to hear of it
            self._failures.append(f"{family}: {error}")

    def _ends(self, family: str) -> bool:
        try:
            query = QUERIES[family]
            reader = self._session(family).readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
            frame = query.build(reader.json(str(self._folder / "input")))
            if family == "transform_with_state":
                frame = processed(frame, f"{store_name(self._folder)} processor")
            writer = frame.writeStream.outputMode(query.mode).foreachBatch(self._sink(family))
            checkpoint = self._folder / "checkpoints" / family
            started = (
                writer.option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            started.awaitTermination()
        except StreamingQueryException as error:
            text = str(error)
            found = next((kind for kind in self._kinds if kind in text), None)
            if found is None:
                raise
            append_line(self._folder / "restarts", [family, found])
            if found == SPARK_BUSY:
                threading.Event().wait(BUSY_PAUSE_S)
            return False
        return True

    def _session(self, family: str) -> SparkSession:
        """A session of its own for a family whose rows have a time to live."""
        ttl = more("ttl").get(family)
        if ttl is None:
            return self._spark
        session = self._spark.newSession()
        session.conf.set(FORMAT, str(self._spark.conf.get(FORMAT)))
        session.conf.set(TTL, ttl)
        return session

    def _sink(self, family: str) -> Callable[[DataFrame, int], None]:
        write = partial(self._write, family)
        if family != "map_partitions":
            return write
        return redis_state.foreach_batch_with_state_store(
            counting(partial(stop_at, self._folder)),
            write,
            store=store_name(self._folder),
            key="k",
            schema=COUNTED,
            partitions=PARTITIONS,
        )

    def _write(self, family: str, batch: DataFrame, batch_id: int) -> None:
        rows = sorted((list(row) for row in batch.collect()), key=str)
        stop_at(self._folder, f"sink-{family}-{batch_id}")
        append_line(self._folder / "output" / f"{family}.jsonl", {"batch": batch_id, "rows": rows})


def main(scratch: Path, url: str) -> None:
    spark = session(scratch, url)
    spark.sparkContext.setLogLevel("ERROR")
    for line in sys.stdin:
        match line.rstrip("\n").split("\t"):
            case ["run", folder, number, kinds, families]:
                spark.conf.set(FORMAT, number)
                run = Run(spark, Path(folder), kinds.split(","), families.split(","))
                threading.Thread(target=run.all, daemon=True).start()
            case words:
                raise SystemExit(f"what is {words}?")
    # Who started it is gone. Queries may wait at a place for ever; the JVM ends with this process.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
