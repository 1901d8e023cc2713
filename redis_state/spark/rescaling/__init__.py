"""Another number of partitions for a query's state."""

from redis_state.spark.rescaling.checkpoint import rescale
from redis_state.spark.rescaling.store import StoreRescale, rescale_store

__all__ = ["StoreRescale", "rescale", "rescale_store"]
