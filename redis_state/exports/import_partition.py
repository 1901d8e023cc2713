"""Imports one partition of an export: its blocks first, then a manifest that makes it visible."""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.errors import InternalError, UnavailableError
from redis_state.exports.digest import RowDigest, digest_sum, digest_text
from redis_state.exports.folder import ExportFolder
from redis_state.exports.manifest import ExportedPartition, ExportedStore
from redis_state.exports.sealed import damaged
from redis_state.exports.table import KEY, PARTITION, VALUE
from redis_state.files import Folder
from redis_state.format.bucketing import bucket_of
from redis_state.format.chunks import Fields
from redis_state.format.entry import Entry, Segment
from redis_state.format.header import Family, family_table
from redis_state.format.rows import FAMILY_BYTES, stored_key
from redis_state.format.segment import SegmentWriter
from redis_state.ids import PartitionId
from redis_state.places.born import Unborn, fits_redis, write_file
from redis_state.places.spool import Spool, SpooledBlocks
from redis_state.protocol.opening import Opened
from redis_state.protocol.partition import PartitionClient
from redis_state.reader.scan import pieces_of
from redis_state.recovery.bringing_back import serves

_TRIES = 3
_BLOCKS_AT_ONCE = 256
_ROWS_AT_ONCE = 4096

_StoredRow = tuple[bytes, bytes]
_BucketRows = tuple[int, list[_StoredRow]]


