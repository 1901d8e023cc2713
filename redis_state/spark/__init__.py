"""The Spark edge: the one place that imports pyspark, and only when a function needs it."""

from redis_state.spark.conf import configure
from redis_state.spark.pandas_with_state import GroupState, apply_in_pandas_with_state

__all__ = ["GroupState", "apply_in_pandas_with_state", "configure"]
