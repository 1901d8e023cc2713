"""Maintenance from Redis alone, for checkpoints that no process has loaded: `redis-state maintain`.

Every step is idempotent and changes no version that can be loaded. So several workers may run at
once, or in parallel with a query. Imports `protocol` and `backend`. Begin with `service.py`.
"""

from redis_state.maintain.checkpoint import maintain_checkpoint
from redis_state.maintain.orphans import sweep_orphans
from redis_state.maintain.report import MaintenanceReport, PassControl, Policy
from redis_state.maintain.vanished import purge_vanished, vanished_checkpoints

__all__ = [
    "MaintenanceReport",
    "PassControl",
    "Policy",
    "maintain_checkpoint",
    "purge_vanished",
    "sweep_orphans",
    "vanished_checkpoints",
]
