"""Python state store: its interface, the providers of partitions, and the stores of a process.

Imports `coordinator`, `protocol`, `codec` and the layers below them. Begin with `api.py`
(interface) and `write_session.py` (life cycle of an opened version).
"""

from redis_state.store.api import (
    KeyValue,
    ListStateStore,
    Operation,
    ReadStateStore,
    RowPairs,
    State,
    StateStore,
    StateStoreMetrics,
    following,
)

__all__ = [
    "KeyValue",
    "ListStateStore",
    "Operation",
    "ReadStateStore",
    "RowPairs",
    "State",
    "StateStore",
    "StateStoreMetrics",
    "following",
]
