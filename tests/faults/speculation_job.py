"""Stateful tasks that get speculative copies: `python speculation_job.py FOLDER URL BATCHES`.

In each batch the first attempt of one task commits its state and then stands still until Spark has
run a copy of it. Input and output are those of `job.py`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from job import session
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.functions import count, udf
from pyspark.sql.functions import sum as sum_of
from pyspark.sql.types import LongType


def late(total: int) -> int:
    """The total. In complete mode the state is committed before the first row comes here."""
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0 and context.partitionId() == 1:
        time.sleep(300)  # Spark kills the task when its copy is done
    return total


def main(folder: Path, url: str, batches: int) -> None:
    spark = session(folder, url)
    spark.sparkContext.setLogLevel("ERROR")

    def keep(batch: DataFrame, batch_id: int) -> None:
        rows = sorted([row["k"], row["total"], row["rows"]] for row in batch.collect())
        with (folder / "output.jsonl").open("a") as output:
            output.write(json.dumps({"batch": batch_id, "rows": rows}) + "\n")

    reader = spark.readStream.schema("k string, v long").option("maxFilesPerTrigger", 1)
    counts = (
        reader.json(str(folder / "input"))
        .groupBy("k")
        .agg(sum_of("v").alias("total"), count("*").alias("rows"))
        .withColumn("total", udf(late, LongType())("total"))
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
