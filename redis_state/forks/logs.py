"""Spark's files of a checkpoint at a batch: logs, source logs, operator metadata.

Nothing here knows Redis. The sink's files are the user's, and are not copied.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis_state.errors import FormatError
from redis_state.files import Folder
from redis_state.forks.target import set_back
from redis_state.progress import Progress, silent

Attempts = Mapping[int, Sequence[Sequence[str]]]
"""Spark's unique ids of a version, by operator: for each partition those of its stores."""

COMMITS = "commits"
OFFSETS = "offsets"
STATE = "state"
_SOURCES = "sources"
_METADATA = "_metadata"
_SCHEMAS = "_stateSchema"
_SCHEMA_PATHS = "stateSchemaFilePaths"
# Names a rescaled gen, which the fork's marker files do not know.
_GEN_CONF = "redis-state.gen"
_LOG_ENTRY = re.compile(r"(\d+)(\.compact)?")
_SCHEMA_FILE = re.compile(r"(\d+)_.+")
_WITH_MAP = "v2"
_VOID = "-"


@dataclass(frozen=True, slots=True)
class BatchLogs:
    """Files of a checkpoint from which Spark continues after a batch.

    Attributes:
        batch: The newest batch of the logs.
        attempts: Empty in checkpoint format 1.
        timeline: Hash of the batch's plan.
        files: Paths relative to the checkpoint; those of the batch come last.
        folders: Folders of partitions, by which Spark's state reader finds them.
    """

    checkpoint: Folder
    batch: int
    attempts: Attempts
    timeline: str
    files: tuple[str, ...]
    folders: tuple[str, ...]

    def copy_to(self, target: Folder, progress: Progress = silent) -> None:
        """Writes the files into another checkpoint; may be repeated.

        Raises:
            FormatError: A file is gone, or was not written by Spark.
            ConfigError: A file cannot be written.
            UsageError: The batch ran again meanwhile.
            UnavailableError: A file system does not answer.
        """
        for folder in self.folders:
            (target / folder).make()
        for number, name in enumerate(self.files, 1):
            target.write(name, self._content(name, target))
            progress("copying Spark's logs", number, len(self.files))

    def _content(self, name: str, target: Folder) -> bytes:
        raw = _needed(self.checkpoint, name)
        if name == f"{OFFSETS}/{self.batch}" and _digest(raw) != self.timeline:
            raise set_back(self.batch, str(target))
        if name.startswith(f"{OFFSETS}/"):
            return without_gen(self.checkpoint, name, raw)
        if f"/{_METADATA}/" in name and _SCHEMA_PATHS.encode() in raw:
            return _with_paths(self.checkpoint, name, raw, target)
        return raw


def read_logs(checkpoint: Folder, batch: int) -> BatchLogs:
    """Finds the files of a committed batch, before anything is made.

    Raises:
        FormatError: An entry is missing, or was not written by Spark.
        ConfigError: The folder cannot be read.
        UnavailableError: The file system does not answer.
    """
    entry = _needed(checkpoint, f"{OFFSETS}/{batch}")
    attempts = _attempts(checkpoint, f"{COMMITS}/{batch}")
    files = [*source_files(checkpoint, offsets_of(checkpoint, f"{OFFSETS}/{batch}", entry))]
    folders: list[str] = []
    for operator in _numbers(checkpoint / STATE):
        files += _operator_files(checkpoint, operator, batch)
        folders += _partition_folders(checkpoint, operator)
    if batch > 0:
        files.append(f"{OFFSETS}/{batch - 1}")
        if (checkpoint / COMMITS).has(str(batch - 1)):
            files.append(f"{COMMITS}/{batch - 1}")
    files += [f"{OFFSETS}/{batch}", f"{COMMITS}/{batch}"]
    return BatchLogs(checkpoint, batch, attempts, _digest(entry), tuple(files), tuple(folders))


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def _needed(checkpoint: Folder, name: str) -> bytes:
    raw = checkpoint.read(name)
    if raw is None:
        raise FormatError(
            f"reading {checkpoint / name}",
            found="it is not there: Spark has removed it, or the folder was copied in part",
            advice="Fork a newer batch, or restore the file. Nothing of the parent was changed.",
        )
    return raw


