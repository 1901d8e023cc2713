"""A query whose state moves at its start: `adopting_job.py INPUT CHECKPOINT URL OUTPUT CONFS`.

It processes what there is in INPUT and appends to OUTPUT one line a batch: its number and its rows.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import redis_state
from tests.spark.streams import Input
from tests.spark.test_operators import EVENTS
from tests.upgrades.job import windows


def main(source: str, checkpoint: str, url: str, output: str, confs: str) -> None:
    builder = SparkSession.builder.appName("redis-state adopting")
    for name, value in json.loads(confs).items():
        builder = builder.config(name, value)
    spark = redis_state.configure(builder, url=url, adopt=True).getOrCreate()

    def keep(batch: DataFrame, batch_id: int) -> None:
        rows = sorted(str(row) for row in batch.collect())
        with Path(output).open("a") as out:
            out.write(json.dumps([batch_id, rows]) + "\n")

    query = (
        windows([Input(Path(source), EVENTS).stream(spark)])
        .writeStream.outputMode("append")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(keep)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
