"""Places of segments: a key, here or of another checkpoint, or a file (docs/format.md, 17)."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from redis_state.errors import FormatError
from redis_state.ids import is_gen, text_number

FIELD = "a:"
"""Prefix of the manifest fields with places; the ident of the segment follows."""

REGION_BYTES_MAX = 1 << 40
HEAD_BYTES_MIN = 8
_FOREIGN = "p"
_FILE = "f"
_FILE_WORDS = 5
_RANDOM_BYTES = 16
_FILE_NAME = re.compile(
    r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)-[0-9a-f]{16}/[1-9][0-9]*-[1-9][0-9]*-[0-9a-f]{32}"
    r"\.(seg|copy)"
)
_COPY_ENDING = ".copy"


@dataclass(frozen=True, slots=True)
class FilePlace:
    """Place of a segment in a file.

    Attributes:
        file: Name of the file, below the folder of its checkpoint.
        offset: Begin of the region.
        bytes: Length of the region.
        head: Length of the end of the region that describes the rest.
    """

    file: str
    offset: int
    bytes: int
    head: int

    @property
    def text(self) -> str:
        """The place in the form of the manifest."""
        return f"{_FILE} {self.file} {self.offset} {self.bytes} {self.head}"


def parse_place(text: str) -> tuple[str, FilePlace | None]:
    """Parses a place; returns the checkpoint that has the key, or the file.

    Raises:
        FormatError: The place is malformed, or of a kind that this release does not know.
    """
    if not text:
        return "", None
    words = text.split(" ")
    if len(words) == 2 and words[0] == _FOREIGN and is_gen(words[1]):
        return words[1], None
    if len(words) == _FILE_WORDS and words[0] == _FILE and is_file_name(words[1]):
        numbers = [number for one in words[2:] if (number := text_number(one)) is not None]
        if len(numbers) == _FILE_WORDS - 2:
            place = FilePlace(words[1], *numbers)
            fits = HEAD_BYTES_MIN <= place.head <= place.bytes <= REGION_BYTES_MAX
            if fits and place.offset <= REGION_BYTES_MAX:
                return "", place
    raise FormatError(
        "reading a manifest entry",
        found="its place is malformed, or of a kind that this release does not know",
    )


def foreign_segments(manifest: Mapping[bytes, bytes]) -> dict[str, str]:
    """Returns the idents of a manifest's foreign segments, each with the checkpoint of its key."""
    field, word = FIELD.encode(), f"{_FOREIGN} ".encode()
    return {
        name[len(field) :].decode("ascii", "replace"): place[len(word) :].decode("ascii", "replace")
        for name, place in manifest.items()
        if name.startswith(field) and place.startswith(word)
    }


def is_file_name(name: str) -> bool:
    """Returns whether a name has the form of a file of segments, or of copies."""
    return _FILE_NAME.fullmatch(name) is not None


def is_copy_name(name: str) -> bool:
    """Returns whether a name has the form of a file that copies of a query have written."""
    return is_file_name(name) and name.endswith(_COPY_ENDING)


def folder_of(operator: int, partition: int, store_hash: str) -> str:
    """Returns the name of the folder with the files of a partition."""
    return f"{operator}-{partition}-{store_hash}"


def new_file_name(folder: str, first: int, last: int) -> str:
    """Returns a name that no file has had, for segments of some versions.

    Args:
        folder: See `folder_of`.
    """
    return f"{folder}/{first}-{last}-{secrets.token_hex(_RANDOM_BYTES)}.seg"
