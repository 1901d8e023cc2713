"""Streaming job of docker/everything: orders by carrier, with their state in Redis.

python job.py URL CHECKPOINT
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import redis_state

url, checkpoint = sys.argv[1:]
builder = SparkSession.builder.appName("orders").master("local[2]")
builder = builder.config("spark.sql.shuffle.partitions", 4).config("spark.ui.enabled", False)
spark = redis_state.configure(builder, url=url, check=True).getOrCreate()
spark.sparkContext.setLogLevel("WARN")
orders = spark.readStream.format("rate").option("rowsPerSecond", 20).load()
query = (
    orders.selectExpr("concat('carrier-', value % 10) AS carrier", "value AS amount")
    .groupBy("carrier")
    .agg({"amount": "sum", "*": "count"})
    .toDF("carrier", "amount", "orders")
    .writeStream.queryName("orders")
    .outputMode("update")
    .format("noop")
    .option("checkpointLocation", checkpoint)
    .trigger(processingTime="2 seconds")
    .start()
)
query.awaitTermination()