class PartitionImport:
    """Imports a partition that Redis does not have.

    Args:
        id_: The partition to create.
        files: Folder for the files of the checkpoint: its segment goes there, past Redis, unless
            it is small. ``None`` brings all blocks into Redis.
    """

    def __init__(
        self,
        client: Client,
        folder: ExportFolder,
        store: ExportedStore,
        part: ExportedPartition,
        id_: PartitionId,
        *,
        files: Folder | None = None,
    ) -> None:
        self._client = client
        self._files = files
        self._folder = folder
        self._part = part
        self._id = id_
        self._families = store.tables[part.table]
        family_table(self._families)  # raises where a family occurs twice
        self._partition = PartitionClient(client, id_, versions_to_retain=part.retained)
        self._digests: dict[int, RowDigest] = {}

    def run(self) -> None:
        """Writes all rows, creates the partition, and verifies it.

        Raises:
            FormatError: A file changed meanwhile, or its rows do not match the manifest.
            StateError: Another import created the partition meanwhile, in another version.
            FullError: Redis has no memory left.
            UnavailableError: A file system does not answer, or the server loses blocks.
            ConfigError: The folder for files cannot be written.
            InternalError: The rows of the partition do not match the manifest.
        """
        what = f"importing {self._id}"
        for _ in range(_TRIES):
            segment = self._staged() if self._files is None else self._filed(self._files)
            part = self._part
            args = [str(part.version), part.uid, str(part.version), str(part.retained)]
            place = segment.place.text if segment.place else ""
            args += [str(part.checkpoint_format), segment.field, segment.entry.text, place]
            reply = self._client.script(what, script("restore"), [keys.meta(self._id)], args)
            if reply == ["OK"] or (reply == ["PRESENT"] and self._came_meanwhile(segment)):
                self._check()
                return
        raise UnavailableError(
            what,
            found="the server loses staged blocks",
            advice=(
                "A volatile-* eviction policy does that when memory is short: give the server "
                "more memory."
            ),
        )

    def _came_meanwhile(self, segment: Segment) -> bool:
        """Returns whether our reply was lost, or an equal import was faster."""
        there = serves(self._client, self._id, self._part.pin, what="importing", verb="import")
        if there and self._opened().segments != (segment,):
            self._partition.abort(segment.ident)
        return there

    def _opened(self) -> Opened:
        return self._partition.open("", self._part.version)

    def _staged(self) -> Segment:
        """Sends the blocks of the segment to Redis."""
        ident, name = self._new_names()

        def send(fields: Fields) -> None:
            self._partition.stage(ident, name, fields)

        try:
            return self._segment(self._written(ident, send))
        except BaseException:
            # Also on Ctrl-C: staged blocks would stay for a day.
            self._partition.abort(ident)
            raise

    def _filed(self, files: Folder) -> Segment:
        """Writes the segment into a file of its own, or sends it to Redis if it is small."""
        ident, name = self._new_names()
        with Spool(f"importing {self._id}") as spool:
            spooled = spool.segment()
            segment = self._segment(self._written(ident, spooled.add))
            if fits_redis(segment.entry):
                return self._sent(segment, name, spooled)
            unborn = Unborn(ident, spooled.blocks(), lambda: segment)
            version = self._part.version
            born = write_file(self._client, self._id, files, [unborn], version=version, is_new=True)
        # Another import made the partition meanwhile, unless there is a file.
        return replace(segment, place=born[0].place) if born else segment

    def _sent(self, segment: Segment, name: str, spooled: SpooledBlocks) -> Segment:
        try:
            for fields in spooled.blocks():
                self._partition.stage(segment.ident, name, fields)
        except BaseException:
            self._partition.abort(segment.ident)
            raise
        return segment

    def _new_names(self) -> tuple[str, str]:
        """Returns a new ident, and the manifest field."""
        part = self._part
        return f"s:{part.version}:{uuid.uuid4().hex}", f"s:{part.version}:{part.uid}"

    def _segment(self, entry: Entry) -> Segment:
        return Segment(True, self._part.version, self._part.uid, entry)

    def _written(self, ident: str, send: Callable[[Fields], None]) -> Entry:
        """Passes on the blocks of the segment, and checks the rows by the manifest."""
        part, segment = self._part, SegmentWriter(ident, self._families, self._part.buckets)
        self._digests = {}

        def send_full() -> None:
            if len(segment.fields) >= _BLOCKS_AT_ONCE:
                send(segment.drain())

        hashed = [self._groups(one) for one in self._families if not one.ordered]
        merged = heapq.merge(*hashed, key=lambda group: group[0])
        for _, groups in groupby(merged, key=lambda group: group[0]):
            segment.add(dict(row for _, rows in groups for row in rows))
            send_full()
        for family in sorted(self._families, key=lambda one: one.id):
            if family.ordered:
                for _ in segment.add_ordered(family.id, self._rows(family)):
                    send_full()
        rows = sum(one.rows for one in self._digests.values())
        digest = digest_text(digest_sum(one.value for one in self._digests.values()))
        if (rows, digest) != (part.rows, part.digest):
            raise damaged(
                self._folder, f"the rows of {self._id} do not match the counts of the manifest"
            )
        entry = segment.finish(
            ref=ident.rpartition(":")[2],
            live=part.rows,
            with_families=True,
            internal=part.internal,
            highest_id=part.highest_id,
            time=part.time,
        )
        send(segment.drain())
        return entry

    def _groups(self, family: Family) -> Iterator[_BucketRows]:
        """Yields the rows of a hashed family, those of a few buckets at a time."""

        def group_of(row: _StoredRow) -> int:
            return bucket_of(row[0], kind=family.kind, buckets=self._part.groups)

        for number, rows in groupby(self._rows(family), key=group_of):
            yield number, list(rows)

    def _rows(self, family: Family) -> Iterator[_StoredRow]:
        """Yields the rows of a family in the order of its files."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        digest = self._digests.setdefault(family.id, RowDigest(family.name))
        for file in self._part.files:
            if file.family != family.id:
                continue
            with self._folder.opened(file.path) as source:
                try:
                    parquet = pq.ParquetFile(source)
                    # One by one: a single reader keeps the bytes of all groups until its end.
                    for group in range(parquet.num_row_groups):
                        batches = parquet.iter_batches(
                            batch_size=_ROWS_AT_ONCE,
                            row_groups=[group],
                            columns=[PARTITION, KEY, VALUE],
                        )
                        for batch in batches:
                            yield from self._checked(family, digest, batch.to_pydict())
                except (pa.ArrowException, KeyError) as error:
                    raise damaged(
                        self._folder, f"{file.path} is not a file of an export"
                    ) from error

    def _checked(
        self, family: Family, digest: RowDigest, columns: dict[str, list[Any]]
    ) -> list[_StoredRow]:
        rows = list(zip(columns[KEY], columns[VALUE], strict=True))
        good = all(type(key) is type(value) is bytes for key, value in rows)
        if not good or any(number != self._part.partition for number in columns[PARTITION]):
            raise damaged(self._folder, f"a row of {self._id} is malformed")
        digest.add(rows)
        return [(stored_key(family.id, key), value) for key, value in rows]

    def _check(self) -> None:
        """Reads the partition, and compares it with the manifest."""
        found = {one.id: RowDigest(one.name) for one in self._families}
        for rows, _ in pieces_of(self._client, self._opened(), bare=False):
            _add(found, rows)
        digest = digest_text(digest_sum(one.value for one in found.values()))
        if digest != self._part.digest:
            raise InternalError(
                f"reading {self._id} again",
                found="it serves other rows than were imported",
            )


def _add(found: dict[int, RowDigest], rows: Sequence[_StoredRow]) -> None:
    by_family: dict[int, list[_StoredRow]] = {}
    for key, value in rows:
        id_ = int.from_bytes(key[:FAMILY_BYTES], "big")
        by_family.setdefault(id_, []).append((key[FAMILY_BYTES:], value))
    for id_, of_family in by_family.items():
        found[id_].add(of_family)
