"""A bounded query on two executors, to be killed: `python -m tests.file_systems.bounded_job`.

    FOLDER URL CHECKPOINT PREFIX SETTINGS

The query reads FOLDER/input and writes one file a batch into FOLDER/output: its number and rows. It
ends once FOLDER/enough exists and all input is processed. SETTINGS are those of Spark, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from pathlib import Path

from pyspark.sql import DataFrame

import redis_state
from tests.file_systems.bounded import BOUND_OPTION
from tests.spark.streams import Input
from tests.spark.test_redis_memory import PARTITIONS, SCHEMA, newest
from tests.support.spark_sessions import two_executors

OUTPUT = "output"
_PAUSE_S = 0.2


def main() -> None:
    folder, url, checkpoint, prefix = Path(sys.argv[1]), *sys.argv[2:5]
    settings = {
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
        "spark.task.maxFailures": "20",
        **json.loads(sys.argv[5]),
    }
    builder = redis_state.configure(
        two_executors("bounded", folder, settings),
        url=url,
        key_prefix=prefix,
        redis_memory=BOUND_OPTION,
        versions_to_retain=5,
    )
    spark = builder.getOrCreate()

    (folder / OUTPUT).mkdir(exist_ok=True)

    def keep(batch: DataFrame, number: int) -> None:
        rows = [[row["k"], row["pad"], row["n"]] for row in batch.collect()]
        # A kill leaves no half of an output.
        begun = folder / OUTPUT / f"{number}-{uuid.uuid4().hex}"
        begun.write_text(json.dumps([number, rows]))
        begun.rename(begun.with_suffix(".json"))

    frame = newest([Input(folder / "input", SCHEMA).stream(spark)])
    writer = frame.writeStream.outputMode("update").foreachBatch(keep)
    query = writer.option("checkpointLocation", checkpoint).start()
    while not (folder / "enough").exists():
        if not query.isActive:
            query.awaitTermination()
        time.sleep(_PAUSE_S)
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
