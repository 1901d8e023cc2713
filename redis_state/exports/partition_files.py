"""Writes the rows of one partition into Parquet files, in bounded groups of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redis_state.backend.client import Client
from redis_state.errors import FormatError
from redis_state.exports.digest import RowDigest, digest_sum, digest_text
from redis_state.exports.folder import ExportFolder, Sink
from redis_state.exports.layout import family_folder
from redis_state.exports.manifest import ExportedFile, ExportedPartition
from redis_state.exports.table import FamilyTable
from redis_state.format.header import Family, family_table
from redis_state.format.rows import FAMILY_BYTES, family_of
from redis_state.format.visible import time_of
from redis_state.protocol.opening import Opened
from redis_state.protocol.segments import fetch
from redis_state.protocol.version_rows import VersionRows

if TYPE_CHECKING:
    import pyarrow.parquet as pq

GROUP_BYTES = 8 << 20
GROUP_ROWS = 65_536
"""Most rows of a row group."""

_PENDING_BYTES_MAX = 64 << 20
_COMPRESSION = "zstd"

FileRow = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Options for writing partitions.

    Attributes:
        decoded: Whether to add decoded columns to the bytes.
        file_bytes: A file ends when its keys and values reach this size.
        writer: Part of the names of files.
        check: Called before a file begins and before it is kept; raises to end the export.
    """

    decoded: bool
    file_bytes: int
    writer: str
    check: Callable[[], None]


@dataclass(slots=True)
class _Pending:
    """The unwritten rows of one family, and the file for them."""

    family: Family
    table: FamilyTable
    digest: RowDigest
    rows: list[FileRow] = field(default_factory=list)
    size: int = 0
    name: str = ""
    sink: Sink | None = None
    parquet: pq.ParquetWriter | None = None
    file_rows: int = 0
    file_bytes: int = 0
    files: list[ExportedFile] = field(default_factory=list)


class PartitionFiles:
    """Writes a partition at one version.

    Raises:
        SegmentGoneError: Maintenance replaced a segment: open the version again; so does `write`.
        FormatError: A segment is damaged; so does `write`.
        ConfigError: A file cannot be written; so does `write`.
    """

    def __init__(
        self, client: Client, folder: ExportFolder, opened: Opened, wanted: ExportRequest
    ) -> None:
        self._client = client
        self._folder = folder
        self._opened = opened
        self._wanted = wanted
        self._pending: dict[int, _Pending] = {}
        self._size = 0

    def write(
        self, *, checkpoint_format: int, retained: int
    ) -> tuple[ExportedPartition, tuple[Family, ...]]:
        """Writes all rows; removes the files again if an error occurs.

        Returns:
            The written partition, and the family table.
        """
        opened = self._opened

        def read(segment: Any, names: Sequence[str]) -> Sequence[bytes | None]:
            return fetch(self._client, opened.id, segment, names)

        try:
            version = VersionRows(read, opened.segments, where=str(opened.id))
            table = family_table(version.families)
            buckets = version.fitting_buckets()
            groups = min(buckets, opened.segments[-1].entry.buckets)
            count = 0
            for group in version.hashed(buckets):
                count += len(group)
                self._add(table, version.families, group.items())
            for family in version.ordered_families():
                for row in version.ordered(family):
                    count += 1
                    self._add(table, version.families, (row,))
            version.check(count)
            for pending in self._pending.values():
                self._end_file(pending)
        except BaseException:
            self._give_up()
            raise
        found = list(self._pending.values())
        partition = ExportedPartition(
            partition=opened.id.partition,
            version=opened.pin.version,
            uid=opened.pin.uid,
            checkpoint_format=checkpoint_format,
            retained=retained,
            table=0,
            highest_id=version.highest_id,
            buckets=buckets,
            groups=groups,
            rows=count,
            internal=sum(one.digest.rows for one in found if one.family.internal),
            bytes=sum(one.digest.bytes for one in found),
            stored=sum(segment.entry.bytes for segment in opened.segments),
            digest=digest_text(digest_sum(one.digest.value for one in found)),
            files=tuple(file for one in found for file in one.files),
            time=time_of(opened.segments),
        )
        return partition, version.families

    def _add(self, table: dict[int, Family], families: Sequence[Family], rows: Any) -> None:
        for row in rows:
            id_ = family_of(row[0])
            pending = self._pending.get(id_)
            if pending is None:
                if id_ not in table:
                    raise FormatError("exporting a partition", found="a row belongs to no family")
                pending = self._begin(table[id_], families)
            size = len(row[0]) + len(row[1])
            pending.rows.append(row)
            pending.size += size
            self._size += size
            if pending.size >= GROUP_BYTES or len(pending.rows) >= GROUP_ROWS:
                self._flush(pending)
            elif self._size >= _PENDING_BYTES_MAX:
                self._flush(max(self._pending.values(), key=lambda one: one.size))

    def _begin(self, family: Family, families: Sequence[Family]) -> _Pending:
        operator = self._opened.id.store.operator
        table = FamilyTable(self._client, operator, family, families, decoded=self._wanted.decoded)
        pending = _Pending(family, table, RowDigest(family.name))
        self._pending[family.id] = pending
        return pending

    def _flush(self, pending: _Pending) -> None:
        import pyarrow as pa

        if not pending.rows:
            return
        if pending.parquet is None:
            self._begin_file(pending)
        pending.digest.add((key[FAMILY_BYTES:], value) for key, value in pending.rows)
        batch = pending.table.batch(self._opened.id.partition, pending.rows)
        assert pending.parquet is not None
        with self._folder.told(f"writing {self._folder.path(pending.name)}"):
            pending.parquet.write_table(pa.Table.from_batches([batch]), row_group_size=GROUP_ROWS)
        pending.file_rows += len(pending.rows)
        pending.file_bytes += pending.size
        self._size -= pending.size
        pending.rows, pending.size = [], 0
        if pending.file_bytes >= self._wanted.file_bytes:
            self._end_file(pending)

    def _begin_file(self, pending: _Pending) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._wanted.check()
        of, number = self._opened.id, len(pending.files)
        folder = family_folder(of.store.operator, of.store.store, pending.family.name)
        pending.name = f"{folder}/{of.partition:05}-{number:03}-{self._wanted.writer[:8]}.parquet"
        pending.sink = self._folder.writing(pending.name)
        with self._folder.told(f"writing {self._folder.path(pending.name)}"):
            pending.parquet = pq.ParquetWriter(
                pa.PythonFile(pending.sink, mode="w"),
                pending.table.schema,
                compression=_COMPRESSION,
            )

    def _end_file(self, pending: _Pending) -> None:
        self._flush(pending)
        if pending.parquet is None or pending.sink is None:
            return
        with pending.sink as sink:
            pending.parquet.close()
            self._wanted.check()
        pending.files.append(
            ExportedFile(
                pending.name, pending.family.id, pending.file_rows, sink.bytes, sink.sha256
            )
        )
        pending.parquet, pending.sink = None, None
        pending.file_rows = pending.file_bytes = 0

    def _give_up(self) -> None:
        for pending in self._pending.values():
            if pending.sink is not None:
                pending.sink.give_up()
            if pending.parquet is not None:
                pending.parquet.close()
            for file in pending.files:
                self._folder.remove(file.path)
