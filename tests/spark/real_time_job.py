"""Counts words in real-time mode, killed and started once, and prints what came out.

python real_time_job.py FOLDER REDIS_URL
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.real_time import MemoryStream, appending, session
from tests.support.waiting import wait_until

ROUNDS = ((["a", "b", "a"], {"a": 2, "b": 1}), (["b", "c"], {"a": 2, "b": 2, "c": 1}))


def highest(path: Path) -> dict[str, int]:
    """Returns the highest count of each word; a batch that runs again begins with smaller ones."""
    found: dict[str, int] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        found[row["value"]] = max(row["count"], found.get(row["value"], 0))
    return found


def committed(query: StreamingQuery, words: int) -> bool:
    """Returns whether a batch ended with that many words in the state."""
    if (error := query.exception()) is not None:
        raise error
    progress = query.lastProgress
    return progress is not None and progress.stateOperators[0].numRowsTotal == words


def main(folder: Path, url: str) -> None:
    spark = session(folder, url)
    stream = MemoryStream(spark)
    out = folder / "rows.txt"
    writer: Any = (  # its stub lacks real time
        stream.frame.groupBy("value")
        .count()
        .writeStream.outputMode("update")
        .foreach(appending(out))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    metrics: set[str] = set()
    for words, expected in ROUNDS:
        query = writer.trigger(realTime="2 seconds").start()
        stream.add(words)
        wait_until(
            lambda query=query, expected=expected: (  # type: ignore[misc]  # bound at once
                committed(query, len(expected)) and highest(out) == expected
            ),
            "the counts of a batch that ended",
        )
        progress = query.lastProgress
        assert progress is not None
        metrics |= set(progress.stateOperators[0].customMetrics)
        query.stop()
        print(json.dumps({"counts": highest(out), "metrics": sorted(metrics)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
