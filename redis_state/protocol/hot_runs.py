"""Hot runs of a bounded partition, which no version needs (docs/format.md, section 18)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.errors import FormatError
from redis_state.format.entry import Segment, parse_segment
from redis_state.ids import PartitionId
from redis_state.protocol.room import ROOM, RoomError

_FIELD = "r:"
_LEFT_OUT_MAX = 256

_left_out: dict[str, None] = {}
"""Idents of hot runs that this process could not read, and errors of entries; the oldest go."""

log = logging.getLogger(__name__)


def enter(client: Client, id_: PartitionId, run: Segment) -> bool:
    """Enters a hot run whose blocks are staged; returns False if nobody wants it any more.

    Raises:
        RoomError: The run does not fit into the partition's share.
    """
    over, entry = run.parent, run.entry
    args = [str(run.version), run.uid, entry.ref, str(over.version), over.uid, entry.text]
    what = f"adding the hot run of version {run.version}"
    all_keys = [keys.meta(id_), keys.segment(id_, run.ident), keys.staged(id_, run.ident)]
    reply = client.script(what, script("hotrun"), all_keys, args)
    if reply[0] == ROOM:
        raise RoomError
    if reply[0] not in ("OK", "ALREADY"):
        log.info("%s: %s: %s", id_, what, " ".join(reply))
    return reply[0] in ("OK", "ALREADY")


def run_in(segments: Sequence[Segment]) -> Segment | None:
    """Returns the hot run among the segments of a version; ``None`` without one."""
    return next((one for one in segments if one.over is not None), None)


def lists_damaged_run(answer: Sequence[str]) -> bool:
    """Returns whether a reply of the script `open` has a hot run whose entry is malformed."""
    for field, entry in pairwise(answer):
        if field.startswith(_FIELD):
            try:
                parse_segment(field, entry)
            except FormatError:
                return True
    return False


def is_left_out(segments: Sequence[Segment]) -> bool:
    """Returns whether the segments list a hot run that this process could not read."""
    run = run_in(segments)
    return run is not None and run.ident in _left_out


def leave_out(
    segments: Sequence[Segment], error: Exception | str, *, where: object
) -> Segment | None:
    """Leaves the hot run of a version out after a failed read, and logs the first failure.

    The caller opens the version again without hot runs. Where another segment is damaged, that
    read fails, too.

    Args:
        segments: The version as it was read.
        where: Name of the partition in the log.

    Returns:
        The hot run; ``None`` if the segments list none, so that the error is of another segment.
    """
    run = run_in(segments)
    if run is None:
        return None
    if _is_first(run.ident):
        log.warning(
            "%s: version %d is read from its deltas, without the hot run %s: %s",
            where,
            run.version,
            run.ident,
            error,
        )
    return run


def note_damaged_entry(id_: PartitionId, error: Exception) -> None:
    """Logs the first failure to read the entry of a partition's hot run."""
    if _is_first(f"{id_.store.gen} {id_}: {error}"):
        log.warning("%s: opened without a hot run: %s", id_, error)


def _is_first(what: str) -> bool:
    if what in _left_out:
        return False
    _left_out[what] = None
    # Other threads add meanwhile, and the list is a copy.
    for oldest in list(_left_out)[:-_LEFT_OUT_MAX]:
        _left_out.pop(oldest, None)
    return True
