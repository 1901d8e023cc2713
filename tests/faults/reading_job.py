"""A driver to be killed: `python -m tests.faults.reading_job SCRATCH URL`.

Its query moves money between accounts, the same number of transfers in each batch, so that every
version says by itself whether it is whole: all balances together are 0, and all moves together are
`MOVES` for each batch. It goes on until it is killed, and after a restart where it was.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import redis_state
from tests.support.spark_sessions import two_executors

ACCOUNTS = 64
TRANSFERS = 100
MOVES = 2 * TRANSFERS
PARTITIONS = 4
NAME = "bank"


def session(scratch: Path, url: str) -> SparkSession:
    settings = {
        "spark.task.maxFailures": "40",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.executor.heartbeatInterval": "1s",
        "spark.storage.blockManagerHeartbeatTimeoutMs": "5s",
        "spark.network.timeoutInterval": "1s",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.streaming.stateStore.maintenanceInterval": "2s",
    }
    builder = two_executors("bank", scratch, settings)
    return redis_state.configure(
        builder, url=url, deadline="8s", versions_to_retain=20
    ).getOrCreate()


def balances(spark: SparkSession) -> DataFrame:
    """Balance of each account, and its number of transfers."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", TRANSFERS)
    n, amount = sf.col("value"), sf.col("value") % 50
    giver = sf.struct((n * 7919 % ACCOUNTS).alias("account"), (-amount).alias("amount"))
    taker = sf.struct(((n * 31 + 1) % ACCOUNTS).alias("account"), amount.alias("amount"))
    moves = source.load().select(sf.explode(sf.array(giver, taker)).alias("move")).select("move.*")
    return moves.groupBy("account").agg(
        sf.sum("amount").alias("balance"), sf.count("*").alias("moves")
    )


def main(scratch: Path, url: str) -> None:
    """Run the query until this process is killed."""
    frame = balances(session(scratch, url))
    writer = frame.writeStream.outputMode("update").format("noop").queryName(NAME)
    checkpoint = str(scratch / "checkpoint")
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
