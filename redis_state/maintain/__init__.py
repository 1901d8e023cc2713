"""Maintenance from Redis alone, for what no process has loaded: `redis-state maintain`.

Every step is idempotent and changes no version that can be loaded, so several workers at once, or
one that is killed anywhere, do no harm.
"""

from redis_state.maintain.checkpoint import maintain_checkpoint
from redis_state.maintain.orphans import sweep_orphans
from redis_state.maintain.report import Policy, Report
from redis_state.maintain.vanished import purge_vanished, vanished_checkpoints

__all__ = [
    "Policy",
    "Report",
    "maintain_checkpoint",
    "purge_vanished",
    "sweep_orphans",
    "vanished_checkpoints",
]
