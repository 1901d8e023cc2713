"""Files of a copy: a manifest, and one file for each partition (docs/format.md, 11)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis_state import keys
from redis_state.errors import FormatError
from redis_state.files import Folder
from redis_state.format.entry import Segment, parse_segment
from redis_state.ids import PartitionId, StoreId, is_gen, is_uid

FOLDER = "state/_redis_state_copies"
MANIFEST = "manifest"
FORMAT = 1
"""Copies with a file for each partition; those of the next format share files."""
FORMAT_OF_PLACES = 2
_NAME = re.compile(r"([1-9][0-9]{0,18})-[0-9a-f]{32}")
# Fields that a copy may restore; runs and epochs of its time would fence today's runs.
_QUERY_FIELD = re.compile(r"path|id|name|created|op:.+", re.DOTALL)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MANIFEST_BYTES_MAX = 256 << 20
_DIGEST_LINE = 65


@dataclass(frozen=True, slots=True)
class CopyHead:
    """Version of a partition in a copy.

    Attributes:
        uid: Uid of the attempt that wrote the version.
        checkpoint_format: Checkpoint format of the run that held the partition, 1 or 2.
        retained: Number of versions that this run retained.
        segments: Segments, newest first; the last one needs no other segment.
    """

    uid: str
    checkpoint_format: int
    retained: int
    segments: tuple[Segment, ...]

    @property
    def floor(self) -> int:
        """Returns the lowest version that loads."""
        last = self.segments[-1]
        return last.version if last.snapshot or last.entry.complete else last.version - 1


@dataclass(frozen=True, slots=True)
class CopyPart:
    """One partition of a copy.

    Attributes:
        bytes: Length of its file, or of its segments' regions.
        sha256: SHA-256 of the file, in hexadecimal digits; empty where there is no such file.
        head: The segments and their places; ``None`` if the file of the partition has them.
    """

    operator: int
    partition: int
    store: str
    bytes: int
    sha256: str = ""
    head: CopyHead | None = None

    @property
    def name(self) -> str:
        """Returns the name of the file."""
        return f"{self.operator}-{self.partition}-{keys.store_hash(self.store)}"

    def id(self, gen: str, *, tenant: str = "") -> PartitionId:
        """Returns the id of the partition."""
        return PartitionId(StoreId(gen, self.operator, self.store, tenant), self.partition)


@dataclass(frozen=True, slots=True)
class Copy:
    """A complete copy.

    Attributes:
        offsets: SHA-256 of the offset log's entry for the batch that wrote the version.
        query: Fields of the query's registry, limited to those that a copy may have.
        created_ms: Milliseconds since 1970.
        address: Address of the folder with the files that copies share, as Hadoop writes it; empty
            for a copy with a file for each partition.
        outside: True if the query has its own files in another folder.
        own_address: Address of that folder; empty if the copy does not name it.
    """

    folder: Folder
    gen: str
    version: int
    run_id: str
    created_ms: int
    offsets: str
    query: Mapping[str, str]
    parts: tuple[CopyPart, ...]
    address: str = ""
    outside: bool = False
    own_address: str = ""

    @property
    def batch(self) -> int:
        """Returns the batch that wrote the state."""
        return self.version - 1

    @property
    def bytes(self) -> int:
        """Returns the size of everything that the copy names."""
        return sum(part.bytes for part in self.parts)


def copies_of(checkpoint: Folder) -> list[Folder]:
    """Returns the folders of complete copies, newest version first.

    Raises:
        ConfigError: The folder cannot be read.
    """
    folder = checkpoint / FOLDER
    items = folder.items() or ()
    found = [folder / item.name for item in items if _NAME.fullmatch(item.name)]
    return sorted((one for one in found if one.has(MANIFEST)), key=version_of, reverse=True)


def version_of(folder: Folder) -> int:
    """Returns the version in the name of a copy's folder; 0 for any other name."""
    match = _NAME.fullmatch(folder.name)
    return int(match[1]) if match else 0


def offsets_of(checkpoint: Folder, batch: int) -> str | None:
    """Returns the hash of a batch's timeline; ``None`` if the offset log lacks the batch.

    Raises:
        ConfigError: The entry cannot be read.
    """
    raw = checkpoint.read(f"offsets/{batch}")
    return None if raw is None else hashlib.sha256(raw).hexdigest()


def read_copy(folder: Folder) -> Copy:
    """Reads the manifest of a copy.

    Raises:
        FormatError: The manifest is damaged, or its format is unknown to this release.
        ConfigError: The manifest cannot be read.
    """
    what = f"reading the copy in {folder}"
    raw = folder.read(MANIFEST, most=_MANIFEST_BYTES_MAX)
    if raw is None:
        raise damaged(what, "its manifest is missing")
    text = raw[_DIGEST_LINE:]
    if raw[:_DIGEST_LINE] != hashlib.sha256(text).hexdigest().encode() + b"\n":
        raise damaged(what, "its manifest does not match its SHA-256")
    try:
        return _parse(folder, json.loads(text))
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        FormatError,
    ) as error:
        raise damaged(
            what, "its manifest is malformed, or was written by a newer release"
        ) from error


def damaged(what: str, found: str) -> FormatError:
    """Returns the error for a copy that cannot be used."""
    return FormatError(
        what,
        found=found,
        advice="Nothing of it was used. Give an older batch with --to-batch, or restore the files.",
    )


def _parse(folder: Folder, raw: Any) -> Copy:
    gen, offsets = _text(raw["gen"]), _text(raw["offsets"])
    version = _whole(raw["version"])
    query = {
        name: _text(value) for name, value in raw["query"].items() if _QUERY_FIELD.fullmatch(name)
    }
    shared = raw["format"] == FORMAT_OF_PLACES
    parts = tuple(_placed_part(part) if shared else _part(part) for part in raw["parts"])
    known = raw["format"] in (FORMAT, FORMAT_OF_PLACES) and is_gen(gen)
    if not known or version != version_of(folder):
        raise ValueError
    if not parts or len({part.name for part in parts}) != len(parts):
        raise ValueError
    return Copy(
        folder,
        gen,
        version,
        _text(raw["run"]),
        _whole(raw["created"]),
        _digest(offsets),
        query,
        parts,
        _text(raw["folder"]) if shared else "",
        raw.get("outside") is True,
        _text(raw.get("own_folder", "")),
    )


def _part(raw: Any) -> CopyPart:
    return CopyPart(
        _whole(raw["operator"]),
        _whole(raw["partition"]),
        _text(raw["store"]),
        _whole(raw["bytes"]),
        _digest(raw["sha256"]),
    )


def _placed_part(raw: Any) -> CopyPart:
    segments = tuple(
        parse_segment(_text(field), _text(entry), _text(place))
        for field, entry, place in raw["segments"]
    )
    uid, format_, retained = _text(raw["uid"]), raw["checkpoint_format"], _whole(raw["retained"])
    has_places = all((one.place is not None) == (one.entry.blocks > 0) for one in segments)
    if not is_uid(uid) or format_ not in (1, 2) or not retained or not segments or not has_places:
        raise ValueError
    # Of its own files only: a foreign place would make the state depend on another checkpoint.
    if any(one.gen for one in segments):
        raise ValueError
    size = sum(one.place.bytes for one in segments if one.place is not None)
    operator, partition = _whole(raw["operator"]), _whole(raw["partition"])
    head = CopyHead(uid, format_, retained, segments)
    return CopyPart(operator, partition, _text(raw["store"]), size, head=head)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise TypeError
    return value


def _digest(value: object) -> str:
    text = _text(value)
    if not _SHA256.fullmatch(text):
        raise ValueError
    return text
