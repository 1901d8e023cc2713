"""Manifest entries and the segments that they name (docs/format.md, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from redis_state.errors import FormatError
from redis_state.ids import EMPTY_UID, is_uid, text_number

BUCKETS_MAX = 1 << 20
CHECKSUM_MAX = (1 << 32) - 1
_FLAGS = {"-": (False, False), "c": (True, False), "h": (False, True), "ch": (True, True)}
_KINDS = (b"d:", b"s:")
_WORDS = 8
_BYTES_WORD = 4
# One more word if the version has rows in internal families.
_WORDS_MAX = 9
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

    @property
    def text(self) -> str:
        """The entry in the form of the manifest."""
        flags = ("c" if self.complete else "") + ("h" if self.header else "")
        numbers = [self.rows, self.live, self.blocks, self.bytes, self.buckets, self.checksum]
        if self.internal:
            numbers.append(self.internal)
        return f"{self.ref} {' '.join(map(str, numbers))} {flags or '-'}"


def parse_entry(text: str) -> Entry:
    """Parses an entry.

    Raises:
        FormatError: The entry is malformed or has a flag that this release does not know.
    """
    words = text.split(" ")
    if not _WORDS <= len(words) <= _WORDS_MAX:
        raise _bad(f"it has {len(words)} words, not {_WORDS} or {_WORDS_MAX}")
    ref, flags = words[0], words[-1]
    numbers = [number for word in words[1:-1] if (number := text_number(word)) is not None]
    if len(numbers) != len(words) - 2:
        raise _bad("a number is malformed")
    if ref != EMPTY_UID and not is_uid(ref):
        raise _bad("its first word is not a uid")
    if flags not in _FLAGS:
        raise _bad("it has a flag that this release does not know")
    rows, live, blocks, size, buckets, checksum, *more = numbers
    if not 1 <= buckets <= BUCKETS_MAX or buckets & (buckets - 1):
        raise _bad("its bucket count is not a power of two up to 1,048,576")
    if checksum > CHECKSUM_MAX:
        raise _bad("its checksum has more than 32 bits")
    internal = more[0] if more else 0
    if more and not 0 < internal <= live:
        raise _bad("its count of internal keys is 0, or above that of all keys")
    complete, header = _FLAGS[flags]
    return Entry(ref, rows, live, blocks, size, buckets, checksum, complete, header, internal)


@dataclass(frozen=True, slots=True)
class Segment:
    """A delta or snapshot that a manifest names."""

    snapshot: bool
    version: int
    uid: str
    entry: Entry

    @property
    def field(self) -> str:
        """Field of the manifest."""
        return f"{'s' if self.snapshot else 'd'}:{self.version}:{self.uid}"

    @property
    def ident(self) -> str:
        """Part of the segment's key after ``P:``, which every block's check covers."""
        return f"s:{self.version}:{self.entry.ref}" if self.snapshot else self.field

    @property
    def alone(self) -> bool:
        """True if the segment needs no older segment."""
        return self.snapshot or self.entry.complete or self.entry.ref == EMPTY_UID


@lru_cache(maxsize=_KNOWN_MAX)
def parse_segment(field: str, entry: str) -> Segment:
    """Parses a manifest field and its entry.

    Raises:
        FormatError: One of the two is malformed.
    """
    kind, _, rest = field.partition(":")
    version_text, _, uid = rest.partition(":")
    version = text_number(version_text)
    if kind not in ("d", "s") or not version or not is_uid(uid):
        raise _bad("its field is malformed")
    parsed = parse_entry(entry)
    if kind == "s" and (parsed.ref == EMPTY_UID or parsed.complete):
        raise _bad("a snapshot has no writer, or the flag of a delta")
    return Segment(kind == "s", version, uid, parsed)


def segments_in(
    manifest: Mapping[bytes, bytes], damaged: Callable[[Exception], object] | None = None
) -> Iterator[Segment]:
    """Yields the segments that a manifest names.

    Args:
        damaged: Called with the error of each malformed entry, which is skipped.
    """
    for name, entry in manifest.items():
        if name[:2] in _KINDS:
            try:
                segment = parse_segment(name.decode("ascii"), entry.decode("ascii"))
            except (FormatError, UnicodeDecodeError) as error:
                if damaged is not None:
                    damaged(error)
            else:
                yield segment


def bytes_in(manifest: Mapping[bytes, bytes]) -> int:
    """Sums the sizes of all segments that a manifest names, without parsing their other numbers."""
    entries = (manifest[name].split(b" ") for name in manifest if name[:2] in _KINDS)
    sizes = (words[_BYTES_WORD] for words in entries if len(words) > _BYTES_WORD)
    return sum(int(size) for size in sizes if size.isdigit())


def _bad(found: str) -> FormatError:
    return FormatError("reading a manifest entry", found=found)
