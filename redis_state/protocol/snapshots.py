"""When a version needs a snapshot: docs/design.md, section 8; `PartitionVersions` of the JVM."""

from __future__ import annotations

DELTAS_MIN = 4
DELTAS_MAX = 200


def is_due(deltas: int, delta_bytes: int, base_bytes: int, *, patience: int = 1) -> bool:
    """Whether so many deltas are to be folded into a new snapshot.

    Args:
        deltas: How many there are since the last snapshot.
        delta_bytes: What they have together.
        base_bytes: What that snapshot has; 0 if there is none.
        patience: More than 1 leaves it that many times as long to the process that serves it.
    """
    return deltas >= DELTAS_MIN * patience and (
        delta_bytes * 2 > base_bytes * patience or deltas >= DELTAS_MAX * patience
    )
