"""A streaming job in a process of its own, to be killed: `python job.py FOLDER REDIS_URL BATCHES`.

It reads FOLDER/input one file a batch, and appends to FOLDER/output.jsonl one line a batch:
the batch's number and the whole result so far. It ends when BATCHES batches are done.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count
from pyspark.sql.functions import sum as sum_of

import redis_state


def spark_home(folder: Path) -> Path:
    """Links to PySpark's own files: the workers write into the home that they are given."""
    home = folder / "spark"
    if not home.exists():
        home.mkdir()
        for path in Path(pyspark.__file__).parent.iterdir():
            if path.name != "work":
                (home / path.name).symlink_to(path)
    return home


def session(folder: Path, url: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(spark_home(folder))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .appName("redis-state fault job")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "768m")
        .config("spark.executor.cores", "1")
        .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.task.maxFailures", "20")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "2s")
    )
    return redis_state.configure(builder, url=url, deadline="10s").getOrCreate()


def main(folder: Path, url: str, batches: int) -> None:
    spark = session(folder, url)
    spark.sparkContext.setLogLevel("ERROR")

    def keep(batch: DataFrame, batch_id: int) -> None:
        rows = sorted([row["k"], row["total"], row["rows"]] for row in batch.collect())
        with (folder / "output.jsonl").open("a") as output:
            output.write(json.dumps({"batch": batch_id, "rows": rows}) + "\n")
            output.flush()
            os.fsync(output.fileno())

    reader = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1)
    counts = (
        reader.json(str(folder / "input"))
        .groupBy("k")
        .agg(sum_of("v").alias("total"), count("*").alias("rows"))
    )
    query = (
        counts.writeStream.outputMode("complete")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .foreachBatch(keep)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    last = sorted(int(path.name) for path in (folder / "checkpoint/commits").glob("[0-9]*"))[-1]
    if last != batches - 1:
        raise SystemExit(f"the last batch is {last}, not {batches - 1}")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
