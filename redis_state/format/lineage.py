"""Lineage of a version: the segments of a manifest from the version down to a base."""

from __future__ import annotations

from collections.abc import Mapping

from redis_state.format.entry import Segment
from redis_state.ids import Pin


def lineage_of(segments: Mapping[str, Segment], opened: Pin) -> tuple[set[str], dict[int, str]]:
    """Returns the fields of a version's lineage, and its bases by version, newest first.

    A base is the field of a segment that stands alone. The lineage continues below its bases.

    Args:
        segments: Deltas and snapshots by field, without those set aside.
    """
    lineage: set[str] = set()
    bases: dict[int, str] = {}
    at = opened
    while at.version > 0:
        name, snapshot_name = f"d:{at.version}:{at.uid}", f"s:{at.version}:{at.uid}"
        delta = segments.get(name)
        if snapshot_name in segments:
            lineage.add(snapshot_name)
            bases[at.version] = snapshot_name
        elif delta is not None and delta.entry.complete:
            bases[at.version] = name
        if delta is None:
            break
        lineage.add(name)
        at = Pin(at.version - 1, delta.entry.ref)
    return lineage, bases