def _attempts(checkpoint: Folder, name: str) -> Attempts:
    metadata = _metadata(checkpoint, name, _needed(checkpoint, name))
    found = metadata.get("stateUniqueIds") or {}
    try:
        return {
            int(operator): [list(map(str, ids)) for ids in of] for operator, of in found.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise _malformed(checkpoint, name) from error


def _metadata(checkpoint: Folder, name: str, raw: bytes) -> dict[str, Any]:
    """Returns the JSON object in the second line of a log entry."""
    try:
        found = json.loads(raw.decode().splitlines()[1])
    except (ValueError, RecursionError, IndexError) as error:
        raise _malformed(checkpoint, name) from error
    if not isinstance(found, dict):
        raise _malformed(checkpoint, name)
    return found


def offsets_of(checkpoint: Folder, name: str, raw: bytes) -> dict[str, str]:
    """Returns the offset of each source, as text, by the name of its folder."""
    _metadata(checkpoint, name, raw)
    version, _, *lines = raw.decode().splitlines()
    if version != _WITH_MAP:
        return {str(number): line for number, line in enumerate(lines)}
    # Spark 4.2 and newer, for sources with names.
    pairs = (line.partition(":") for line in lines if line)
    return {source: offset for source, _, offset in pairs}


def source_files(checkpoint: Folder, offsets: Mapping[str, str]) -> Iterator[str]:
    """Yields the logs of the sources, of a source of files only up to its offset."""
    sources = checkpoint / _SOURCES
    for source in sorted(item.name for item in sources.items() or () if item.is_folder):
        names = [item.name for item in (sources / source).items() or () if not item.is_folder]
        last = last_file_entry(offsets.get(source, _VOID))
        if last is not None:
            names = _entries_up_to(names, last, where=str(sources / source))
        for name in sorted(names):
            if not name.startswith("."):
                yield f"{_SOURCES}/{source}/{name}"


def last_file_entry(offset: str) -> int | None:
    """Returns the newest entry that a file source's offset means; ``None`` for other sources."""
    try:
        found = json.loads(offset)
    except (ValueError, RecursionError):
        return None
    is_of_files = isinstance(found, dict) and list(found) == ["logOffset"]
    last = found["logOffset"] if is_of_files else None
    return last if isinstance(last, int) else None


def _entries_up_to(names: Sequence[str], last: int, *, where: str) -> list[str]:
    entries = {name: match for name in names if (match := _LOG_ENTRY.fullmatch(name))}
    kept = {name: int(match[1]) for name, match in entries.items() if int(match[1]) <= last}
    base = max((kept[name] for name in kept if name.endswith(".compact")), default=-1)
    missing = set(range(base + 1, last + 1)) - set(kept.values())
    if missing:
        raise FormatError(
            f"reading the log of a source in {where}",
            found=f"entry {min(missing)} is gone, and the batch needs it: the source can no longer "
            "tell which files it has read",
            advice="Fork a newer batch. Nothing was made.",
        )
    return [name for name in names if name in kept or name not in entries]


def _operator_files(checkpoint: Folder, operator: int, batch: int) -> Iterator[str]:
    root = f"{STATE}/{operator}"
    metadata = f"{root}/{_METADATA}"
    for item in (checkpoint / metadata).items() or ():
        if not item.is_folder and item.name == "metadata":
            yield f"{metadata}/{item.name}"
    for number in _numbers(checkpoint / metadata / "v2"):
        if number <= batch:
            yield f"{metadata}/v2/{number}"
    for name in _below(checkpoint, f"{root}/{_SCHEMAS}"):
        written = _SCHEMA_FILE.fullmatch(name.rpartition("/")[2])
        if written is None or int(written[1]) <= batch:
            yield name
    # Spark keeps the schema of a store beside its first partition.
    for name in _below(checkpoint, f"{root}/0"):
        if name.endswith(f"/{_METADATA}/schema"):
            yield name


def _partition_folders(checkpoint: Folder, operator: int) -> Iterator[str]:
    root = f"{STATE}/{operator}"
    first = (checkpoint / root / "0").items() or ()
    stores = [one.name for one in first if one.is_folder and one.name != _METADATA]
    for number in _numbers(checkpoint / root):
        yield f"{root}/{number}"
        for store in stores:
            yield f"{root}/{number}/{store}"


def _below(checkpoint: Folder, root: str) -> Iterator[str]:
    for item in (checkpoint / root).items() or ():
        name = f"{root}/{item.name}"
        if item.is_folder:
            yield from _below(checkpoint, name)
        elif not item.name.startswith("."):
            yield name


def _numbers(folder: Folder) -> list[int]:
    return sorted(int(item.name) for item in folder.items() or () if item.name.isdecimal())


def without_gen(checkpoint: Folder, name: str, raw: bytes) -> bytes:
    """Returns a plan without the id of a checkpoint that a change of partitions has written."""
    metadata = _metadata(checkpoint, name, raw)
    conf = metadata.get("conf")
    if not isinstance(conf, dict) or _GEN_CONF not in conf:
        return raw
    kept = {key: value for key, value in conf.items() if key != _GEN_CONF}
    version, _, *rest = raw.decode().split("\n")
    return "\n".join([version, _compact({**metadata, "conf": kept}), *rest]).encode()


def _with_paths(checkpoint: Folder, name: str, raw: bytes, target: Folder) -> bytes:
    """Returns operator metadata whose paths of schema files are those of the new checkpoint."""
    operator = name.split("/")[1]
    root = f"{target.spelling()}/{STATE}/{operator}/"

    def moved(value: Any, of: str = "") -> Any:
        if isinstance(value, dict):
            return {key: moved(one, key) for key, one in value.items()}
        if isinstance(value, list):
            return [moved(one, of) for one in value]
        if of == _SCHEMA_PATHS and isinstance(value, str):
            return root + value.split(f"/{STATE}/{operator}/")[-1]
        return value

    try:
        version, content = raw.decode().split("\n", 1)
        return f"{version}\n{_compact(moved(json.loads(content)))}".encode()
    except (ValueError, RecursionError) as error:
        raise _malformed(checkpoint, name) from error


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _malformed(checkpoint: Folder, name: str) -> FormatError:
    return FormatError(
        f"reading {checkpoint / name}",
        found="it is cut off, or was not written by Spark",
        advice="Restore the file from a backup. Nothing was made.",
    )
