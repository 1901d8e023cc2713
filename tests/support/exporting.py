"""A query is exported, imported beside itself, and has to be the same there, byte for byte."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import redis_state
from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.errors import UnreadableError
from redis_state.exports import plan_import
from redis_state.exports.digest import RowDigest
from redis_state.exports.folder import ExportFolder
from redis_state.exports.manifest import Export, ExportedStore
from redis_state.format.header import Family
from redis_state.protocol.opening import Opened
from redis_state.reader import OperatorState
from redis_state.reader.query import Query
from redis_state.reader.scan import families_of, pieces_of
from redis_state.reader.version_request import VersionRequest

BOOKKEEPING = ("_partition", "_key", "_value")
_ALL = 1 << 20


def check_round_trip(
    url: str, which: str, *, at: str | int = "confirmed", **options: Any
) -> Export:
    """Export a query, import it under another prefix, and compare all rows of all stores."""
    folder = Path(tempfile.mkdtemp(prefix="redis-state-export-"))
    try:
        prefix = f"copy-{uuid.uuid4().hex[:12]}"
        with (
            redis_state.connect(url, **options) as reader,
            redis_state.connect(url, key_prefix=prefix, **options) as copy,
        ):
            # One file a group of rows, so that there are several of a family.
            export = reader.export(which, folder / "first", at=at, file_bytes=1 << 12)
            parsed = config.parse({"url": url, "key_prefix": prefix, **options})
            with closing(Client(parsed)) as client:
                tenant = keys.tenant_of(prefix)
                plan = plan_import(client, ExportFolder(folder / "first"), tenant=tenant)
                assert plan.there == 0
                plan.carry_out(client)
            again = copy.export(export.gen, folder / "again", contents="raw")
            assert digests(again) == digests(export)
            source = reader.query(export.gen).view(at=at)
            target = copy.query(export.gen)
            for store in export.stores:
                place = store.operator, store.store
                first = stored(reader.client, source.open_at(*place, VersionRequest())[1])
                assert first == stored(copy.client, target.open(*place, None)[1])
                assert len(first[0]) == store.rows
                check_columns(folder / "first", export, store, target)
        return export
    finally:
        shutil.rmtree(folder)


def digests(export: Export) -> list[tuple[int, str, int, int, str]]:
    """Properties that two exports of the same state share."""
    return [(one.operator, one.store, one.rows, one.bytes, one.digest) for one in export.stores]


def stored(
    client: Client, partitions: Sequence[Opened]
) -> tuple[dict[tuple[int, bytes], bytes], tuple[Family, ...]]:
    """All rows of a store by partition and stored key, and its family table."""
    rows = {
        (opened.id.partition, key): value
        for opened in partitions
        for piece, _ in pieces_of(client, opened)
        for key, value in piece
    }
    return rows, families_of(client, partitions)


def check_columns(folder: Path, export: Export, store: ExportedStore, target: Query) -> None:
    """The files have the rows, and their columns are what the reader of the copy gives."""
    tables = {one.id: one for table in store.tables for one in table}
    for id_, family in tables.items():
        paths = [
            folder / file.path for part in store.partitions for file in part.files
            if file.family == id_
        ]  # fmt: skip
        tables_found = [pq.read_table(path) for path in paths]
        rows = [row for one in tables_found for row in one.select(BOOKKEEPING).to_pylist()]
        digest = RowDigest(family.name)
        digest.add((row["_key"], row["_value"]) for row in rows)
        assert digest.rows == len(rows)
        if not rows or tables_found[0].num_columns == len(BOOKKEEPING):
            continue
        # As exports have them: their bytes stand beside them.
        state = target.operator(store.operator, store.store, family=family.name, text="replace")
        shown = [one.drop_columns(list(BOOKKEEPING)) for one in tables_found]
        if family.multi_value:
            assert sum(len(values) for one in shown for values in one.columns[-1]) == sum(
                len(values) for _, values in state.list_items()
            )
        elif export.contents == "columns" and "redis-state.python" not in family.key_schema:
            read = _as_in_files(state, shown[0].schema)
            mine = [text for one in shown for text in texts_of(one.select(read.column_names))]
            assert sorted(mine) == sorted(texts_of(read))


def _as_in_files(state: OperatorState, files: pa.Schema) -> pa.Table:
    """The columns that files have in the reader's types: Parquet lacks some, and Python others."""
    wanted = list(map(_named_alike, files.types))
    with contextlib.suppress(UnreadableError):
        whole = state.to_arrow()
        if len(whole.schema) == len(wanted):
            pairs = enumerate(zip(whole.schema.types, wanted, strict=True))
            same = [at for at, (kind, other) in pairs if _named_alike(kind) == other]
            return whole.rename_columns(files.names).select(same)
    names = []
    for name, kind in zip(files.names, wanted, strict=True):
        with contextlib.suppress(UnreadableError):
            if _named_alike(state.to_arrow(columns=[name]).schema.types[0]) == kind:
                names.append(name)
    return state.to_arrow(columns=names)


def _named_alike(text: object) -> str:
    """Types in words; Parquet has a name of its own for what is in a list."""
    return str(text).replace("list<element: ", "list<item: ")


def texts_of(table: pa.Table) -> list[str]:
    """Each row as a text, also of times that Python has no objects for."""
    whole = table.combine_chunks()
    rows = [
        " | ".join(
            column.slice(at, 1).combine_chunks().to_string(window=_ALL, container_window=_ALL)
            for column in whole.columns
        )
        for at in range(table.num_rows)
    ]
    return list(map(_named_alike, rows))
