"""Manifest entries and the segments that they name (docs/format.md, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as attribute
from functools import lru_cache
from itertools import product

from redis_state.errors import FormatError
from redis_state.format.place import FilePlace, parse_place
from redis_state.ids import EMPTY_UID, Pin, is_uid, text_number

BUCKETS_MAX = 1 << 20
CHECKSUM_MAX = (1 << 32) - 1
TIME_S_MAX = (1 << 32) - 2
"""Latest time of a version; the next number is the expiry of rows that never expire."""

_FLAGS = {
    "".join(letters) or "-": (bool(letters[0]), bool(letters[1]), bool(letters[2]))
    for letters in product(("", "c"), ("", "h"), ("", "t"))
}
FORMATS = (b"1", b"2")
"""Format numbers of partitions that this release reads and writes."""

_KINDS = (b"d:", b"s:")
_ASIDE = b"z:"
_HOT_RUN = b"r:"
_WORDS = 8
_BYTES_WORD = 4
# One more word if the version has rows in internal families, and one if it has a time.
_WORDS_MAX = 10
# Readers parse the same entries again and again, and entries never change.
_KNOWN_MAX = 4096


@dataclass(frozen=True, slots=True)
class Entry:
    """A segment's entry in the manifest.

    Attributes:
        ref: Uid of the parent of a delta; writer of a snapshot.
        rows: Rows in the segment.
        live: Live keys of the version, all families.
        blocks: Fields of the segment's hash; 0 means that there is no key.
        bytes: Sum of the lengths of all blocks.
        buckets: A power of two.
        checksum: Checksum of all blocks (section 4.6).
        complete: True if the delta holds every row of its version.
        header: True if the segment has a header.
        internal: Number of live keys in internal families.
        time: Time of the version in seconds since 1970; 0 if no family has a time to live.
    """

    ref: str
    rows: int
    live: int
    blocks: int
    bytes: int
    buckets: int
    checksum: int
    complete: bool = False
    header: bool = False
    internal: int = 0
    time: int = 0

    @property
    def text(self) -> str:
        """The entry in the form of the manifest."""
        given = (("c", self.complete), ("h", self.header), ("t", self.time))
        flags = "".join(letter for letter, is_set in given if is_set)
        numbers = [self.rows, self.live, self.blocks, self.bytes, self.buckets, self.checksum]
        if self.internal:
            numbers.append(self.internal)
        if self.time:
            numbers.append(self.time)
        return f"{self.ref} {' '.join(map(str, numbers))} {flags or '-'}"


def parse_entry(text: str) -> Entry:
    """Parses an entry.

    Raises:
        FormatError: The entry is malformed or has a flag that this release does not know.
    """
    words = text.split(" ")
    if not _WORDS <= len(words) <= _WORDS_MAX:
        raise _bad(f"it has {len(words)} words, not {_WORDS} to {_WORDS_MAX}")
    ref, flags = words[0], words[-1]
    numbers = [number for word in words[1:-1] if (number := text_number(word)) is not None]
    if len(numbers) != len(words) - 2:
        raise _bad("a number is malformed")
    if ref != EMPTY_UID and not is_uid(ref):
        raise _bad("its first word is not a uid")
    if flags not in _FLAGS:
        raise _bad("it has a flag that this release does not know")
    complete, header, timed = _FLAGS[flags]
    rows, live, blocks, size, buckets, checksum, *more = numbers
    if timed and not (more and 1 <= more[-1] <= TIME_S_MAX):
        raise _bad("it has the flag of a time, but no time that a version can have")
    time = more.pop() if timed else 0
    if len(more) > 1:
        raise _bad("it has a word too many")
    if not 1 <= buckets <= BUCKETS_MAX or buckets & (buckets - 1):
        raise _bad("its bucket count is not a power of two up to 1,048,576")
    if checksum > CHECKSUM_MAX:
        raise _bad("its checksum has more than 32 bits")
    internal = more[0] if more else 0
    if more and not 0 < internal <= live:
        raise _bad("its count of internal keys is 0, or above that of all keys")
    return Entry(ref, rows, live, blocks, size, buckets, checksum, complete, header, internal, time)


@dataclass(frozen=True, slots=True)
class Segment:
    """A delta, snapshot or hot run that a manifest names, or a slice that a preview names.

    Attributes:
        gen: The checkpoint that has its key, if it is foreign; empty for the manifest's own.
        place: The file that holds its blocks; ``None`` if Redis does. Of a foreign segment only its
            own checkpoint knows. A segment that moves stays equal.
        slice: Number of a slice within its attempt, which reads as a delta; 0 for other segments.
        over: The version that a hot run stands on; ``None`` for other segments.
    """

    snapshot: bool
    version: int
    uid: str
    entry: Entry
    gen: str = ""
    place: FilePlace | None = attribute(default=None, compare=False)
    slice: int = 0
    over: Pin | None = None

    @property
    def field(self) -> str:
        """Field of the manifest."""
        kind = "r" if self.over is not None else "s" if self.snapshot else "d"
        return f"{kind}:{self.version}:{self.uid}"

    @property
    def ident(self) -> str:
        """Part of the segment's key after ``P:``, which every block's check covers."""
        if self.slice:
            return f"u:{self.version}:{self.uid}.{self.slice}"
        if self.over is not None:
            return f"r:{self.version}:{self.entry.ref}"
        return f"s:{self.version}:{self.entry.ref}" if self.snapshot else self.field

    @property
    def parent(self) -> Pin:
        """The version that the segment applies to; of no use for one that stands alone."""
        return self.over or Pin(self.version - 1, self.entry.ref)

    @property
    def stands(self) -> bool:
        """True if a hot run may stand on the segment: it has all rows of its version."""
        return self.snapshot or self.entry.complete

    @property
    def alone(self) -> bool:
        """True if the segment needs no older segment."""
        return self.snapshot or self.entry.complete or self.entry.ref == EMPTY_UID


@lru_cache(maxsize=_KNOWN_MAX)
def parse_segment(field: str, entry: str, place: str = "") -> Segment:
    """Parses a manifest field and its entry.

    Args:
        place: Where the key of the segment is (docs/format.md, section 14); empty for the
            partition's own.

    Raises:
        FormatError: One of them is malformed.
    """
    kind, _, rest = field.partition(":")
    version_text, _, uid = rest.partition(":")
    version = text_number(version_text)
    if kind not in ("d", "s", "r") or not version or not is_uid(uid):
        raise _bad("its field is malformed")
    over = None
    if kind == "r":
        base, base_uid, entry = (*entry.split(" ", 2), "", "")[:3]
        over = Pin(text_number(base) or 0, base_uid)
        if not 0 < over.version < version or not is_uid(base_uid):
            raise _bad("a hot run stands on no version below its own")
    parsed = parse_entry(entry)
    if kind != "d" and (parsed.ref == EMPTY_UID or parsed.complete):
        raise _bad("a snapshot or hot run has no writer, or the flag of a delta")
    return Segment(kind == "s", version, uid, parsed, *parse_place(place), over=over)


def placed_segment(manifest: Mapping[bytes, bytes], field: bytes, entry: bytes) -> Segment:
    """Parses an entry, and says by the manifest which checkpoint has the key of the segment.

    Raises:
        FormatError: The entry or its place is malformed.
        UnicodeDecodeError: A byte is not ASCII.
    """
    texts = field.decode("ascii"), entry.decode("ascii")
    segment = parse_segment(*texts)
    place = manifest.get(b"a:" + segment.ident.encode())
    return segment if place is None else parse_segment(*texts, place.decode("ascii"))


def segments_in(
    manifest: Mapping[bytes, bytes], damaged: Callable[[Exception], object] | None = None
) -> Iterator[Segment]:
    """Yields the segments that a manifest names, those that were set aside included.

    Args:
        damaged: Called with the error of each malformed entry, which is skipped.
    """
    for name, value in manifest.items():
        if name[:2] not in _KINDS and name[:2] != _ASIDE:
            continue
        field, entry = name, value
        if name[:2] == _ASIDE:
            field, _, entry = value.partition(b" ")
        try:
            segment = placed_segment(manifest, field, entry)
        except (FormatError, UnicodeDecodeError) as error:
            if damaged is not None:
                damaged(error)
        else:
            yield segment


def ident_of(field: bytes, ref: bytes) -> bytes:
    """Returns the ident of the segment that a field of a manifest names.

    Args:
        field: Field of a delta or snapshot.
        ref: First word of its entry.
    """
    return field if field[:2] == b"d:" else b":".join([*field.split(b":")[:2], ref])


def bytes_in(manifest: Mapping[bytes, bytes]) -> int:
    """Sums the sizes of all segments whose keys a manifest has, those set aside included.

    The other numbers of their entries are not parsed.
    """
    total = 0
    for name, value in manifest.items():
        words = value.split(b" ")
        if name[:2] == _ASIDE:
            ident, words = name[2:], words[1:]
        elif name[:2] in _KINDS:
            ident = ident_of(name, words[0])
        elif name[:2] == _HOT_RUN:
            ident, words = name, words[2:]
        else:
            continue
        is_counted = len(words) > _BYTES_WORD and words[_BYTES_WORD].isdigit()
        if is_counted and b"a:" + ident not in manifest:
            total += int(words[_BYTES_WORD])
    return total


def _bad(found: str) -> FormatError:
    return FormatError("reading a manifest entry", found=found)
