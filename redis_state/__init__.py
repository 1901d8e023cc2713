"""State of PySpark streaming queries, kept in Redis."""

from redis_state._version import __version__
from redis_state.codec.state_object import StateObject
from redis_state.coordinator import StateStoreCoordinator
from redis_state.embedded import EmbeddedRedis
from redis_state.forks import Forked, fork
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.live import connect
from redis_state.reader import state_objects
from redis_state.spark import (
    BatchStore,
    BootstrapColumns,
    ColumnState,
    GroupState,
    Migration,
    apply_in_pandas_with_state,
    bootstrap,
    bootstrap_columns,
    configure,
    foreach_batch_with_state_store,
    lookup,
    map_partitions_with_state_store,
    migrate,
    rescale,
    rescale_store,
    transform_columns_with_state,
    transform_with_state,
)
from redis_state.store import ListStateStore, ReadStateStore, StateStore, stores
from redis_state.store.provider import StateStoreProvider

__all__ = [
    "BatchStore",
    "BootstrapColumns",
    "ColumnState",
    "EmbeddedRedis",
    "Forked",
    "GroupState",
    "ListStateStore",
    "Migration",
    "ReadStateStore",
    "StateObject",
    "StateStore",
    "StateStoreCoordinator",
    "StateStoreId",
    "StateStoreProvider",
    "StateStoreProviderId",
    "__version__",
    "apply_in_pandas_with_state",
    "bootstrap",
    "bootstrap_columns",
    "configure",
    "connect",
    "foreach_batch_with_state_store",
    "fork",
    "lookup",
    "map_partitions_with_state_store",
    "migrate",
    "rescale",
    "rescale_store",
    "state_objects",
    "stores",
    "transform_columns_with_state",
    "transform_with_state",
]
