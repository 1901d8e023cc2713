"""Reads ranges of one region, from its copy on the local disk, or from its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redis_state.errors import FormatError
from redis_state.files import Folder
from redis_state.format import block
from redis_state.format.entry import Segment
from redis_state.format.place import FilePlace
from redis_state.format.region import Span
from redis_state.format.signature import BlockSigner
from redis_state.places.local_disk import LocalDisk, RegionId

WHOLE_BYTES_MAX = 16 << 20
"""Regions up to this length are read at once if half of their fields are wanted."""
_GAP_BYTES_MAX = 128 << 10
_RANGE_BYTES_MAX = 8 << 20


class RegionFiles:
    """Reads one region for one call.

    Args:
        folder: Folder of the checkpoint's files.
        disk: ``None`` without copies.
        at_once: Most ranges of the file that are read at once.

    Attributes:
        hits: Number of reads from the copy.
        reads: Number of reads from the file.
    """

    def __init__(
        self,
        folder: Folder,
        gen: str,
        place: FilePlace,
        disk: LocalDisk | None,
        *,
        at_once: int = 1,
    ) -> None:
        self.place = place
        self._at_once = at_once
        self._folder = folder
        self._id = RegionId(gen, place)
        self._disk = disk
        self.hits = self.reads = 0

    def read(self, spans: Sequence[Span]) -> list[bytes] | None:
        """Reads ranges, counted from the start of the region.

        Returns:
            ``None`` if the file does not exist, or ends within a range.
        """
        if self._disk is not None:
            found = self._disk.read(self._id, spans)
            if found is not None:
                self.hits += 1
                return found
        self.reads += 1
        shifted = [(self.place.offset + offset, length) for offset, length in spans]
        ranges: list[bytes] = []
        for start in range(0, len(shifted), self._at_once):
            some = self._folder.read_ranges(self.place.file, shifted[start : start + self._at_once])
            if some is None:
                return None
            ranges += some
        return ranges

    def want(self) -> None:
        """Begins a copy of the region, unless there is one."""
        if self._disk is not None:
            self._disk.want(self._id, self._folder)

    def give_up(self) -> bool:
        """Removes the copy, which is damaged; further reads use the file.

        Returns:
            False if no bytes came from a copy.
        """
        if self._disk is None or not self.hits:
            return False
        self._disk.drop(self._id)
        self._disk = None
        return True


def is_most(segment: Segment, place: FilePlace, fields: int) -> bool:
    """Returns whether a segment is read as a whole for so many of its fields."""
    return fields * 2 >= segment.entry.blocks and place.bytes <= WHOLE_BYTES_MAX


def are_intact(
    signer: BlockSigner | None, key: str, segment: Segment, found: Mapping[str, bytes] | None
) -> bool:
    """Returns whether signatures and checks of values are valid, without reading the rows.

    Args:
        key: Redis key of the segment, which signatures cover.
    """
    try:
        return all(
            block.is_intact(segment.ident, name, signer.opened(key, name, raw) if signer else raw)
            for name, raw in (found or {}).items()
        )
    except FormatError:
        return False


def pieces(length: int) -> list[Span]:
    """Returns ranges that make up a whole region."""
    return [(at, min(_RANGE_BYTES_MAX, length - at)) for at in range(0, length, _RANGE_BYTES_MAX)]


def merged(spans: Sequence[Span]) -> list[Span]:
    """Joins neighbours, so that a few larger ranges are read."""
    found: list[Span] = []
    for offset, length in sorted(spans):
        if found:
            begin, size = found[-1]
            end = offset + length - begin
            if offset - begin - size <= _GAP_BYTES_MAX and end <= _RANGE_BYTES_MAX:
                found[-1] = (begin, max(size, end))
                continue
        found.append((offset, length))
    return found
