"""Another number of partitions for a query's state."""

from redis_state.spark.rescale.store import StoreRescale, rescale_store

__all__ = ["StoreRescale", "rescale_store"]
