"""The manifest of an export, and the names of its files."""

from __future__ import annotations

import builtins
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from redis_state import keys
from redis_state.errors import FormatError, NotFoundError, UsageError
from redis_state.exports.digest import DIGEST_DIGITS
from redis_state.exports.folder import ExportFolder
from redis_state.format.entry import BUCKETS_MAX
from redis_state.format.header import FAMILY_ID_MAX, KINDS, Family
from redis_state.ids import EMPTY, PartitionId, Pin, StoreId, is_gen, is_uid

FORMAT = 1
MANIFEST = "manifest.json"
PROGRESS = "_progress"
DATA = "data"
PLAN = f"{PROGRESS}/plan.json"
WRITER = f"{PROGRESS}/writer"
"""Names the process that makes the export; a process that reads another name ends."""

COLUMNS, RAW = "columns", "raw"
JSON_BYTES_MAX = 1 << 30

_NAME_MAX = 100
_NAME_KEPT = 80
_FIELD = re.compile(r"path|id|name|created|(?:op|batch):.+", re.DOTALL)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(f"[0-9a-f]{{{DIGEST_DIGITS}}}")
_PART = r"[^/.][^/]*"
_PATH = re.compile(rf"{DATA}/{_PART}/{_PART}/{_PART}\.parquet")


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
        query = {"gen": self.gen, "id": self.id, "name": self.name, "fields": dict(self.fields)}
        return sealed(
            {
                "format": FORMAT,
                "export": self.export,
                "created": self.created,
                "query": query,
                "version": self.version,
                "batch": self.batch,
                "contents": self.contents,
                "left_out": [list(one) for one in self.left_out],
                "rows": self.rows,
                "bytes": self.bytes,
                "stores": [_store_json(store) for store in self.stores],
            }
        )


def sealed(content: dict[str, Any]) -> bytes:
    """Encodes JSON with the SHA-256 of its content."""
    return json.dumps(content | {"sha256": _seal(content)}, indent=1).encode()


def read_sealed(folder: ExportFolder, name: str) -> dict[str, Any]:
    """Reads a file that `sealed` encoded.

    Raises:
        NotFoundError: There is no such file.
        FormatError: The file is damaged.
    """
    raw = folder.read(name, most=JSON_BYTES_MAX)
    try:
        content = json.loads(raw)
        seal = content.pop("sha256")
        whole = seal == _seal(content) and content["format"] == FORMAT
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise damaged(folder, f"{name} is damaged, or was written by a newer release")
    return dict(content)


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


def damaged(folder: ExportFolder, found: str) -> FormatError:
    """Builds the error for an export that cannot be used."""
    return FormatError(
        f"reading the export in {folder}",
        found=found,
        advice="Nothing was changed. Export again, or copy the folder from its source again.",
    )


def partition_file(operator: int, store: str, partition: int) -> str:
    """Path of the file that marks a partition as exported."""
    return f"{PROGRESS}/{operator}-{partition}-{keys.store_hash(store)}.json"


def family_folder(operator: int, store: str, family: str) -> str:
    """Path of the folder with the files of a family."""
    return f"{DATA}/{operator}-{_safe(store)}/{_safe(family)}"


def _safe(name: str) -> str:
    """Escapes a name for use as one part of a path."""
    plain = "".join(
        chr(byte) if re.match(r"[0-9A-Za-z_.-]", chr(byte)) and byte < 0x80 else f"%{byte:02x}"
        for byte in name.encode()
    )
    if plain.startswith("."):
        plain = f"%2e{plain[1:]}"
    if not plain:
        return "%"
    return plain if len(plain) <= _NAME_MAX else f"{plain[:_NAME_KEPT]}%{keys.store_hash(name)}"


def partition_json(one: ExportedPartition) -> dict[str, Any]:
    """Encodes a partition for JSON."""
    return asdict(one)


