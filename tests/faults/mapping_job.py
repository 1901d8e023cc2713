"""A stream through `map_partitions_with_state_store`, to be killed: `mapping_job.py FOLDER URL`.

It reads FOLDER/input one file a batch, and writes FOLDER/output/<batch>.json whole, so that a batch
that is run again replaces what it wrote. Where FOLDER/stops/<place> is a file, the process that
comes there first writes its process id into FOLDER/stopped/<place> and waits to be killed.
Places are `rows-<batch>`, after half the rows of a partition, and `sink-<batch>`, after the batch
was evaluated and before it is written.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

import redis_state
from tests.faults.job import session

STORE = "fault job"
PARTITIONS = 2


def stop_at(folder: Path, place: str) -> None:
    if not (folder / "stops" / place).exists():
        return
    try:
        descriptor = os.open(folder / "stopped" / place, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    os.write(descriptor, f"{os.getpid()}\n".encode())
    os.close(descriptor)
    while True:
        signal.pause()


def counting(folder: Path) -> Callable[..., Iterator[dict[str, Any]]]:
    def count(
        store: redis_state.BatchStore, rows: Iterator[dict[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        touched = set()
        for number, row in enumerate(rows):
            total, seen = store.get(row["k"]) or (0, 0)
            store.put(row["k"], (total + row["v"], seen + 1))
            touched.add(row["k"])
            if number == 5:
                stop_at(folder, f"rows-{row['batch']}")
        for key in sorted(touched):
            total, seen = store.get(key)
            yield {"k": key, "total": total, "rows": seen}

    return count


def main(folder: Path, url: str) -> None:
    spark = session(folder, url)
    spark.sparkContext.setLogLevel("ERROR")

    def write(mapped: DataFrame, batch_id: int) -> None:
        rows = sorted([row["k"], row["total"], row["rows"]] for row in mapped.collect())
        stop_at(folder, f"sink-{batch_id}")
        part = folder / "output" / f"{batch_id}.part"
        part.write_text(json.dumps(rows))
        part.replace(folder / "output" / f"{batch_id}.json")

    reader = spark.readStream.schema("batch int, k string, v long")
    query = (
        reader.option("maxFilesPerTrigger", 1)
        .json(str(folder / "input"))
        .writeStream.foreachBatch(
            redis_state.foreach_batch_with_state_store(
                counting(folder),
                write,
                store=STORE,
                key="k",
                schema="k string, total long, rows long",
                partitions=PARTITIONS,
            )
        )
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
