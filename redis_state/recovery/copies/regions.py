"""Segments of a partition in files that copies share: read piece by piece, checked completely."""

from __future__ import annotations

from collections.abc import Iterator

from redis_state.errors import FormatError
from redis_state.files import Folder
from redis_state.format.entry import Segment
from redis_state.format.header import FIELD as HEADER
from redis_state.format.place import FilePlace
from redis_state.format.region import MAGIC, Span, read_head
from redis_state.format.signature import BlockSigner, is_signed
from redis_state.ids import PartitionId
from redis_state.places.owners import owner_of
from redis_state.recovery.copies.files import Copy, CopyHead, CopyPart, damaged
from redis_state.recovery.copies.part import (
    OpenBlocks,
    PartReader,
    SegmentCheck,
    check_chain,
    signed,
)

_BYTES_AT_ONCE = 4 << 20
_LENGTH_BYTES = 4


class PlacedPart(PartReader):
    """Reader of a partition whose segments are in files of copies.

    Args:
        folder: Folder of the checkpoint's files.
        signer: Checks the descriptions of regions; ``None`` if blocks are not signed.
    """

    def __init__(
        self,
        copy: Copy,
        part: CopyPart,
        head: CopyHead,
        id_: PartitionId,
        *,
        folder: Folder,
        signer: BlockSigner | None,
        open_blocks: OpenBlocks,
    ) -> None:
        what = f"reading partition {part.name} of {copy.folder}"
        super().__init__(copy, id_, what, open_blocks)
        self._head = head
        self._folder = folder
        self._signer = signer

    def head(self) -> CopyHead:
        """Implements `PartReader.head`."""
        check_chain(self._what, self._copy.version, self._head.uid, self._head.segments)
        return self._head

    def fields(self) -> Iterator[tuple[Segment, str, bytes]]:
        """Implements `PartReader.fields`."""
        for segment in self.head().segments:
            if segment.place is None:
                continue
            check = SegmentCheck(self._what, self._id, segment, self._open_blocks)
            for name, value in self._region(segment, segment.place):
                check.add(name, value)
                yield segment, name, value
            check.end()

    def _region(self, segment: Segment, place: FilePlace) -> Iterator[tuple[str, bytes]]:
        try:
            raw = self._range(place, place.bytes - place.head, place.head)
            end = len(raw) - _LENGTH_BYTES - len(MAGIC)
            tail = end - int.from_bytes(raw[end : end + _LENGTH_BYTES], "big") if end > 0 else -1
            if self._signer is None and tail >= 0 and is_signed(raw[tail:]):
                raise signed(self._what)
            owner = owner_of(self._id, segment)
            head = read_head(owner, raw, region_bytes=place.bytes, signer=self._signer)
            if self._range(place, 0, len(MAGIC)) != MAGIC:
                raise damaged(self._what, f"{place.file} does not begin as a region")
            spans: dict[str, Span] = {}
            for called, (offset, length) in head.at.items():
                known = head.known.get(called) or self._range(place, offset, length)
                spans |= head.spans(called, known, self._signer)
        except FormatError as error:
            if error.where or error.attempted == self._what:
                raise
            raise damaged(self._what, f"{segment.ident}: {error.found}") from error
        for group in _grouped(spans):
            begin = spans[group[0]][0]
            last, length = spans[group[-1]]
            values = self._range(place, begin, last + length - begin)
            for name in group:
                offset, length = spans[name]
                yield name, values[offset - begin : offset - begin + length]
        if head.header is not None:
            yield HEADER, head.header

    def _range(self, place: FilePlace, offset: int, length: int) -> bytes:
        found = self._folder.read_ranges(place.file, [(place.offset + offset, length)])
        if found is None:
            raise damaged(self._what, f"{self._folder / place.file} is missing, or cut off")
        return found[0]


def _grouped(spans: dict[str, Span]) -> Iterator[list[str]]:
    """Yields runs of fields that lie one behind the other, for one read each."""
    group: list[str] = []
    for name in sorted(spans, key=lambda one: spans[one]):
        if group:
            begin, (last, length) = spans[group[0]][0], spans[group[-1]]
            offset, size = spans[name]
            if offset != last + length or offset + size - begin > _BYTES_AT_ONCE:
                yield group
                group = []
        group.append(name)
    if group:
        yield group
