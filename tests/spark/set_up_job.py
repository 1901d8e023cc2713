"""A query of an application with another jar: `python -m tests.spark.set_up_job FOLDER URL JAR`.

It ends in the error that its user would read; JAR is a path, or empty for none.
"""

from __future__ import annotations

import sys
from pathlib import Path

import redis_state
from redis_state.spark.conf import JARS_CONF
from tests.support.spark_sessions import application
from tools.jvm import SHORT_LIVED


def main() -> None:
    folder, url, jar = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    settings: dict[str, str] = {"spark.driver.extraJavaOptions": " ".join(SHORT_LIVED)}
    redis_state.configure(settings, url=url)
    settings[JARS_CONF] = jar
    spark = application("set up", folder, settings, master="local[1]").getOrCreate()
    counts = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = (
        counts.groupBy("value")
        .count()
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .format("noop")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
