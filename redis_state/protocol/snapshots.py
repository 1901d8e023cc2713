"""Rule for when a version needs a snapshot (docs/design.md, section 8).

The JVM has the same rule, in `PartitionVersions`.
"""

from __future__ import annotations

DELTAS_MIN = 4
DELTAS_MAX = 200


def is_due(deltas: int, delta_bytes: int, base_bytes: int, *, patience: int = 1) -> bool:
    """Returns whether the deltas should be merged into a new snapshot.

    Args:
        deltas: Number of deltas since the last snapshot.
        delta_bytes: Size of all these deltas.
        base_bytes: Size of the last snapshot; 0 without one.
        patience: Factor on both limits. More than 1 leaves the work to the process that serves the
            partition for longer.
    """
    return deltas >= DELTAS_MIN * patience and (
        delta_bytes * 2 > base_bytes * patience or deltas >= DELTAS_MAX * patience
    )
