"""A client of Spark Connect, with a local server: counts words, twice over one checkpoint.

python connect_job.py FOLDER REDIS_URL
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import redis_state


def main(folder: Path, url: str) -> None:
    builder = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.connect.grpc.binding.port", "0")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )
    spark = redis_state.configure(builder, url=url).getOrCreate()
    source = folder / "input"
    source.mkdir()
    batches = []
    for number, words in enumerate((["a", "b", "a"], ["b", "c"])):
        text = "".join(json.dumps({"word": word}) + "\n" for word in words)
        (source / f"{number}.json").write_text(text)
        query = (
            spark.readStream.schema("word string")
            .json(str(source))
            .groupBy("word")
            .count()
            .writeStream.outputMode("complete")
            .format("memory")
            .queryName("counts")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        progress = query.lastProgress
        assert progress is not None
        custom = progress.stateOperators[0].customMetrics
        rows = {row["word"]: row["count"] for row in spark.table("counts").collect()}
        batches.append({"rows": rows, "written": custom.get("redisStateRowsWritten")})
    print(json.dumps({"session": type(spark).__module__, "batches": batches}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
