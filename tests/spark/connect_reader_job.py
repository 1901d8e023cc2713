"""A client of Spark Connect, with a local server: reads the state of a query while it goes on.

    python connect_reader_job.py FOLDER REDIS_URL

The last line of the output says, as JSON, what it read.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import redis_state
from tests.spark.connect_job import INPUT, counts, ended, session

QUERY = "counts"
LIMIT_S = 60


def add(folder: Path, number: int, words: list[str]) -> DataFrame:
    """The words of all batches as a stream, with those of one more batch."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps({"word": word}) + "\n" for word in words)
    (folder / f"{number}.json").write_text(text)
    return spark.readStream.schema("word string").json(str(folder))


def run(frame: DataFrame, checkpoint: Path, name: str) -> None:
    """Writes the new rows of a stream into a table."""
    writer = frame.writeStream.format("json").option("path", str(checkpoint / "rows"))
    writer = writer.option("checkpointLocation", str(checkpoint / name))
    ended(writer.trigger(availableNow=True).start())


def confirmed(url: str, batch: int) -> None:
    """Waits until the newest batch of the query can be seen."""
    until = time.monotonic() + LIMIT_S
    with redis_state.connect(url) as reader:
        while reader.query(QUERY).status().confirmed_batch != batch:
            if time.monotonic() > until:
                raise SystemExit("the batch was not confirmed")
            time.sleep(0.1)


def read(kind: str, checkpoint: Path) -> list[Any]:
    rows = spark.read.schema(kind).json(str(checkpoint / "rows")).collect()
    return sorted([*row] for row in rows)


def main(folder: Path, url: str) -> None:
    options = {"url": url, "query": QUERY}
    changes = "batch long, change string, word string, count long"
    for number, batch in enumerate(INPUT):
        writer = counts(add(folder / "input", number, batch))
        writer = writer.option("checkpointLocation", str(folder / "counts"))
        ended(writer.trigger(availableNow=True).start())
        confirmed(url, number)
        feed = spark.readStream.format("redis_state").options(**options).option("since", "start")
        flat = feed.load().select("batch", "change", "key.word", "value.count")
        run(flat, folder / "feed", "checkpoint")
    table = spark.read.format("redis_state").options(**options).load()
    words = spark.createDataFrame([("b",), ("z",)], "word string")
    stream = add(folder / "asked", 0, ["b", "z"])
    looked_up = redis_state.lookup(stream, query=QUERY, on="word", url=url)
    run(looked_up, folder / "looked up", "checkpoint")
    joined = redis_state.lookup(words, query=QUERY, on="word", url=url)
    found = {
        "session": type(spark).__module__,
        "table": sorted([*row] for row in table.collect()),
        "looked up": sorted([*row] for row in joined.collect()),
        "looked up in a stream": read("word string, count long", folder / "looked up"),
        "changes": read(changes, folder / "feed"),
    }
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    spark: SparkSession = session(Path(sys.argv[1]), sys.argv[2])
    main(Path(sys.argv[1]), sys.argv[2])
