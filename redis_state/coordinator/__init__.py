"""Coordinator: the process that serves each partition, by heartbeats in Redis.

Imports `protocol` and `backend`. Begin with `coordinator.py`; `heartbeat.py` is its thread.
"""

from redis_state.coordinator.coordinator import (
    Instance,
    StateStoreCoordinator,
    StateStoreCoordinatorRef,
)

__all__ = ["Instance", "StateStoreCoordinator", "StateStoreCoordinatorRef"]
