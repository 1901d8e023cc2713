"""File of one partition in a copy: read piece by piece, and checked completely."""

from __future__ import annotations

import hashlib
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from redis_state import keys
from redis_state.errors import FormatError
from redis_state.files import OpenedFile
from redis_state.format import block
from redis_state.format.entry import Segment, parse_segment
from redis_state.format.segment import combined_checksum
from redis_state.ids import PartitionId, is_uid, text_number
from redis_state.recovery.copies.files import Copy, CopyHead, CopyPart, damaged

MAGIC = b"rs-copy1"
_LENGTH = struct.Struct(">I")
_NAME_LENGTH = struct.Struct(">H")
_HEAD_BYTES_MAX = 64 << 20
_NAME_BYTES_MAX = 32
# A signature precedes the block, and the block has a header.
_VALUE_BYTES_MAX = block.RAW_LENGTH_MAX + 64
_NAME = re.compile(r"h|(?:0|[1-9][0-9]{0,9})(?:[./](?:0|[1-9][0-9]{0,9}))?")
_HEAD_WORDS = 8

OpenBlocks = Callable[[str, Sequence[str], list[bytes | None]], list[bytes | None]]
"""Checks signatures, given the key of the segment, and names and values of fields."""


class PartReader(ABC):
    """Reader of a partition in a copy.

    Args:
        id_: Partition that the copy must have.
        what: What is done, for errors.
        open_blocks: See `redis_state.backend.client.Client.opened`.
    """

    def __init__(self, copy: Copy, id_: PartitionId, what: str, open_blocks: OpenBlocks) -> None:
        self._copy = copy
        self._id = id_
        self._what = what
        self._open_blocks = open_blocks

    @abstractmethod
    def head(self) -> CopyHead:
        """Returns the segments, which are a chain; only `fields` detects damage of their blocks.

        Raises:
            FormatError: The head is damaged, or names another partition or version.
        """

    @abstractmethod
    def fields(self) -> Iterator[tuple[Segment, str, bytes]]:
        """Yields all fields as they are stored, segment by segment.

        No field may be used before the iteration has ended without an error.

        Raises:
            FormatError: A file is missing or damaged, or a signature does not match.
            ConfigError: A file cannot be read.
        """

    def check(self) -> CopyHead:
        """Reads and checks the whole partition, and returns its head.

        Raises:
            FormatError: See `fields`.
        """
        for _ in self.fields():
            pass
        return self.head()


class PartFile(PartReader):
    """Reader of a partition that has a file of its own."""

    def __init__(
        self, copy: Copy, part: CopyPart, id_: PartitionId, *, open_blocks: OpenBlocks
    ) -> None:
        super().__init__(copy, id_, f"reading {copy.folder / part.name}", open_blocks)
        self._part = part

    def head(self) -> CopyHead:
        """Implements `PartReader.head`."""
        with self._opened() as source:
            return self._head(source)

    def fields(self) -> Iterator[tuple[Segment, str, bytes]]:
        """Implements `PartReader.fields`."""
        with self._opened() as source:
            for segment in self._head(source).segments:
                yield from self._segment(source, segment)
            source.end(self._part.sha256)

    def _opened(self) -> _CopyReader:
        file = self._copy.folder.open(self._part.name)
        if file is None:
            raise damaged(self._what, "it is missing")
        return _CopyReader(file, self._what, self._part.bytes)

    def _head(self, source: _CopyReader) -> CopyHead:
        if source.take(len(MAGIC)) != MAGIC:
            raise damaged(
                self._what, "it is not a file of a copy, or it was written by a newer release"
            )
        try:
            lines = source.take_with_length(_LENGTH, _HEAD_BYTES_MAX).decode("ascii").split("\n")
            segments = tuple(parse_segment(*line.split(" ", 1)) for line in lines[1:])
        except (UnicodeDecodeError, TypeError) as error:
            raise damaged(self._what, "its head is malformed") from error
        words = lines[0].split(" ")
        of = self._id.store
        place = [of.gen, str(of.operator), str(self._id.partition), keys.store_hash(of.store)]
        if len(words) != _HEAD_WORDS or words[:5] != [*place, str(self._copy.version)]:
            raise damaged(self._what, "it is of another partition or version")
        uid, format_, retained = words[5], text_number(words[6]), text_number(words[7])
        if not is_uid(uid) or format_ not in (1, 2) or not retained or not segments:
            raise damaged(self._what, "its head is malformed")
        check_chain(self._what, self._copy.version, uid, segments)
        return CopyHead(uid, format_, retained, segments)

    def _segment(
        self, source: _CopyReader, segment: Segment
    ) -> Iterator[tuple[Segment, str, bytes]]:
        check = SegmentCheck(self._what, self._id, segment, self._open_blocks)
        for _ in range(segment.entry.blocks):
            raw = source.take_with_length(_NAME_LENGTH, _NAME_BYTES_MAX)
            value = source.take_with_length(_LENGTH, _VALUE_BYTES_MAX)
            name = raw.decode("ascii", "replace")
            check.add(name, value)
            yield segment, name, value
        check.end()


