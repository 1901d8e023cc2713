"""A copier by the rules of docs/format.md, section 11, and the folder of its copies.

Copies are made by the driver of a Spark query, in Scala. Here the rules are played against the
scripts and the file systems of a schedule. All copies of a checkpoint have one file each, the
manifest.
"""

from __future__ import annotations

import hashlib
import json
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import time_ms
from redis_state.errors import UnavailableError
from redis_state.files import Folder
from redis_state.format.entry import Segment, parse_segment
from redis_state.format.place import FilePlace, folder_of, is_copy_name
from redis_state.format.region import write_region
from redis_state.ids import PartitionId
from redis_state.places.moving import discard, is_whole, rows_of
from redis_state.places.owners import owner_of
from redis_state.places.reading import files_of
from redis_state.protocol import Opened, PartitionClient

KEPT = 2
HALF_MS = 30 * 60_000
GRACE_MS = 60 * 60_000
_LENGTH = 1 << 30
_DIGEST = 65
_WHAT = "copying a partition"

Name = tuple[str, str]
"""Manifest field and entry of a segment."""


@dataclass(frozen=True)
class PlayedCopy:
    """A complete copy.

    Attributes:
        name: Name of its manifest: version and attempt.
        uid: Attempt that wrote the version; it stands for the entry of the offset log.
        segments: Newest first; the place is that in a file of copies.
        unneeded: Files that the copy does not name, with the time when a copy last named them.
    """

    name: str
    version: int
    uid: str
    format: int
    segments: tuple[Segment, ...]
    unneeded: Mapping[str, int]

    @cached_property
    def places(self) -> dict[Name, FilePlace]:
        """Places of the segments that have blocks."""
        return {(one.field, one.entry.text): one.place for one in self.segments if one.place}

    @property
    def files(self) -> set[str]:
        """Files that the copy names."""
        return {place.file for place in self.places.values()}

    @property
    def floor(self) -> int:
        """Lowest version that loads from the segments."""
        last = self.segments[-1]
        return last.version if last.snapshot or last.entry.complete else last.version - 1

    def text(self) -> bytes:
        """Returns the manifest."""
        segments = [
            [one.field, one.entry.text, one.place.text if one.place else ""]
            for one in self.segments
        ]
        text = json.dumps([self.version, self.uid, self.format, segments, dict(self.unneeded)])
        return f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}".encode()


def parsed(name: str, raw: bytes) -> PlayedCopy | None:
    """Parses a manifest; ``None`` if it is not whole."""
    text = raw[_DIGEST:]
    if raw[: _DIGEST - 1].decode() != hashlib.sha256(text).hexdigest():
        return None
    version, uid, format_, segments, unneeded = json.loads(text)
    return PlayedCopy(
        name, version, uid, format_, tuple(parse_segment(*one) for one in segments), unneeded
    )


@dataclass(frozen=True)
class CopyFolder:
    """Manifests of a checkpoint's copies."""

    folder: Folder

    def names(self) -> list[str]:
        """Lists the manifests, unfinished ones included."""
        return [one.name for one in self.folder.items() or ()]

    def complete(self, names: Sequence[str] | None = None) -> list[PlayedCopy]:
        """Reads all complete copies, or those of some names."""
        found = [self._read(name) for name in (self.names() if names is None else names)]
        return [one for one in found if one is not None]

    def write(self, copy: PlayedCopy) -> None:
        """Writes a manifest."""
        self.folder.write_pieces(copy.name, [copy.text()])

    def remove(self, name: str) -> None:
        """Removes a copy."""
        self.folder.remove_file(name)

    def _read(self, name: str) -> PlayedCopy | None:
        path = (self.folder / name).path
        try:
            (raw,) = self.folder.files.read_ranges(path, [(0, _LENGTH)])
        except FileNotFoundError:
            return None
        except TimeoutError as error:
            raise UnavailableError(_WHAT, found="a manifest was not read") from error
        return parsed(name, raw)


