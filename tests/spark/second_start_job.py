"""A second start of a query: `python -m tests.spark.second_start_job FOLDER URL FORMAT`.

Each line on its input starts the query over FOLDER/input/events once more, with the checkpoint
FOLDER/checkpoints/counts. It says `batch <n>` before it looks at a batch and `rows <n>` behind it,
and waits for a line each time. In the end it says `failed`, with the error as a JSON text, or
`done`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import redis_state
from tests.spark.streams import FORMAT, Input
from tests.spark.test_checkpoints import NAME, counted
from tools.jvm import SHORT_LIVED


def session(folder: Path, url: str, checkpoint_format: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("redis-state second start")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", " ".join(SHORT_LIVED))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse of the second"))
        .config(FORMAT, checkpoint_format)
    )
    return redis_state.configure(builder, url=url, deadline="8s").getOrCreate()


def say(line: str) -> None:
    print(line, flush=True)


def wait_behind(line: str) -> None:
    say(line)
    sys.stdin.readline()


def look_at(batch: DataFrame, batch_id: int) -> None:
    wait_behind(f"batch {batch_id}")
    batch.collect()
    wait_behind(f"rows {batch_id}")


def main() -> None:
    folder, url, checkpoint_format = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    spark = session(folder, url, checkpoint_format)
    spark.sparkContext.setLogLevel("ERROR")
    say("ready")
    for _ in sys.stdin:
        frame = counted(Input(folder / "input" / "events", "k string, v long"), spark)
        query = (
            frame.writeStream.outputMode("complete")
            .option("checkpointLocation", str(folder / "checkpoints" / NAME))
            .foreachBatch(look_at)
            .start()
        )
        try:
            query.awaitTermination()
            say("done")
        except StreamingQueryException as error:
            say(f"failed {json.dumps(str(error))}")


if __name__ == "__main__":
    main()