def parse_partition(raw: Any, tables: int) -> ExportedPartition:
    """Parses a partition.

    Raises:
        ValueError: The partition is malformed; other errors of parsing JSON occur, too.
    """
    files = tuple(
        ExportedFile(
            _text(file["path"]),
            _whole(file["family"], FAMILY_ID_MAX),
            _whole(file["rows"]),
            _whole(file["bytes"]),
            _matching(_SHA256, file["sha256"]),
        )
        for file in raw["files"]
    )
    names = (
        "partition",
        "version",
        "checkpoint_format",
        "retained",
        "table",
        "highest_id",
        "buckets",
        "groups",
        "rows",
        "internal",
        "bytes",
        "stored",
    )
    numbers = {name: _whole(raw[name]) for name in names}
    one = ExportedPartition(
        uid=_text(raw["uid"]), digest=_matching(_DIGEST, raw["digest"]), files=files, **numbers
    )
    good = (one.pin == EMPTY and not files) or (
        one.version > 0
        and is_uid(one.uid)
        and one.checkpoint_format in (1, 2)
        and one.retained > 0
        and one.table < tables
        and one.highest_id <= FAMILY_ID_MAX
    )
    counts = all(1 <= n <= BUCKETS_MAX and not n & (n - 1) for n in (one.buckets, one.groups))
    if not good or not counts or sum(file.rows for file in files) != one.rows:
        raise ValueError
    if not all(_PATH.fullmatch(file.path) for file in files):
        raise ValueError
    return one


def family_json(family: Family) -> list[Any]:
    """Encodes a family as in section 4.5 of docs/format.md."""
    return [
        family.id,
        family.name,
        family.kind,
        list(family.params),
        family.key_schema,
        family.value_schema,
        family.multi_value,
        family.internal,
    ]


def parse_family(raw: Any) -> Family:
    """Parses a family.

    Raises:
        ValueError: The family is malformed; other errors of parsing JSON occur, too.
    """
    id_, name, kind, params, key, value, multi_value, internal = raw
    if kind not in KINDS or not isinstance(multi_value, bool) or not isinstance(internal, bool):
        raise ValueError
    numbers = tuple(_whole(one) for one in params)
    if kind == "prefix" and len(numbers) != 1:
        raise ValueError
    return Family(
        _whole(id_, FAMILY_ID_MAX),
        _text(name),
        kind,
        numbers,
        _text(key),
        _text(value),
        multi_value,
        internal,
    )


def _export(raw: Mapping[str, Any]) -> Export:
    query = raw["query"]
    version, batch = (None if raw[name] is None else _whole(raw[name]) for name in _WHEN)
    stores = tuple(_store(store) for store in raw["stores"])
    contents, gen = raw["contents"], _text(query["gen"])
    places = {(one.operator, one.store) for one in stores}
    if not is_gen(gen) or contents not in (COLUMNS, RAW) or len(places) != len(stores):
        raise ValueError
    fields = {
        name: _text(value) for name, value in query["fields"].items() if _FIELD.fullmatch(name)
    }
    left_out = tuple((_whole(operator), _text(store)) for operator, store in raw["left_out"])
    found = Export(
        _text(raw["export"]),
        _whole(raw["created"]),
        gen,
        _text(query["id"]),
        _text(query["name"]),
        fields,
        version,
        batch,
        contents,
        left_out,
        _whole(raw["rows"]),
        _whole(raw["bytes"]),
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
    return ExportedStore(
        _whole(raw["operator"]),
        _text(raw["store"]),
        _text(raw["name"]),
        _whole(raw["rows"]),
        _whole(raw["bytes"]),
        _matching(_DIGEST, raw["digest"]),
        tables,
        partitions,
    )


def _store_json(store: ExportedStore) -> dict[str, Any]:
    return {
        "operator": store.operator,
        "store": store.store,
        "name": store.name,
        "rows": store.rows,
        "bytes": store.bytes,
        "digest": store.digest,
        "tables": [[family_json(family) for family in table] for table in store.tables],
        "partitions": [partition_json(one) for one in store.partitions],
    }


def _seal(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _whole(value: object, most: int = (1 << 63) - 1) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise TypeError
    return value


def _matching(pattern: re.Pattern[str], value: object) -> str:
    text = _text(value)
    if not pattern.fullmatch(text):
        raise ValueError
    return text


def tables_of(found: Sequence[Sequence[Family]]) -> tuple[tuple[Family, ...], ...]:
    """Returns the distinct family tables, in the order of first occurrence."""
    return tuple(dict.fromkeys(tuple(table) for table in found))
