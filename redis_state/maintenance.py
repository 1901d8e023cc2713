"""The maintenance thread of the stores that a process has loaded, at its public path."""

from redis_state.store.maintenance import (
    INTERVAL_S,
    JITTER,
    STOP_S,
    Maintained,
    MaintenanceWorker,
    interval_s,
)

__all__ = ["INTERVAL_S", "JITTER", "STOP_S", "Maintained", "MaintenanceWorker", "interval_s"]
