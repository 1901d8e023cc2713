"""Writes new segments into files, without passing Redis (docs/format.md, section 18)."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from redis_state.places.owners import owner_of
from redis_state.places.reading import files_of
from redis_state.places.room import SHARE_BYTES_MIN, cost_of

MOVED_BYTES_MAX = SHARE_BYTES_MIN // 2
"""Room up to which a whole version of a bounded partition is written into Redis."""
_WHAT = "writing segments into a file"

Blocks = Mapping[str, bytes]
"""Blocks by the names of their fields."""


@dataclass(frozen=True, slots=True)
class Born:
    """A segment whose file is complete, and that no manifest names yet.

    Attributes:
        size: Length of the file.
    """

    segment: Segment
    place: FilePlace
    size: int


@dataclass(frozen=True, slots=True)
class Unborn:
    """A segment that gets a region of a new file.

    Attributes:
        blocks: Blocks in the order of a region; the header may come at any time.
        end: Returns the segment, after all blocks were yielded.
        is_signed: True if the blocks are as Redis holds them, with their signatures.
    """

    ident: str
    blocks: Iterable[Blocks]
    end: Callable[[], Segment]
    is_signed: bool = False


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
        blocks: Yields the blocks of a segment with this writer; see `Unborn`.
        entry: Returns the entry, after all blocks were yielded.

    Returns:
        ``None`` if the partition cannot have files.

    Raises:
        UnavailableError: Redis or the file system does not answer, or the file is truncated.
        ConfigError: The folder cannot be written.
    """
    writer = uuid.uuid4().hex

    def end() -> Segment:
        return Segment(True, pin.version, pin.uid, entry())

    one = Unborn(f"s:{pin.version}:{writer}", blocks(writer), end)
    found = write_file(client, id_, folder, [one], version=pin.version)
    return found[0] if found else None


def write_file(
    client: Client,
    id_: PartitionId,
    folder: Folder,
    segments: Iterable[Unborn],
    *,
    version: int,
    named: Sequence[Segment] = (),
    is_new: bool = False,
) -> list[Born]:
    """Writes segments into a new file, one after the other, and reads the ends of regions back.

    Args:
        version: Version that the name of the file has.
        named: Segments whose versions it has instead.
        is_new: See `announce`.

    Returns:
        Nothing if the partition cannot have files.

    Raises:
        UnavailableError: Redis or the file system does not answer, or the file is truncated.
        ConfigError: The folder cannot be written.
    """
    name = announce(client, id_, named, version=version, is_new=is_new)
    if name is None:
        return []
    placed: list[tuple[Segment, FilePlace]] = []
    checks: list[int] = []

    def pieces() -> Iterator[bytes]:
        begin = 0
        for one in segments:
            region = _GrowingRegion(client, id_, one)
            yield from region.pieces()
            placed.append((one.end(), FilePlace(name, begin, region.bytes, region.head)))
            checks.append(region.check)
            begin += region.bytes

    folder.write_pieces(name, pieces())
    if placed and not is_whole(client, folder, [place for _, place in placed], checks):
        raise UnavailableError(
            _WHAT,
            found=f"{folder / name} is not as it was written",
            advice="Nothing was added. Check the file system, and the connection to it.",
            where=str(id_),
        )
    size = sum(place.bytes for _, place in placed)
    for _, place in placed:
        # The stores of this process need the region at once.
        files_of(client).want(id_, folder, place)
    return [Born(segment, place, size) for segment, place in placed]


def fits_redis(entry: Entry, *, parts: int = 1) -> bool:
    """Returns whether a whole version of a bounded partition is written into Redis.

    Args:
        parts: Number of such versions.
    """
    return cost_of(entry) <= MOVED_BYTES_MAX // parts


class _GrowingRegion:
    """The region of a segment while its blocks are made."""

    def __init__(self, client: Client, id_: PartitionId, of: Unborn) -> None:
        self._id, self._of = id_, of
        self._key = keys.segment(id_, of.ident)
        self._signer = None if of.is_signed else client.signer
        self._writer = RegionWriter(of.ident, self._key, signer=client.signer)
        self.bytes = self.head = self.check = 0

    def pieces(self) -> Iterator[bytes]:
        """Yields the bytes of the region."""
        header = b""
        yield MAGIC
        self.bytes = len(MAGIC)
        for fields in self._of.blocks:
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
        for last in self._writer.end(owner_of(self._id, self._of.end()), header):
            self.bytes += len(last)
            self.head, self.check = len(last), zlib.crc32(last)
            yield last
