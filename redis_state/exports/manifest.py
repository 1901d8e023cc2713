"""The manifest of an export."""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

from redis_state.errors import NotFoundError, UsageError
from redis_state.exports.digest import DIGEST_DIGITS
from redis_state.exports.folder import ExportFolder
from redis_state.exports.layout import MANIFEST, PLAN, ROWS_FILE
from redis_state.exports.sealed import damaged, matching, read_sealed, sealed, text, whole
from redis_state.format.entry import BUCKETS_MAX, TIME_S_MAX
from redis_state.format.header import FAMILY_ID_MAX, KINDS, Family
from redis_state.ids import EMPTY, PartitionId, Pin, StoreId, is_gen, is_uid

COLUMNS, RAW = "columns", "raw"
_FIELD = re.compile(r"path|id|name|created|(?:op|batch):.+", re.DOTALL)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(f"[0-9a-f]{{{DIGEST_DIGITS}}}")


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A Parquet file.

    Attributes:
        path: Path in the folder of the export.
        family: Id of the family of its rows.
        bytes: Length of the file.
        sha256: SHA-256 of its bytes, in hexadecimal digits.
    """

    path: str
    family: int
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """One partition of a store.

    Attributes:
        uid: Uid of the attempt that wrote the version.
        checkpoint_format: Format of the run that held the partition, 1 or 2.
        retained: Versions that this run retained.
        table: Number of its family table in the store.
        highest_id: Highest family id that the timeline ever had.
        buckets: A number of buckets that fits its hashed rows.
        groups: Rows are sorted by their bucket modulo this number.
        internal: Rows of internal families.
        bytes: Bytes of keys and values.
        stored: Bytes of its segments in Redis.
        digest: Digest of its rows, in hexadecimal digits.
        time: Time of the version in seconds since 1970; 0 if no family has a time to live.
    """

    partition: int
    version: int
    uid: str
    checkpoint_format: int
    retained: int
    table: int
    highest_id: int
    buckets: int
    groups: int
    rows: int
    internal: int
    bytes: int
    stored: int
    digest: str
    files: tuple[ExportedFile, ...]
    time: int = 0

    @property
    def pin(self) -> Pin:
        """The version and its attempt."""
        return Pin(self.version, self.uid)


@dataclass(frozen=True, slots=True)
class ExportedStore:
    """One store of an operator.

    Attributes:
        name: Spark's name of the operator.
        bytes: Bytes of keys and values.
        digest: Digest of the rows of all partitions, in hexadecimal digits.
        tables: The family tables of its partitions.
    """

    operator: int
    store: str
    name: str
    rows: int
    bytes: int
    digest: str
    tables: tuple[tuple[Family, ...], ...]
    partitions: tuple[ExportedPartition, ...]

    def id(self, gen: str, partition: int, *, tenant: str) -> PartitionId:
        """Returns the id of a partition under a checkpoint."""
        return PartitionId(StoreId(gen, self.operator, self.store, tenant), partition)


@dataclass(frozen=True, slots=True)
class Export:
    """A complete export.

    Attributes:
        export: Unique id of the export.
        created: Start of the export, in milliseconds since 1970 by the server's clock.
        gen: Id of the checkpoint.
        id: Id of the query.
        name: Name of the query; may be empty.
        fields: Fields of the query's registry; only those that an export may have.
        version: ``None`` where each partition has versions of its own.
        batch: The exported batch; ``None`` where versions are not batches.
        contents: `COLUMNS` or `RAW`.
        left_out: Operators and stores without state of this version.
        bytes: Bytes of keys and values.
    """

    export: str
    created: int
    gen: str
    id: str
    name: str
    fields: Mapping[str, str]
    version: int | None
    batch: int | None
    contents: str
    left_out: tuple[tuple[int, str], ...]
    rows: int
    bytes: int
    stores: tuple[ExportedStore, ...]

    @property
    def files(self) -> list[ExportedFile]:
        """All files with rows."""
        return [file for store in self.stores for one in store.partitions for file in one.files]

    def to_json(self) -> builtins.bytes:
        """Encodes the manifest."""
        content: dict[str, Any] = {"export": "", "created": 0, "query": {}}
        content |= asdict(self)
        names = ("gen", "id", "name", "fields")
        content["query"] = {name: content.pop(name) for name in names}
        for store, encoded in zip(self.stores, content["stores"], strict=True):
            encoded["tables"] = [[family_json(one) for one in table] for table in store.tables]
            encoded["partitions"] = [partition_json(one) for one in store.partitions]
        return sealed(content)


def read_export(folder: ExportFolder) -> Export:
    """Reads the manifest of an export.

    Raises:
        NotFoundError: There is no export.
        UsageError: The export was interrupted.
        FormatError: The manifest is damaged.
    """
    what = f"reading the export in {folder}"
    if not folder.exists(MANIFEST):
        if folder.exists(PLAN):
            raise UsageError(
                what,
                found=f"the export was interrupted, or is still being made: it has no {MANIFEST}",
                advice=(
                    "Run the same `redis-state export` again: it continues where it ended. "
                    "Nothing was changed."
                ),
            )
        raise NotFoundError(
            what,
            found=f"there is no {MANIFEST}",
            advice="Give the folder that `redis-state export --to` wrote.",
        )
    content = read_sealed(folder, MANIFEST)
    try:
        return _export(content)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise damaged(folder, f"{MANIFEST} is malformed") from error


def partition_json(partition: ExportedPartition) -> dict[str, Any]:
    """Encodes a partition; without `time` if it has none."""
    encoded = asdict(partition)
    if not partition.time:
        del encoded["time"]
    return encoded


def parse_partition(raw: Any, tables: int) -> ExportedPartition:
    """Parses a partition.

    Raises:
        ValueError: The partition is malformed; other errors of parsing JSON occur, too.
    """
    files = tuple(
        ExportedFile(
            text(file["path"]),
            whole(file["family"], FAMILY_ID_MAX),
            whole(file["rows"]),
            whole(file["bytes"]),
            matching(_SHA256, file["sha256"]),
        )
        for file in raw["files"]
    )
    names = [one.name for one in fields(ExportedPartition) if one.type == "int"]
    numbers = {name: whole(raw[name]) for name in names if name != "time" or name in raw}
    one = ExportedPartition(
        uid=text(raw["uid"]), digest=matching(_DIGEST, raw["digest"]), files=files, **numbers
    )
    good = (one.pin == EMPTY and not files) or (
        one.version > 0
        and is_uid(one.uid)
        and one.checkpoint_format in (1, 2)
        and one.retained > 0
        and one.table < tables
        and one.highest_id <= FAMILY_ID_MAX
        and one.time <= TIME_S_MAX
    )
    counts = all(1 <= n <= BUCKETS_MAX and not n & (n - 1) for n in (one.buckets, one.groups))
    if not good or not counts or sum(file.rows for file in files) != one.rows:
        raise ValueError
    if not all(ROWS_FILE.fullmatch(file.path) for file in files):
        raise ValueError
    return one


def family_json(family: Family) -> list[Any]:
    """Encodes a family as in section 4.5 of docs/format.md."""
    parts = list(astuple(family))
    return parts if family.ttl else parts[:-1]


def parse_family(raw: Any) -> Family:
    """Parses a family.

    Raises:
        ValueError: The family is malformed; other errors of parsing JSON occur, too.
    """
    id_, name, kind, params, key, value, multi_value, internal, *ttl = raw
    if kind not in KINDS or not isinstance(multi_value, bool) or not isinstance(internal, bool):
        raise ValueError
    if ttl not in ([], [True]):
        raise ValueError
    numbers = tuple(whole(one) for one in params)
    if kind == "prefix" and len(numbers) != 1:
        raise ValueError
    return Family(
        whole(id_, FAMILY_ID_MAX),
        text(name),
        kind,
        numbers,
        text(key),
        text(value),
        multi_value,
        internal,
        ttl=bool(ttl),
    )


def _export(raw: Mapping[str, Any]) -> Export:
    query = raw["query"]
    version, batch = (None if raw[name] is None else whole(raw[name]) for name in _WHEN)
    stores = tuple(_store(store) for store in raw["stores"])
    contents, gen = raw["contents"], text(query["gen"])
    places = {(one.operator, one.store) for one in stores}
    if not is_gen(gen) or contents not in (COLUMNS, RAW) or len(places) != len(stores):
        raise ValueError
    fields = {
        name: text(value) for name, value in query["fields"].items() if _FIELD.fullmatch(name)
    }
    left_out = tuple((whole(operator), text(store)) for operator, store in raw["left_out"])
    found = Export(
        text(raw["export"]),
        whole(raw["created"]),
        gen,
        text(query["id"]),
        text(query["name"]),
        fields,
        version,
        batch,
        contents,
        left_out,
        whole(raw["rows"]),
        whole(raw["bytes"]),
        stores,
    )
    paths = [file.path for file in found.files]
    if not is_gen(found.export) or len(set(paths)) != len(paths):
        raise ValueError
    return found


_WHEN = ("version", "batch")


def _store(raw: Any) -> ExportedStore:
    tables = tuple(tuple(parse_family(family) for family in table) for table in raw["tables"])
    partitions = tuple(parse_partition(one, len(tables)) for one in raw["partitions"])
    if [one.partition for one in partitions] != list(range(len(partitions))):
        raise ValueError
    for one in partitions:
        # A version has a time if and only if one of its families has a time to live.
        table = () if one.pin == EMPTY else tables[one.table]
        if bool(one.time) != any(family.ttl for family in table):
            raise ValueError
    return ExportedStore(
        whole(raw["operator"]),
        text(raw["store"]),
        text(raw["name"]),
        whole(raw["rows"]),
        whole(raw["bytes"]),
        matching(_DIGEST, raw["digest"]),
        tables,
        partitions,
    )


def tables_of(found: Sequence[Sequence[Family]]) -> tuple[tuple[Family, ...], ...]:
    """Returns the distinct family tables, in the order of first occurrence."""
    return tuple(dict.fromkeys(tuple(table) for table in found))