class SegmentCheck:
    """Checks the blocks of a segment one by one, and all of them against its entry.

    Args:
        what: What is done, for errors.
        open_blocks: Checks signatures.
    """

    def __init__(
        self, what: str, id_: PartitionId, segment: Segment, open_blocks: OpenBlocks
    ) -> None:
        self._what = what
        self._segment = segment
        self._key = keys.segment(id_, segment.ident)
        self._open_blocks = open_blocks
        self._checks: dict[str, bytes] = {}
        self._bytes = 0

    def add(self, name: str, value: bytes) -> None:
        """Checks a field.

        Raises:
            FormatError: Its name or its value is not one of the segment's.
        """
        ident = self._segment.ident
        if not _NAME.fullmatch(name) or name in self._checks:
            raise damaged(self._what, f"a field of {ident} has a wrong name")
        (found,) = self._open_blocks(self._key, [name], [value])
        plain = found or b""
        if plain[:1] == bytes((block.SIGNED_MAGIC,)):
            raise signed(self._what)
        try:
            block.decode(ident, name, plain)
        except FormatError as error:
            raise damaged(self._what, f"field {name} of {ident}: {error.found}") from error
        self._checks[name] = block.check_bytes(plain)
        self._bytes += len(plain)

    def end(self) -> None:
        """Checks that these were all fields of the segment.

        Raises:
            FormatError: Number, size or checksum are not those of the entry.
        """
        entry = self._segment.entry
        found = (len(self._checks), self._bytes, combined_checksum(self._checks))
        if found != (entry.blocks, entry.bytes, entry.checksum):
            raise damaged(
                self._what, f"the blocks of {self._segment.ident} are not those of its entry"
            )


def check_chain(what: str, version: int, uid: str, segments: Sequence[Segment]) -> None:
    """Checks that the segments are a chain from the version down to its base.

    Args:
        what: What is done, for errors.
        uid: Uid of the version.

    Raises:
        FormatError: They are not.
    """
    last = segments[-1]
    for segment in segments:
        if segment.version != version or segment.uid != uid:
            raise damaged(what, "its segments are not those of one version")
        if segment.alone and segment is not last:
            raise damaged(what, "it has segments that the version does not need")
        version, uid = version - 1, segment.entry.ref
    whole = last.snapshot or last.entry.complete or (last.alone and last.version == 1)
    if not whole:
        raise damaged(what, "its segments do not make up a version")


def signed(what: str) -> FormatError:
    """Returns the error for signed blocks that no key was given for."""
    return FormatError(
        what,
        found="its blocks are signed",
        advice="Give the key that the query has with --signing-key-file.",
    )


class _CopyReader:
    """Reads a file up to its expected length, and hashes the bytes."""

    def __init__(self, file: OpenedFile, what: str, left: int) -> None:
        self._file = file
        self._what = what
        self._left = left
        self._digest = hashlib.sha256()

    def __enter__(self) -> _CopyReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def take(self, length: int) -> bytes:
        """Reads the next bytes."""
        if length > self._left:
            raise damaged(self._what, "it is cut off")
        found = self._file.read(length)
        if len(found) != length:
            raise damaged(self._what, "it is cut off")
        self._left -= length
        self._digest.update(found)
        return found

    def take_with_length(self, kind: struct.Struct, most: int) -> bytes:
        """Reads a length and then as many bytes."""
        (length,) = kind.unpack(self.take(kind.size))
        if length > most:
            raise damaged(self._what, f"a length of {length} is above {most}")
        return self.take(length)

    def end(self, sha256: str) -> None:
        """Checks that the file ends here and matches its SHA-256."""
        if self._left or self._file.read(1):
            raise damaged(self._what, "bytes follow after its end")
        if self._digest.hexdigest() != sha256:
            raise damaged(self._what, "it does not match its SHA-256")
