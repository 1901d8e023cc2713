"""The state store of Python: its interface, providers of partitions, and those of a process."""

from redis_state.store.api import (
    ListStateStore,
    Operation,
    Pairs,
    ReadStateStore,
    Row,
    State,
    StateStore,
    StateStoreMetrics,
    following,
)

__all__ = [
    "ListStateStore",
    "Operation",
    "Pairs",
    "ReadStateStore",
    "Row",
    "State",
    "StateStore",
    "StateStoreMetrics",
    "following",
]
