"""Retention of one partition: plans from the manifest alone, then drops segments in parts.

A script blocks the server while it runs. So the plan is computed here, from one read of the
manifest, and executed in parts of bounded size (docs/format.md, section 8).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.errors import FormatError
from redis_state.format.entry import FORMATS, Segment, parse_segment
from redis_state.format.lineage import lineage_of
from redis_state.ids import PartitionId, Pin, text_number
from redis_state.protocol.refusal import refusal

FIELDS_MAX = 100
"""Most manifest fields that one call removes."""

DROPPED_TTL_MS = 10 * 60 * 1000
"""Time for which a dropped segment stays for readers under way."""

_PLANS_MAX = 4
_WHAT = "retention"
_PLANNING = "planning retention"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """Segments to remove from a manifest.

    Attributes:
        epoch: Epoch in the manifest. The plan is valid in this epoch, while the query continues
            from `opened`.
        floor: Floor before; `base` is the floor afterwards.
        carrier: Field of the segment that all retained versions are based on; empty without one.
        kept: Number of segments that stay.
    """

    epoch: str
    opened: Pin
    floor: int
    base: int
    carrier: str
    gone: tuple[str, ...]
    kept: int

    def parts(self) -> Iterator[tuple[int, Sequence[str]]]:
        """Yields a few fields at a time, with the floor that the manifest must have before."""
        if self.gone or self.base > self.floor:
            yield self.floor, self.gone[:FIELDS_MAX]
        for start in range(FIELDS_MAX, len(self.gone), FIELDS_MAX):
            yield self.base, self.gone[start : start + FIELDS_MAX]


@dataclass(frozen=True, slots=True)
class RetainReport:
    """Result of retention.

    Attributes:
        floor: The lowest version that is kept.
        dropped: Segments removed from the manifest.
        kept: Segments left in the manifest.
    """

    floor: int
    dropped: int
    dropped_bytes: int
    kept: int


def plan(manifest: Mapping[bytes, bytes]) -> RetentionPlan:
    """Computes the plan from all fields of `P:m`.

    Uses only what Redis holds: `opened` and `retained` of the holding run. The caller's
    configuration and the highest existing version play no part.

    Raises:
        FormatError: A field is malformed.
    """
    fields = {_text(name): value for name, value in manifest.items()}
    opened = Pin(_number(fields, "o"), _text(fields.get("ou", b"")))
    retained, floor = _number(fields, "n"), _number(fields, "w")
    segments = {
        name: parse_segment(name, _text(value))
        for name, value in fields.items()
        if name[:2] in ("d:", "s:")
    }
    lineage, bases = lineage_of(segments, opened)
    base = next((at for at in bases if at <= max(floor, opened.version - retained)), None)
    kept_bases = _spaced(list(bases), base, max(1, retained // 2))
    gone = [
        name
        for name, segment in segments.items()
        if segment.version <= opened.version
        and not (name in lineage and _is_needed(segment, base, kept_bases))
    ]
    kept = len(segments) - len(gone)
    # Was set aside for a pin that has ended.
    gone += [name for name in fields if name[:2] == "z:" and f"y:{name[2:]}" not in fields]
    return RetentionPlan(
        _text(fields.get("e", b"")),
        opened,
        floor,
        floor if base is None else max(base, floor),
        "" if base is None else bases[base],
        tuple(sorted(gone)),
        kept,
    )


def retain(
    client: Client, id_: PartitionId, *, retained: int | None = None, where: str = ""
) -> RetainReport:
    """Removes segments that no retained version needs from the manifest.

    Args:
        retained: Number of versions to keep below the opened one; ``None`` is that which the
            holding run wants.
        where: Name of the partition in errors.
    """
    dropped, size = 0, 0
    for _ in range(_PLANS_MAX):
        (manifest,) = client.call(_WHAT, [("HGETALL", keys.meta(id_))])
        format_ = manifest.get(b"f")
        if format_ is None:
            return RetainReport(0, 0, 0, 0)
        if format_ not in FORMATS:
            found = format_.decode("ascii", "replace")
            raise refusal(_WHAT, ["FORMAT", found], where=where, version=0)
        if retained is not None:
            manifest[b"n"] = b"%d" % retained
        chosen = plan(manifest)
        is_stale = False
        for floor, fields in chosen.parts():
            opened = chosen.opened
            args = [str(DROPPED_TTL_MS), chosen.epoch, str(opened.version), opened.uid]
            args += [str(floor), str(chosen.base), chosen.carrier, *fields]
            match client.script(_WHAT, script("retain"), [keys.meta(id_)], args):
                case ["OK", count, of_bytes]:
                    dropped, size = dropped + int(count), size + int(of_bytes)
                case ["STALE"] | ["EMPTY"]:
                    is_stale = True
                    break
                case reply:
                    raise refusal(_WHAT, reply, where=where, version=0)
        if not is_stale:
            break
    else:
        log.info("%s: %s: other workers were faster; the next maintenance continues", id_, _WHAT)
    return RetainReport(chosen.base, dropped, size, chosen.kept)


def _spaced(bases: Sequence[int], base: int | None, spacing: int) -> set[int]:
    """Returns the base of the floor, the newest base, and one for each `spacing` in between."""
    kept: set[int] = set()
    last = base or 0
    for at in reversed(bases):
        if at == base or at == bases[0] or (at > last and at - last >= spacing):
            kept.add(at)
            last = at
    return kept


def _is_needed(segment: Segment, base: int | None, kept_bases: set[int]) -> bool:
    """Returns whether a retained version needs a segment of the lineage."""
    if segment.snapshot and segment.version not in kept_bases:
        return False
    if base is None or segment.version > base:
        return True
    return segment.version == base and (segment.snapshot or segment.entry.complete)


def _number(fields: Mapping[str, bytes], name: str) -> int:
    found = text_number(_text(fields.get(name, b"0")))
    if found is None:
        raise FormatError(_PLANNING, found=f"the field {name} of the manifest is not a number")
    return found


def _text(raw: bytes) -> str:
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError as error:
        raise FormatError(_PLANNING, found="a field of the manifest is malformed") from error
