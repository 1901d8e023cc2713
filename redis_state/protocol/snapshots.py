"""Rules for when a version needs a snapshot or a hot run (docs/design.md, section 8).

The JVM has the same rules, in `History`.
"""

from __future__ import annotations

DELTAS_MIN = 4
DELTAS_MAX = 200
HOT_RUN_DELTAS_MAX = 32


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


def is_hot_run_due(deltas: int, delta_bytes: int, run_bytes: int) -> bool:
    """Returns whether the deltas should be merged into a hot run (docs/format.md, section 18).

    Args:
        deltas: Number of deltas since the last hot run, or since the base.
        delta_bytes: Size of all these deltas.
        run_bytes: Size of the last hot run; 0 without one.
    """
    return deltas >= DELTAS_MIN and (delta_bytes * 2 > run_bytes or deltas >= HOT_RUN_DELTAS_MAX)
