"""Makes an archive of Spark's classes, with which each JVM of a test starts at half its CPU.

    python tools/class_archive.py FILE

Runs a short query on the Spark of this environment, and makes the JVM archive its loaded classes
(`-XX:ArchiveClassesAtExit`). `tools/jvm.py` passes the archive to drivers and executors. A JVM uses
the archive only if its JDK and its class path are exactly the same, and otherwise starts without
it. So an outdated archive does no harm. Applications with two executors have a home of their own
(tests/support/spark_sessions.py) and start without it. The archive never has classes of this
project: Spark loads the classes of `spark.jars` by a loader of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.jvm import SHORT_LIVED

_LIMIT_S = 600
_SETTINGS = (
    "spark.ui.enabled=false",
    "spark.driver.bindAddress=127.0.0.1",
    "spark.driver.host=127.0.0.1",
    "spark.sql.shuffle.partitions=1",
)


def make(archive: Path) -> None:
    """Writes the archive, which takes half a minute."""
    part = archive.with_name(f"{archive.name}.{os.getpid()}.part")
    options = " ".join((*SHORT_LIVED, f"-XX:ArchiveClassesAtExit={part}"))
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]"]
    for setting in _SETTINGS:
        command += ["--conf", setting]
    try:
        with tempfile.TemporaryDirectory() as scratch:
            done = subprocess.run(
                [*command, __file__, "--query", scratch],
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_SUBMIT_OPTS": options,
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
        if done.returncode or not part.is_file():
            raise SystemExit(f"{done.stdout}\nerror: no archive of Spark's classes was made")
        part.replace(archive)
    finally:
        part.unlink(missing_ok=True)


def query(scratch: Path) -> None:
    """Runs a stateful query with a join, which loads the classes of most query tests."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as sf

    spark = SparkSession.builder.getOrCreate()
    folder = scratch / "in"
    folder.mkdir()
    row = {"k": "a", "v": 1, "ts": "2024-01-01T00:00:00Z"}
    (folder / "rows.json").write_text(json.dumps(row))
    stream = spark.readStream.schema("k string, v long, ts timestamp").json(str(folder))
    timed = stream.withWatermark("ts", "1 minute")
    pairs = timed.alias("l").join(timed.alias("r"), sf.expr("l.k = r.k and l.ts = r.ts"))
    counts = stream.groupBy("k").agg(sf.sum("v"), sf.count("*"))
    for number, (frame, mode) in enumerate(((pairs, "append"), (counts, "update"))):
        writer = frame.writeStream.outputMode(mode).trigger(availableNow=True)
        started = (
            writer.option("checkpointLocation", str(scratch / str(number)))
            .foreachBatch(lambda batch, _: print(batch.collect()))
            .start()
        )
        started.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--query", folder]:
            query(Path(folder))
        case [file]:
            make(Path(file))
        case _:
            raise SystemExit(__doc__)
