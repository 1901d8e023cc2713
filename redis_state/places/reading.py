"""Reads the blocks of segments from files, and follows segments that have moved meanwhile."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import FormatError, StateError, UnavailableError
from redis_state.files import Folder, is_local
from redis_state.format.entry import Segment
from redis_state.format.header import FIELD as HEADER
from redis_state.format.place import FilePlace
from redis_state.format.region import RegionHead, Span, read_head, read_region
from redis_state.ids import PartitionId
from redis_state.places.local_disk import LocalDisk
from redis_state.places.owners import lost_file, owner_of, place_now
from redis_state.places.region_files import RegionFiles, are_intact, is_most, merged, pieces
from redis_state.places.settings import Places, places_of
from redis_state.places.sized_cache import SizedCache
from redis_state.process import tell_after_fork

Values = dict[str, bytes]
_RegionKey = tuple[str, str, int]

LATE_S = 5.0
"""Time for which a missing file is tried again."""
_PAUSES_S = (0.1, 0.4, 1.0)
_HEADS_BYTES_MAX = 32 << 20
_DIRECTORIES_BYTES_MAX = 4 << 20
_FOLDERS_MAX = 64
_NEEDED_MAX = 4096
_WHAT = "reading segments from files"

_known: WeakKeyDictionary[Client, SegmentFiles] = WeakKeyDictionary()


def files_of(client: Client) -> SegmentFiles:
    """Returns the reader of files that belongs to a client."""
    found = _known.get(client)
    if found is None:
        found = _known.setdefault(client, SegmentFiles(read_parallel=client.read_parallel))
    return found


class SegmentFiles:
    """Reads segments from files; thread-safe.

    Files never change, so heads of regions stay valid in the cache. Places of foreign segments are
    never cached. A segment that is needed for the second time gets a copy on the local disk.

    Args:
        read_parallel: Most ranges of a file that are read at once.

    Attributes:
        disk: Disk for copies; ``None`` without one.
        hits: Number of reads from copies.
        reads: Number of reads from files, without those that make copies.
        storage_options: Returns options of fsspec for the folders, when the first one is opened;
            ``None`` leaves them to the environment.
    """

    def __init__(self, *, read_parallel: int) -> None:
        self._read_parallel = read_parallel
        self.storage_options: Callable[[], Mapping[str, Any] | None] = lambda: None
        self.hits = self.reads = 0
        # Methods get the client as an argument: the registry of readers must not keep it alive.
        self._forget_all()
        tell_after_fork(self)

    def after_fork(self) -> None:
        """Replaces the lock, which another thread may have held, and the parent's file systems."""
        self._forget_all()

    def _forget_all(self) -> None:
        self.disk: LocalDisk | None = None
        # Regions that were read before, the most recently read last.
        self._needed: OrderedDict[_RegionKey, None] = OrderedDict()
        self._heads: SizedCache[_RegionKey, RegionHead] = SizedCache(_HEADS_BYTES_MAX)
        self._directories: SizedCache[tuple[str, str, int, str], bytes] = SizedCache(
            _DIRECTORIES_BYTES_MAX
        )
        self._folders: OrderedDict[tuple[str, str], Folder] = OrderedDict()
        self._lock = Lock()

    def read(
        self,
        client: Client,
        id_: PartitionId,
        segment: Segment,
        names: Sequence[str] | None,
        from_redis: Callable[[], Values | None],
    ) -> Values | None:
        """Reads fields of a segment in a file, or of one that is incomplete in Redis.

        Args:
            names: Fields to read; ``None`` reads all of them.
            from_redis: Reads the same fields from Redis; ``None`` if the segment is incomplete
                there.

        Returns:
            The values that exist, signatures included; ``None`` if the segment is gone.

        Raises:
            StateError: The file of a segment is gone, of kind `FILE_LOST`.
            UnavailableError: The file system does not answer.
            FormatError: The file is damaged, or is of another segment.
        """
        owner = id_.of_gen(segment.gen) if segment.gen else id_
        place = segment.place or place_now(client, owner, segment)
        late_s = client.clock.monotonic_s() + LATE_S
        pauses = list(_PAUSES_S)
        while True:
            if place is None:
                found = from_redis()
                if found is not None:
                    return found
                place = place_now(client, owner, segment)
                if place is None:
                    return None
            found = self._read(client, owner, segment, place, names)
            if found is not None:
                return found
            now = place_now(client, owner, segment)
            if now != place:
                place = now
                continue
            self._forget(owner)
            if client.clock.monotonic_s() >= late_s:
                raise self.lost(client, owner, segment, place)
            client.clock.sleep_s(pauses.pop(0) if len(pauses) > 1 else pauses[0])

    def filters(
        self, client: Client, id_: PartitionId, segment: Segment, buckets: Collection[int]
    ) -> Mapping[int, bytes]:
        """Returns the filters in the file of a segment, by bucket.

        None where most of the segment is read in any case.

        Raises:
            UnavailableError: The file system does not answer.
            FormatError: The file is damaged, or is of another segment.
        """
        owner, place = id_.of_gen(segment.gen) if segment.gen else id_, segment.place
        if place is None or is_most(segment, place, len(buckets)):
            return {}
        region = self._region(client, owner, place)
        try:
            return self._filters(client, owner, segment, region, buckets)
        except FormatError:
            if not region.give_up():
                raise
            self._forget_head(owner, place)
            return {}
        finally:
            with self._lock:
                self.hits += region.hits
                self.reads += region.reads

    def _filters(
        self,
        client: Client,
        owner: PartitionId,
        segment: Segment,
        region: RegionFiles,
        buckets: Collection[int],
    ) -> Mapping[int, bytes]:
        head = self._head(client, owner, segment, region)
        if head is None:
            return {}
        by_directory: dict[str, list[int]] = {}
        for bucket in buckets:
            if (called := head.directory_of(str(bucket))) is not None:
                by_directory.setdefault(called, []).append(bucket)
        found: dict[int, bytes] = {}
        for called, described in by_directory.items():
            raw = self._directory(owner, head, region, called)
            one = None if raw is None else head.filter(called, raw, client.signer)
            if one is not None:
                found |= dict.fromkeys(described, one)
        return found

    def is_there(self, client: Client, id_: PartitionId, segment: Segment) -> bool:
        """Returns whether the file of a segment has the end of its region.

        Raises:
            UnavailableError: The file system does not answer.
            FormatError: The region is of another segment.
        """
        owner = id_.of_gen(segment.gen) if segment.gen else id_
        place = segment.place or place_now(client, owner, segment)
        if place is None:
            return False
        # Neither a cached head nor a copy shows the present file.
        region = RegionFiles(self.folder(client, owner), owner.store.gen, place, None)
        return self._head(client, owner, segment, region, afresh=True) is not None

    def is_whole(self, client: Client, id_: PartitionId, segment: Segment) -> bool:
        """Returns whether the file of a segment has the end of its region, undamaged.

        Raises:
            UnavailableError: The file system does not answer.
        """
        try:
            return self.is_there(client, id_, segment)
        except FormatError:
            return False

    def know(self, gen: str, folder: Folder, *, tenant: str = "") -> None:
        """Caches the folder with the files of a checkpoint whose query does not name it."""
        with self._lock:
            self._folders[tenant, gen] = folder

    def folder(self, client: Client, id_: PartitionId) -> Folder:
        """Returns the folder with the files of a partition's checkpoint.

        Raises:
            FormatError: The query names no folder.
        """
        of = id_.store
        with self._lock:
            found = self._folders.get((of.tenant, of.gen))
        if found is not None:
            return found
        places = places_of(client, of.gen, tenant=of.tenant)
        if places is None:
            raise FormatError(
                _WHAT,
                found="a segment is in a file, but the query does not name their folder",
                advice="Restore the data of that Redis; or start the query again, with the "
                "'placesFolder' that it had.",
                where=str(id_),
            )
        folder = self.reached(places).folder_of(of.gen)
        with self._lock:
            self._folders[of.tenant, of.gen] = folder
            while len(self._folders) > _FOLDERS_MAX:
                self._folders.popitem(last=False)
        return folder

    def reached(self, places: Places) -> Places:
        """Returns settings with the options of fsspec that their folder needs."""
        options = None if is_local(places.folder) else self.storage_options()
        return replace(places, storage_options=options)

    def _read(
        self,
        client: Client,
        owner: PartitionId,
        segment: Segment,
        place: FilePlace,
        names: Sequence[str] | None,
    ) -> Values | None:
        region = self._region(client, owner, place)
        if names != [HEADER] and self._is_needed_again(owner, place):
            region.want()
        try:
            found = self._from(region, client, owner, segment, names)
            if region.hits and not are_intact(
                client.signer, keys.segment(owner, segment.ident), segment, found
            ):
                raise _damaged(owner, segment, place)
            return found
        except FormatError:
            if not region.give_up():
                raise
            self._forget_head(owner, place)
            return self._from(region, client, owner, segment, names)
        finally:
            with self._lock:
                self.hits += region.hits
                self.reads += region.reads

    def _is_needed_again(self, owner: PartitionId, place: FilePlace) -> bool:
        """Notes a read; a segment that is read only once, such as a delta, is not worth a copy."""
        if self.disk is None:
            return False
        key = _key(owner, place)
        with self._lock:
            is_known = key in self._needed
            self._needed[key] = None
            self._needed.move_to_end(key)
            if len(self._needed) > _NEEDED_MAX:
                self._needed.popitem(last=False)
        return is_known

    def want(self, owner: PartitionId, folder: Folder, place: FilePlace) -> None:
        """Begins a copy of a newly written region, if there is a disk."""
        RegionFiles(folder, owner.store.gen, place, self.disk).want()

    def _from(
        self,
        region: RegionFiles,
        client: Client,
        owner: PartitionId,
        segment: Segment,
        names: Sequence[str] | None,
    ) -> Values | None:
        place = region.place
        if names is None or is_most(segment, place, len(names)):
            raws = region.read(pieces(place.bytes))
            if raws is None:
                return None
            named = owner_of(owner, segment)
            found = read_region(named, b"".join(raws), signer=client.signer)
            if len(found) != segment.entry.blocks:
                raise _damaged(owner, segment, place)
            return found if names is None else {one: found[one] for one in names if one in found}
        return self._some(client, owner, segment, region, names or ())

    def _some(
        self,
        client: Client,
        owner: PartitionId,
        segment: Segment,
        region: RegionFiles,
        names: Sequence[str],
    ) -> Values | None:
        head = self._head(client, owner, segment, region)
        if head is None:
            return None
        found: Values = {}
        by_directory: dict[str, list[str]] = {}
        for name in names:
            if name == HEADER:
                if head.header is not None:
                    found[name] = head.header
            elif (called := head.directory_of(name)) is not None:
                by_directory.setdefault(called, []).append(name)
        wanted: dict[str, Span] = {}
        for called, described in by_directory.items():
            raw = self._directory(owner, head, region, called)
            if raw is None:
                return None
            spans = head.spans(called, raw, client.signer)
            wanted |= {name: spans[name] for name in described if name in spans}
        ranges = merged(list(wanted.values()))
        if not ranges:
            return found
        raws = region.read(ranges)
        if raws is None:
            return None
        for name, (offset, length) in wanted.items():
            at, raw = next(
                (begin, raw)
                for (begin, size), raw in zip(ranges, raws, strict=True)
                if begin <= offset and offset + length <= begin + size
            )
            found[name] = raw[offset - at : offset - at + length]
        return found

    def _region(self, client: Client, owner: PartitionId, place: FilePlace) -> RegionFiles:
        folder = self.folder(client, owner)
        return RegionFiles(folder, owner.store.gen, place, self.disk, at_once=self._read_parallel)

    def _directory(
        self, owner: PartitionId, head: RegionHead, region: RegionFiles, called: str
    ) -> bytes | None:
        """Returns the value of a directory block; ``None`` if the file is gone or truncated."""
        key = (*_key(owner, region.place), called)
        with self._lock:
            known = head.known.get(called) or self._directories.get(key)
        if known is not None:
            return known
        raws = region.read([head.at[called]])
        if raws is None:
            return None
        if not region.hits:
            # Decoding detects a damaged copy.
            with self._lock:
                self._directories.put(key, raws[0], len(raws[0]))
        return raws[0]

    def _head(
        self,
        client: Client,
        owner: PartitionId,
        segment: Segment,
        region: RegionFiles,
        *,
        afresh: bool = False,
    ) -> RegionHead | None:
        place = region.place
        key = _key(owner, place)
        with self._lock:
            known = self._heads.get(key)
            if known is not None and not afresh:
                return known
        raws = region.read([(place.bytes - place.head, place.head)])
        if raws is None:
            return None
        named = owner_of(owner, segment)
        found = read_head(named, raws[0], region_bytes=place.bytes, signer=client.signer)
        if region.hits and not are_intact(client.signer, named.key, segment, found.fields):
            # The head is cached, and a later call could not know that it came from a copy.
            raise _damaged(owner, segment, place)
        with self._lock:
            self._heads.put(key, found, place.head)
        return found

    def _forget_head(self, owner: PartitionId, place: FilePlace) -> None:
        with self._lock:
            self._heads.forget(_key(owner, place))

    def _forget(self, owner: PartitionId) -> None:
        """Forgets a folder, which may have been moved as a whole."""
        with self._lock:
            self._folders.pop((owner.store.tenant, owner.store.gen), None)

    def lost(
        self, client: Client, owner: PartitionId, segment: Segment, place: FilePlace
    ) -> StateError | UnavailableError:
        """Returns the error for a file that is gone or truncated, or whose folder is missing.

        Args:
            owner: See `owner_of`.
        """
        return lost_file(self.folder(client, owner), owner, segment, place)


def _key(owner: PartitionId, place: FilePlace) -> _RegionKey:
    return owner.store.gen, place.file, place.offset


def _damaged(owner: PartitionId, segment: Segment, place: FilePlace) -> FormatError:
    return FormatError(
        f"reading {segment.ident} from a file",
        found=f"{place.file} does not have the blocks that the manifest counts",
        where=str(owner),
    )
