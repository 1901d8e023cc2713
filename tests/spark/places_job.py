"""Batches of one store on two executors: `python -m tests.spark.places_job FOLDER URL`.

Says for each batch, in a line of JSON, in which Python worker each partition was.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

import redis_state
from tests.support.spark_sessions import two_executors

BATCHES = 5
PARTITIONS = 4


def session(folder: Path, url: str) -> SparkSession:
    settings = {
        # On a busy machine a task may have to wait for its executor.
        "spark.locality.wait": "60s",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }
    return redis_state.configure(two_executors("places", folder, settings), url=url).getOrCreate()


def count(
    store: redis_state.BatchStore, rows: Iterator[dict[str, int]]
) -> Iterator[dict[str, int]]:
    for row in rows:
        store.put(row["id"], (store.get(row["id"]) or 0) + 1)
    seen = sum(value for _, value in store.iterator())
    yield {"partition": store.id.partition_id, "worker": os.getpid(), "seen": seen}


def main() -> None:
    folder, url = Path(sys.argv[1]), sys.argv[2]
    spark = session(folder, url)
    for number in range(BATCHES):
        counted = redis_state.map_partitions_with_state_store(
            spark.range(100),
            count,
            store="places",
            batch_id=number,
            key="id",
            schema="partition int, worker long, seen long",
            partitions=PARTITIONS,
        )
        found = counted.collect()
        counted.verify_committed()
        print(
            json.dumps(
                {
                    "seen": sum(row["seen"] for row in found),
                    "workers": {row["partition"]: row["worker"] for row in found},
                }
            ),
            flush=True,
        )
    spark.stop()


if __name__ == "__main__":
    main()
