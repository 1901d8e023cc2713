"""Spark edge: functions that import pyspark, only when needed, and the code of their tasks.

`processor` runs stateful processors, `live` reads state of other queries, `moves` moves state
between checkpoints. Imports all layers below. Begin with `conf.py` and `map_partitions.py`.
"""

from redis_state.rescaling.store import rescale_store
from redis_state.spark.conf import configure
from redis_state.spark.live.lookup import lookup
from redis_state.spark.map_partitions import (
    foreach_batch_with_state_store,
    map_partitions_with_state_store,
)
from redis_state.spark.moves.bootstrapping import BootstrapColumns, bootstrap, bootstrap_columns
from redis_state.spark.moves.migration import Migration, migrate
from redis_state.spark.moves.rescaling import rescale
from redis_state.spark.pandas_with_state import GroupState, apply_in_pandas_with_state
from redis_state.spark.partition_task import BatchStore
from redis_state.spark.processor.columns import ColumnState
from redis_state.spark.processor.transform_with_state import (
    transform_columns_with_state,
    transform_with_state,
)

__all__ = [
    "BatchStore",
    "BootstrapColumns",
    "ColumnState",
    "GroupState",
    "Migration",
    "apply_in_pandas_with_state",
    "bootstrap",
    "bootstrap_columns",
    "configure",
    "foreach_batch_with_state_store",
    "lookup",
    "map_partitions_with_state_store",
    "migrate",
    "rescale",
    "rescale_store",
    "transform_columns_with_state",
    "transform_with_state",
]
