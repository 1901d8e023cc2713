"""The Spark edge: the one place that imports pyspark, and only when a function needs it."""

from redis_state.spark.conf import configure

__all__ = ["configure"]