class Copier:
    """Copier of one driver, which remembers what it did.

    Args:
        client: Made anew for each copy.
        copies: Manifests of the copies.
        files: Folder of the checkpoint's files.
        now_ms: The driver's clock.
        hold: Called with true where no time may go by from there on, and with false behind it: a
            driver that is stopped between two such steps is not promised anything.
        is_current: Whether the offset log has the entry of an attempt.

    Attributes:
        phase: What it has done of its copy; another one with each step that others may notice.
        made, removed, deleted: Counts of copies, and of files.
    """

    def __init__(
        self,
        id_: PartitionId,
        run_id: str,
        *,
        client: Callable[[], Client],
        copies: CopyFolder,
        files: Folder,
        now_ms: Callable[[], int],
        hold: Callable[[bool], None],
        is_current: Callable[[int, str], bool],
        grace_ms: int,
    ) -> None:
        self._id, self._run_id, self._client = id_, run_id, client
        self._copies, self._files = copies, files
        self._now_ms, self._hold, self._is_current = now_ms, hold, is_current
        self._grace_ms = grace_ms
        self._written: dict[Name, FilePlace] = {}
        self._written_ms = self._made_ms = 0
        self._name = ""
        self._surveyed_ms: int | None = None
        self._gone: set[str] = set()
        self.phase = ""
        self.made = self.removed = self.deleted = 0

    def run(self, partition: PartitionClient, format_: int) -> None:
        """Makes a copy of what is opened, then tidies.

        Raises:
            RedisStateError: Something does not answer, or the copy would not be right.
        """
        opened = partition.open("", None)
        if not opened.pin.version or not self._holds():
            return
        self._make(opened, format_)
        self._tidy()

    def _holds(self) -> bool:
        (holder,) = self._client().call(_WHAT, [("HGET", keys.meta(self._id), "r")])
        return bool(holder == self._run_id.encode())

    # ---- a copy --------------------------------------------------------------------------------

    def _make(self, opened: Opened, format_: int) -> None:
        pin, began = opened.pin, self._now_ms()
        before = self._copies.complete()
        self.phase = "knows the copies"
        if any((one.version, one.uid) == (pin.version, pin.uid) for one in before):
            return
        self._forget_written(began, before)
        listed = self._survey() if self._is_survey_due(began) else None
        known = {name: place for one in before for name, place in one.places.items()}
        known = {
            name: place for name, place in known.items() if listed is None or place.file in listed
        }
        try:
            segments = self._placed(opened.segments, known | self._written)
        finally:
            self._written_ms = self._now_ms()
        self.phase = "has its files"
        named = {one.place.file for one in segments if one.place}
        self._check_files(began, named)
        own = {place.file for place in self._written.values()}
        self._hold(True)
        try:
            self._made_ms = self._now_ms()
            others = self._copies.complete()
            self.phase = "writes its manifest"
            self._check_named(named, own, others)
            self._check_age(own, others)
            unneeded = self._since(others, listed, own)
            unneeded = {file: ms for file, ms in unneeded.items() if file not in named}
            self._name = f"{pin.version}-{uuid.uuid4().hex}"
            self._copies.write(
                PlayedCopy(self._name, pin.version, pin.uid, format_, tuple(segments), unneeded)
            )
        except UnavailableError:
            self._failed(own)
            raise
        finally:
            self._hold(False)
        self.phase = "has its manifest"
        if listed is not None:
            self._surveyed_ms = began
        self._written = {}
        self.made += 1

    def _forget_written(self, now_ms: int, others: Sequence[PlayedCopy]) -> None:
        """Another driver may soon delete what no manifest names."""
        if now_ms - self._written_ms > HALF_MS:
            self._written = {}
        kept = self._written.items()
        self._written = {name: at for name, at in kept if not self._is_old(at.file, others)}

    def _is_old(self, file: str, others: Sequence[PlayedCopy]) -> bool:
        """Returns whether other copies have listed a file for half an hour."""
        listed = [one.unneeded[file] for one in others if file in one.unneeded]
        return any(self._now_ms() - ms > HALF_MS for ms in listed)

    def _check_age(self, own: set[str], others: Sequence[PlayedCopy]) -> None:
        if any(self._is_old(file, others) for file in own):
            raise UnavailableError(_WHAT, found="its files are old, and may be deleted")

    def _is_survey_due(self, now_ms: int) -> bool:
        return self._surveyed_ms is None or now_ms - self._surveyed_ms >= 24 * GRACE_MS

    def _survey(self) -> set[str]:
        """Files of copies that a listing shows."""
        of = self._id.store
        own = folder_of(of.operator, self._id.partition, keys.store_hash(of.store))
        names = [f"{own}/{one.name}" for one in (self._files / own).items() or ()]
        return {name for name in names if is_copy_name(name)}

    def _placed(
        self, segments: Sequence[Segment], known: Mapping[Name, FilePlace]
    ) -> list[Segment]:
        """Writes what no copy has; returns all segments with their places in files of copies."""
        missing = [
            one
            for one in reversed(segments)
            if one.entry.blocks and (one.field, one.entry.text) not in known
        ]
        places = dict(known)
        if missing:
            self._written.update(self._write(missing))
            places.update(self._written)
        found = []
        for one in segments:
            place = places.get((one.field, one.entry.text)) if one.entry.blocks else None
            found.append(parse_segment(one.field, one.entry.text, place.text if place else ""))
        return found

    def _write(self, segments: Sequence[Segment]) -> dict[Name, FilePlace]:
        of = self._id.store
        own = folder_of(of.operator, self._id.partition, keys.store_hash(of.store))
        versions = [one.version for one in segments]
        file = f"{own}/{min(versions)}-{max(versions)}-{uuid.uuid4().hex}.copy"
        client = self._client()
        places: dict[Name, FilePlace] = {}
        checks: list[int] = []
        pieces: list[bytes] = []
        for one in segments:
            region = list(
                write_region(owner_of(self._id, one), self._values(client, one), signer=None)
            )
            begin, size = sum(map(len, pieces)), sum(map(len, region))
            places[one.field, one.entry.text] = FilePlace(file, begin, size, len(region[-1]))
            checks.append(zlib.crc32(region[-1]))
            pieces += region
        self._files.write_pieces(file, pieces)
        if not is_whole(client, self._files, list(places.values()), checks):
            raise UnavailableError(_WHAT, found=f"{file} is not as it was written")
        return places

    def _values(self, client: Client, segment: Segment) -> dict[str, bytes]:
        def from_redis() -> dict[str, bytes] | None:
            (found,) = client.call(_WHAT, [("HGETALL", keys.segment(self._id, segment.ident))])
            return {name.decode(): value for name, value in found.items()} or None

        values = files_of(client).read(client, self._id, segment, None, from_redis)
        if values is None or len(values) != segment.entry.blocks:
            raise UnavailableError(_WHAT, found=f"{segment.ident} was dropped meanwhile")
        return values

    def _check_files(self, began: int, named: set[str]) -> None:
        """After half an hour another driver may have deleted what no manifest names."""
        if self._now_ms() - began > HALF_MS and not named <= self._survey():
            raise UnavailableError(_WHAT, found="a file of the copy is not listed")

    def _check_named(self, named: set[str], own: set[str], others: Sequence[PlayedCopy]) -> None:
        """A copy that was removed meanwhile no longer keeps its files."""
        held = own.union(*(one.files for one in others))
        if not named <= held:
            raise UnavailableError(_WHAT, found="a file was in a copy that is gone")

    def _since(
        self, others: Sequence[PlayedCopy], listed: set[str] | None, own: set[str]
    ) -> dict[str, int]:
        """Returns since when no copy names each file."""
        now = self._now_ms()
        named = set[str]().union(*(one.files for one in others))
        before: dict[str, int] = {}
        for one in others:
            for file, ms in one.unneeded.items():
                before[file] = max(ms, before.get(file, 0))
        found = named | before.keys() | (listed or set()) | own
        return {
            file: now if file in named else min(now, before.get(file, now))
            for file in sorted(found)
            if file not in self._gone and (listed is None or file in own or file in listed)
        }

    def _failed(self, own: set[str]) -> None:
        """Its files stay: the manifest may be there."""

    # ---- what is removed -----------------------------------------------------------------------

    def _tidy(self) -> None:
        self._hold(True)
        try:
            kept = self._remove_copies() if self._may_remove() else []
        finally:
            self._hold(False)
        if not kept:
            return
        newest = max(kept, key=lambda one: one.version)
        now = self._now_ms()
        due = [
            file
            for file in newest.unneeded
            if file not in self._gone and now - self._newest_time(kept, file) >= GRACE_MS
        ]
        if due:
            free = self._unnamed(due)
            self.phase = "deletes files"
            self._delete(free)
        self._gone &= newest.unneeded.keys()

    def _newest_time(self, kept: Sequence[PlayedCopy], file: str) -> int:
        return max(one.unneeded[file] for one in kept if file in one.unneeded)

    def _is_among(self, kept: Sequence[PlayedCopy]) -> bool:
        """The two newest do not know what a copy beside them named."""
        return any(one.name == self._name for one in kept)

    def _may_remove(self) -> bool:
        """An older copy named its files until now, and the newest one does not say so."""
        return self._now_ms() - self._made_ms <= HALF_MS

    def _remove_copies(self) -> list[PlayedCopy]:
        names = self._copies.names()
        complete = self._copies.complete(names)
        fitting = {one.version: one for one in complete if self._is_current(one.version, one.uid)}
        kept = [fitting[version] for version in sorted(fitting)[-KEPT:]]
        if not self._is_among(kept):
            return []
        for name in names:
            if name not in {one.name for one in kept}:
                self.phase = f"removes {name}"
                self._copies.remove(name)
                self.removed += 1
        return kept

    def _unnamed(self, files: Sequence[str]) -> list[str]:
        named = set[str]().union(*(one.files for one in self._copies.complete()))
        return [file for file in files if file not in named]

    def _delete(self, files: Sequence[str]) -> None:
        client = self._client()
        rows = {row.file: row for row in rows_of(client, self._id)}
        (time,) = client.call(_WHAT, [("TIME",)])
        placed = self._placed_in(client)
        for file in files:
            row = rows.get(file)
            age_ms = None if row is None else time_ms(time) - row.at_ms
            if file in placed or not self._is_free("" if row is None else row.state, age_ms):
                continue
            self.phase = f"deletes {file}"
            self._files.remove_file(file)
            self._gone.add(file)
            self.deleted += 1
            if row is not None:
                discard(client, self._id, file)

    def _is_free(self, state: str, age_ms: int | None) -> bool:
        """A restored partition that used the file may come back with a server that goes back."""
        return age_ms is None or (state == "d" and age_ms >= self._grace_ms)

    def _placed_in(self, client: Client) -> set[str]:
        """Files that a restored partition reads from."""
        (raw,) = client.call(_WHAT, [("HGETALL", keys.meta(self._id))])
        return set(files_in(raw))


def files_in(manifest: Mapping[bytes, bytes]) -> Iterator[str]:
    """Yields the files that a partition's manifest names."""
    for field, value in manifest.items():
        words = value.decode("ascii", "replace").split(" ")
        if field.startswith(b"a:") and words[0] == "f":
            yield words[1]
