"""Steps of docs/format.md, sections 6 to 9 and 14, as calls: runs, partitions, names and pins.

One call is one script or one pipeline. Imports `backend`, `format` and the layers below. Start with
`opening.py` (read a version) and `partition.py` (acquire, publish, abort).
"""

from redis_state.protocol.opening import Opened
from redis_state.protocol.partition import PartitionClient
from redis_state.protocol.retention import RetainReport
from redis_state.protocol.runs import (
    NamedStore,
    RegisteredRun,
    checkpoint_gen,
    confirm_checkpoint,
    find_run,
    is_run,
    own_run,
    register_run,
    renew_checkpoint,
)
from redis_state.protocol.segments import SegmentGoneError

__all__ = [
    "NamedStore",
    "Opened",
    "PartitionClient",
    "RegisteredRun",
    "RetainReport",
    "SegmentGoneError",
    "checkpoint_gen",
    "confirm_checkpoint",
    "find_run",
    "is_run",
    "own_run",
    "register_run",
    "renew_checkpoint",
]
