"""Moves segments from Redis into a file, and back (docs/format.md, section 17)."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command, script
from redis_state.errors import FormatError, UnavailableError
from redis_state.files import Folder
from redis_state.format import block
from redis_state.format.chunks import STAGED_BY_SCRIPT_MAX, chunks
from redis_state.format.entry import Segment
from redis_state.format.place import FilePlace, folder_of, new_file_name
from redis_state.format.region import sort_key, write_region
from redis_state.format.segment import combined_checksum
from redis_state.format.signature import is_signed
from redis_state.ids import PartitionId
from redis_state.places.owners import owner_of
from redis_state.places.reading import LATE_S, files_of

KEY_TTL_MS = 60_000
"""Time for which the key of a segment stays in Redis after it was moved."""
SEGMENTS_MAX = 100
"""Most segments of one file."""
_STAGED_TTL_MS = 86_400_000
_NAMES_MAX = 8
_BYTES_AT_ONCE = 4 << 20
_LATE_PAUSE_S = 0.5
_TRIES_MAX = 3
_MOVING = "moving segments into a file"
_BACK = "bringing a segment back from its file"

log = logging.getLogger(__name__)


class SegmentChangedError(Exception):
    """A segment left Redis while it was read, or lacks blocks there."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Result of a move.

    Attributes:
        segments: Number of segments that were given a place.
        bytes: Bytes of these segments.
        wasted: Number of files without any segment, which a sweep finds.
    """

    segments: int = 0
    bytes: int = 0
    wasted: int = 0


def move_out(
    client: Client, id_: PartitionId, segments: Sequence[Segment], folder: Folder
) -> Moved:
    """Moves segments of a partition into a new file, while readers and writers continue.

    Args:
        segments: At most `SEGMENTS_MAX`, each with blocks, all of them the partition's own.
        folder: Folder of the checkpoint's files.

    Raises:
        FormatError: A segment is damaged, or is signed with another secret.
        ConfigError: The folder cannot be written.
        UnavailableError: Redis or the file system does not answer, or the file is truncated.
    """
    moved = Moved()
    # Before a file is announced: each announced file leaves a row, and often a file, for a day.
    segments = _whole(client, id_, segments)
    while segments:
        name = announce(client, id_, segments)
        if name is None:
            break
        places, size = _write(client, id_, segments, folder, name)
        found = Moved()
        if places:
            found = place(client, id_, segments[: len(places)], places, size)
        moved = Moved(
            moved.segments + found.segments,
            moved.bytes + found.bytes,
            moved.wasted + (found.segments == 0),
        )
        # A changed or damaged segment stays in Redis, where maintenance verifies it.
        segments = segments[len(places) + 1 :]
    return moved


def _whole(client: Client, id_: PartitionId, segments: Sequence[Segment]) -> list[Segment]:
    """Returns the segments of which Redis has every block; checks blocks of the first segment.

    Raises:
        FormatError: The blocks are damaged, or signed with another secret.
        ConfigError: The server refuses the user.
    """
    lengths: list[Command] = [("HLEN", keys.segment(id_, one.ident)) for one in segments]
    counts = client.call(_MOVING, lengths) if lengths else []
    found = []
    for segment, count in zip(segments, counts, strict=True):
        if count == segment.entry.blocks:
            found.append(segment)
        else:
            log.info("%s: %s: %s is not whole", id_, _MOVING, segment.ident)
    if found:
        try:
            values = _RedisFields(client, id_, found[0])
            values[next(iter(values))]
        except SegmentChangedError:
            return found[1:]
    return found


def announce(
    client: Client,
    id_: PartitionId,
    segments: Sequence[Segment],
    *,
    version: int = 1,
    is_new: bool = False,
) -> str | None:
    """Announces a new file; ``None`` if the partition cannot have one.

    Args:
        version: Version of the file's segment, if that does not exist yet.
        is_new: True for a partition that the script `restore` will create within a day.
    """
    versions = [one.version for one in segments] or [version]
    of = folder_of(id_.store.operator, id_.partition, keys.store_hash(id_.store.store))
    expiry = [str(_STAGED_TTL_MS)] if is_new else []
    for _ in range(_NAMES_MAX):
        name = new_file_name(of, min(versions), max(versions))
        match client.script(_MOVING, script("announce"), _two(id_), [name, *expiry]):
            case ["OK"]:
                return name
            case ["TAKEN"]:
                # The reply to the first call was lost: that name is condemned in a day.
                continue
            case reply:
                log.info("%s: %s: %s", id_, _MOVING, " ".join(reply))
                return None
    return None


def place(
    client: Client,
    id_: PartitionId,
    segments: Sequence[Segment],
    places: Sequence[FilePlace],
    size: int,
) -> Moved:
    """Enters the places of segments whose file is complete."""
    triples = [
        word
        for segment, one in zip(segments, places, strict=True)
        for word in (segment.field, segment.entry.text, one.text)
    ]
    args = [places[0].file, str(size), str(KEY_TTL_MS), *triples]
    reply = client.script(_MOVING, script("place"), _two(id_), args)
    if reply[0] != "OK":
        log.info("%s: %s: %s", id_, _MOVING, " ".join(reply))
        return Moved()
    return Moved(int(reply[1]), sum(one.entry.bytes for one in segments))


def _write(
    client: Client, id_: PartitionId, segments: Sequence[Segment], folder: Folder, name: str
) -> tuple[list[FilePlace], int]:
    """Writes the file up to the first incomplete segment, and reads the ends of regions back.

    Returns:
        The places of the complete segments, and the length of the file up to the last of them.
    """
    places: list[FilePlace] = []
    checks: list[int] = []

    def pieces() -> Iterator[bytes]:
        begin = 0
        for segment in segments:
            at, last = begin, b""
            try:
                values = _RedisFields(client, id_, segment)
                owner = owner_of(id_, segment)
                for last in write_region(owner, values, signer=client.signer):
                    at += len(last)
                    yield last
                values.check()
            except SegmentChangedError as error:
                log.info("%s: %s: %s is not whole", id_, _MOVING, error)
                return
            places.append(FilePlace(name, begin, at - begin, len(last)))
            checks.append(zlib.crc32(last))
            begin = at

    folder.write_pieces(name, pieces())
    if places and not is_whole(client, folder, places, checks):
        raise UnavailableError(
            _MOVING,
            found=f"{folder / name} is not as it was written",
            advice="Nothing was moved. Check the file system, and the connection to it.",
            where=str(id_),
        )
    return places, sum(one.bytes for one in places)


def is_whole(
    client: Client, folder: Folder, places: Sequence[FilePlace], checks: Sequence[int]
) -> bool:
    """Returns whether the end of each region reads as it was written."""
    name = places[0].file
    spans = [(one.offset + one.bytes - one.head, one.head) for one in places]
    late_s = client.clock.monotonic_s() + LATE_S
    while (found := folder.read_ranges(name, spans)) is None:
        if client.clock.monotonic_s() >= late_s:
            return False
        client.clock.sleep_s(_LATE_PAUSE_S)
    return [zlib.crc32(raw) for raw in found] == checks


class _RedisFields(Mapping[str, bytes]):
    """Values of a segment's fields, read in the order of a region, a few MiB at a time."""

    def __init__(self, client: Client, id_: PartitionId, segment: Segment) -> None:
        self._client, self._segment = client, segment
        self._key = keys.segment(id_, segment.ident)
        # The user of a job may send this command, but no other that lists fields.
        count = str(segment.entry.blocks + 1)
        (names,) = client.call(_MOVING, [("HRANDFIELD", self._key, count)])
        if len(names) != segment.entry.blocks:
            raise SegmentChangedError(segment.ident)
        texts = [name.decode("ascii", "replace") for name in names]
        self._names = sorted(texts, key=lambda name: (name == "h", name != "h" and sort_key(name)))
        self._at = 0
        self._held: dict[str, bytes] = {}
        self._checks: dict[str, bytes] = {}
        self._bytes = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> bytes:
        if name not in self._held:
            self._read()
        return self._held.pop(name)

    def check(self) -> None:
        """Compares the fields read so far with the entry.

        Raises:
            SegmentChangedError: The segment is incomplete.
        """
        entry = self._segment.entry
        if self._bytes != entry.bytes or combined_checksum(self._checks) != entry.checksum:
            raise SegmentChangedError(self._segment.ident)

    def _read(self) -> None:
        entry = self._segment.entry
        each = max(1, _BYTES_AT_ONCE * entry.blocks // max(1, entry.bytes))
        names = self._names[self._at : self._at + each]
        self._at += each
        if not names:
            raise KeyError(self._segment.ident)
        (values,) = self._client.call(_MOVING, [("HMGET", self._key, *names)])
        for name, value in zip(names, values, strict=True):
            if value is None:
                raise SegmentChangedError(self._segment.ident)
            self._held[name] = value
            self._check(name, value)

    def _check(self, name: str, value: bytes) -> None:
        signer = self._client.signer
        if signer is None and is_signed(value):
            raise FormatError(
                _MOVING,
                found="the blocks are signed",
                advice="Give the key that the query has in 'signingKeyFile'.",
            )
        plain = value if signer is None else signer.opened(self._key, name, value)
        self._checks[name] = block.check_bytes(plain)
        self._bytes += len(plain)


def bring_back(client: Client, id_: PartitionId, segment: Segment) -> bool:
    """Brings a segment back into Redis; returns false if it has moved or is gone.

    Raises:
        StateError: Its file is gone.
        FullError: Redis has no room for it.
        FormatError: The file is damaged.
    """
    place_ = segment.place
    if place_ is None:
        return False
    key = keys.segment(id_, segment.ident)
    for _ in range(_TRIES_MAX):
        values = files_of(client).read(client, id_, segment, None, lambda: None)
        if values is None:
            return False
        for fields in chunks(values, bytes_max=STAGED_BY_SCRIPT_MAX):
            args: list[str | bytes] = [segment.field, str(_STAGED_TTL_MS)]
            args += [word for pair in fields.items() for word in pair]
            args.append("b")
            reply = client.script(_BACK, script("stage"), [keys.meta(id_), key], args)
            if reply != ["OK"]:
                return False
        args = [segment.field, segment.entry.text, place_.text]
        match client.script(_BACK, script("unplace"), [*_two(id_), key], args):
            case ["OK"]:
                return True
            case ["INCOMPLETE", _]:
                continue
            case _:
                return False
    return False


def _two(id_: PartitionId) -> list[str]:
    return [keys.meta(id_), keys.files(id_)]


def rows_of(client: Client, id_: PartitionId) -> list[FileRow]:
    """Returns the files of a partition that Redis knows, by name."""
    listing: Command = ("HGETALL", keys.files(id_))
    (found,) = client.call("listing the files of a partition", [listing])
    return [row for name in sorted(found) if (row := _row(name, found[name])) is not None]


@dataclass(frozen=True, slots=True)
class FileRow:
    """A file as Redis knows it.

    Attributes:
        state: ``n`` announced, ``u`` used, ``d`` condemned.
        at_ms: Time of the last change of the state, ms since 1970 by the server's clock.
        segments: Number of segments with a place in it.
    """

    file: str
    state: str
    at_ms: int
    segments: int
    bytes: int


def _row(name: bytes, value: bytes) -> FileRow | None:
    parts = value.decode("ascii", "replace").split(" ")
    if len(parts) != 4 or not all(one.isdigit() for one in parts[1:]):
        return None
    state, *numbers = parts
    return FileRow(name.decode("ascii", "replace"), state, *map(int, numbers))


def condemn(client: Client, id_: PartitionId, file: str, *, announced_ms: int) -> bool:
    """Condemns a file that Redis does not know, or that was announced long ago.

    Returns:
        True if this call condemned the file.
    """
    args = [file, str(announced_ms)]
    return client.script("sweeping files", script("condemn"), _two(id_), args) == ["OK"]


def discard(client: Client, id_: PartitionId, file: str) -> bool:
    """Removes the row of a condemned file that was deleted."""
    return client.script("deleting a file", script("discard"), _two(id_), [file]) == ["OK"]
