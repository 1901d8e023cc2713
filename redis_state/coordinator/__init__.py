"""Who serves which partition: the coordinator of a process and the thread of its heartbeat."""

from redis_state.coordinator.coordinator import (
    Instance,
    StateStoreCoordinator,
    StateStoreCoordinatorRef,
)

__all__ = ["Instance", "StateStoreCoordinator", "StateStoreCoordinatorRef"]
