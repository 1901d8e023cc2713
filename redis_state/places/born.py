"""Segments that are born in files: their blocks never pass Redis (docs/format.md, section 18)."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import UnavailableError
from redis_state.files import Folder
from redis_state.format.entry import Entry, Segment
from redis_state.format.header import FIELD as HEADER
from redis_state.format.place import FilePlace
from redis_state.format.region import MAGIC, RegionWriter
from redis_state.ids import PartitionId, Pin
from redis_state.places.moving import announce, is_whole
from redis_state.places.reading import owner_of

_WHAT = "writing a snapshot into a file"

Blocks = Mapping[str, bytes]
"""Blocks by the names of their fields."""


@dataclass(frozen=True, slots=True)
class Born:
    """A snapshot whose file is whole, and that no manifest names yet.

    Attributes:
        size: Length of the file.
    """

    segment: Segment
    place: FilePlace
    size: int


def write_snapshot(
    client: Client,
    id_: PartitionId,
    folder: Folder,
    pin: Pin,
    blocks: Callable[[str], Iterable[Blocks]],
    entry: Callable[[], Entry],
) -> Born | None:
    """Writes a snapshot into a new file of its own, and reads its end back.

    Args:
        blocks: Yields the blocks of a segment with this writer, in the order of a region; the
            header may come at any time.
        entry: Returns the entry, once all blocks were taken.

    Returns:
        ``None`` if the partition cannot have files.

    Raises:
        UnavailableError: Redis or the file system does not answer, or the file was cut.
        ConfigError: The folder cannot be written.
    """
    writer = uuid.uuid4().hex
    ident = f"s:{pin.version}:{writer}"
    name = announce(client, id_, [], version=pin.version)
    if name is None:
        return None
    region = _GrowingRegion(client, id_, ident)

    def end() -> Segment:
        return Segment(True, pin.version, pin.uid, entry())

    folder.write_pieces(name, region.pieces(blocks(writer), end))
    segment = region.segment
    if segment is None:
        return None
    place = FilePlace(name, 0, region.bytes, region.head)
    if not is_whole(client, folder, [place], [region.check]):
        raise UnavailableError(
            _WHAT,
            found=f"{folder / name} is not as it was written",
            advice="Nothing was added. Check the file system, and what is between it and here.",
            where=str(id_),
        )
    return Born(segment, place, region.bytes)


class _GrowingRegion:
    """The region of a segment while its blocks are made."""

    def __init__(self, client: Client, id_: PartitionId, ident: str) -> None:
        self._id, self._signer = id_, client.signer
        self._key = keys.segment(id_, ident)
        self._writer = RegionWriter(ident, self._key, signer=self._signer)
        self.segment: Segment | None = None
        self.bytes = self.head = self.check = 0

    def pieces(self, blocks: Iterable[Blocks], end: Callable[[], Segment]) -> Iterator[bytes]:
        """Yields the bytes of the region."""
        header = b""
        yield MAGIC
        self.bytes = len(MAGIC)
        for fields in blocks:
            for name, block in fields.items():
                value = block
                if self._signer is not None:
                    value = self._signer.signed(self._key, name, block)
                if name == HEADER:
                    header = value
                    continue
                self._writer.add(name, value)
                self.bytes += len(value)
                yield value
        segment = end()
        for last in self._writer.end(owner_of(self._id, segment), header):
            self.bytes += len(last)
            self.head, self.check = len(last), zlib.crc32(last)
            yield last
        self.segment = segment
