"""Marker file of a checkpoint, which names its keys (docs/format.md, section 9)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from itertools import count

from redis_state.errors import ConfigError, FormatError, Kind, StateError
from redis_state.files import Folder
from redis_state.ids import is_gen
from redis_state.recovery.rewind import LOGS

NAME = "_redis_state"
_STATE = "state"
_FORMAT = 1
_FORMAT_RESCALED = 2
_GEN_CONF = "redis-state.gen"
_BYTES_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class Marker:
    """Content of the marker files of a checkpoint.

    Attributes:
        gen: Id of the checkpoint's keys.
        path_hash: SHA-256 of the qualified path, in hex digits.
        since: First batch of a gen that was created by a change of the number of partitions;
            ``None`` for the first gen of a checkpoint.
        changes: True if a change of the number of partitions was announced and is not decided yet.
    """

    gen: str
    path_hash: str
    since: int | None = None
    changes: bool = False


def has_marker(checkpoint: Folder) -> bool:
    """Returns whether the state of a checkpoint is, or once was, in Redis.

    Raises:
        FormatError: The file is damaged.
        UnavailableError: The file system does not answer.
    """
    return _read(checkpoint / _STATE, NAME) is not None


def gen_of(checkpoint: Folder) -> str:
    """Returns the id of a checkpoint; see `marker_of` for errors."""
    return marker_of(checkpoint).gen


def marker_of(checkpoint: Folder) -> Marker:
    """Reads the marker files, and the offset log for changes that they announce.

    Raises:
        StateError: There is no marker file, or it was copied from another checkpoint.
        FormatError: A file is damaged.
        ConfigError: The folder does not exist, or cannot be read.
        UnavailableError: The file system does not answer.
    """
    state = checkpoint / _STATE
    decided = _read(state, NAME)
    if decided is None:
        raise _without_marker(checkpoint)
    if decided.since is not None:
        raise _of_two(state, decided, decided)
    announced: list[Marker] = []
    for number in count(1):
        found = _read(state, f"{NAME}.{number}")
        if found is None:
            break
        if found.since is not None:
            # Too late: a change announced for a batch that was already decided.
            if decided.since is None or decided.since < found.since:
                announced.insert(0, found)
            continue
        named = next((one for one in (decided, *announced) if one.gen == found.gen), None)
        if named is None:
            raise _of_two(state, decided, found)
        decided, announced = Marker(named.gen, found.path_hash, named.since), []
    planned = _planned(checkpoint, announced)
    changes = planned is not None or _may_come(checkpoint, announced)
    decided = replace(planned or decided, changes=changes)
    if decided.path_hash not in _hashes(state):
        raise StateError(
            f"reading the marker file {state / NAME}",
            kind=Kind.CHECKPOINT_MOVED_OR_COPIED,
            found="the checkpoint was made under another path: it was moved, or it was copied "
            "and the state belongs to another query",
            advice=(
                "If it was moved, start its query once with onPathChange=adopt. If you are sure "
                f"that this is the right state, give --gen {decided.gen}."
            ),
        )
    return decided


def make_marker(checkpoint: Folder, gen: str) -> str:
    """Creates the marker file of a new checkpoint, unless there is one.

    Returns:
        The gen that the file names.

    Raises:
        FormatError: The file is damaged.
        ConfigError: The file cannot be written.
        UnavailableError: The file system does not answer.
    """
    state = checkpoint / _STATE
    content = {"format": _FORMAT, "gen": gen, "path": path_hash_of(checkpoint)}
    state.create(NAME, json.dumps(content).encode())
    found = _read(state, NAME)
    if found is None:
        raise FormatError(f"reading the marker file {state / NAME}", found="it is gone")
    return found.gen


def path_hash_of(checkpoint: Folder) -> str:
    """Returns the hash of the path that a new checkpoint has, as its address is written."""
    return hashlib.sha256((checkpoint / _STATE).spelling().encode()).hexdigest()


def marked_gen(checkpoint: Folder) -> str | None:
    """Returns the gen of the first marker file alone; ``None`` if there is none.

    Raises:
        FormatError: The file is damaged.
        UnavailableError: The file system does not answer.
    """
    found = _read(checkpoint / _STATE, NAME)
    return None if found is None else found.gen


def _of_two(state: Folder, first: Marker, other: Marker) -> FormatError:
    return FormatError(
        f"reading the marker files {state / NAME}*",
        found=f"they belong to two checkpoints, {first.gen} and {other.gen}",
    )


def _planned(checkpoint: Folder, announced: list[Marker]) -> Marker | None:
    """Returns the announced change that the offset log confirms."""
    for batch in dict.fromkeys(one.since for one in announced):
        offsets = checkpoint / "offsets"
        raw = offsets.read(str(batch))
        if raw is None:
            continue
        attempted = f"reading {offsets / str(batch)}"
        try:
            gen = json.loads(raw.decode().splitlines()[1])["conf"].get(_GEN_CONF)
        except (ValueError, RecursionError, IndexError, KeyError, TypeError) as error:
            raise FormatError(attempted, found="it is not an entry of an offset log") from error
        if gen is None:
            continue
        for one in announced:
            if one.gen == gen:
                return one
        raise FormatError(
            attempted, found=f"it continues with gen {gen}, which no marker file names"
        )
    return None


def _may_come(checkpoint: Folder, announced: list[Marker]) -> bool:
    """Returns whether the offset log may still get the batch of an announced change."""
    if not announced:
        return False
    items = (checkpoint / "offsets").items() or []
    newest = max((int(one.name) for one in items if one.name.isdecimal()), default=-1)
    return any(one.since is not None and one.since > newest for one in announced)


def _without_marker(checkpoint: Folder) -> ConfigError | StateError:
    items = checkpoint.items()
    if items is None:
        return ConfigError(
            f"reading the checkpoint {checkpoint}",
            found=checkpoint.missing(),
            advice=(
                "Give the folder that the query has as checkpointLocation. If it was deleted, "
                "`redis-state queries` lists the state left in Redis; give its gen with --gen."
            ),
        )
    if not any(item.name in LOGS and item.is_folder for item in items):
        found = "the folder is there, but Spark has written no query into it"
        advice = (
            "Give the folder that the query has as checkpointLocation: it holds offsets and "
            "commits."
        )
    else:
        found = f"the file {_STATE}/{NAME} is missing, which holds the id of its state in Redis"
        advice = (
            "Either the query keeps its state elsewhere, or it has not written any yet, or the "
            "file was deleted. In the last case restore the whole folder, or give the "
            "checkpoint's id with --gen; `redis-state queries` lists the ids. Where the state is "
            "in Python stores alone, give doctor and rewind the names of these stores."
        )
    return StateError(
        f"reading the checkpoint {checkpoint}",
        kind=Kind.MARKER_MISSING,
        found=found,
        advice=advice,
    )


def _read(state: Folder, name: str) -> Marker | None:
    """Reads a marker file; ``None`` if the file does not exist."""
    raw = state.read(name, most=_BYTES_MAX)
    return None if raw is None else _parse(f"reading the marker file {state / name}", raw)


def _parse(attempted: str, raw: bytes) -> Marker:
    try:
        marker = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise FormatError(attempted, found="it is not JSON") from error
    format_ = marker.get("format") if isinstance(marker, dict) else None
    if format_ not in (_FORMAT, _FORMAT_RESCALED):
        raise FormatError(attempted, found="its format is unknown to this release")
    gen, path_hash = marker.get("gen"), marker.get("path")
    if not isinstance(gen, str) or not is_gen(gen) or not isinstance(path_hash, str):
        raise FormatError(attempted, found="it has no checkpoint id or path")
    since = marker.get("batch") if format_ == _FORMAT_RESCALED else None
    if format_ == _FORMAT_RESCALED and not isinstance(since, int):
        raise FormatError(attempted, found="it names no batch")
    return Marker(gen, path_hash, since)


def _hashes(state: Folder) -> set[str]:
    """Returns hashes of the qualified path as Hadoop spells it."""
    return {hashlib.sha256(path.encode()).hexdigest() for path in state.spellings()}
