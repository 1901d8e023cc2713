"""Copies: backups of a query's state in its checkpoint folder (docs/format.md, section 11).

The driver of a Spark query writes them (option `copyEveryBatches`); Python reads them. Begin with
`restore.py`.
"""

from redis_state.recovery.copies.files import Copy, CopyPart, copies_of, read_copy
from redis_state.recovery.copies.restore import Restore, newest_fitting, plan_restore

__all__ = [
    "Copy",
    "CopyPart",
    "Restore",
    "copies_of",
    "newest_fitting",
    "plan_restore",
    "read_copy",
]
