"""The marker file of a checkpoint, which names its keys (docs/format.md, section 9)."""

from __future__ import annotations

import hashlib
import json
from itertools import count
from pathlib import Path

from redis_state.errors import ConfigError, FormatError, Kind, StateError
from redis_state.ids import is_gen
from redis_state.recovery.rewind import LOGS

NAME = "_redis_state"
_STATE = "state"
_FORMAT = 1
_BYTES_MAX = 1 << 16
_SCHEMES = ("file://", "file:")


def local_path(checkpoint: str) -> Path:
    """The path of a checkpoint in the local file system.

    Raises:
        ConfigError: It is in another one.
    """
    for scheme in _SCHEMES:
        if checkpoint.startswith(scheme):
            return Path(checkpoint.removeprefix(scheme))
    if "://" in checkpoint:
        raise ConfigError(
            f"reading the checkpoint {checkpoint}",
            found="it is not in a local file system",
            advice=f"Read its file {_STATE}/{NAME} there, and give the 'gen' in it with --gen. "
            "Where the logs are needed too, copy the folders offsets and commits to a local folder "
            "and give that one with --checkpoint.",
        )
    return Path(checkpoint)


def gen_of(checkpoint: str) -> str:
    """The id of a checkpoint.

    Raises:
        StateError: There is no marker file, or it was copied from another checkpoint.
        FormatError: The file is damaged.
        ConfigError: There is no such folder, or it is not in a local file system.
    """
    state = local_path(checkpoint).absolute() / _STATE
    found = _read(state / NAME)
    if found is None:
        raise _without_marker(state)
    gen, path_hash = found
    for number in count(1):
        adopted = _read(state / f"{NAME}.{number}")
        if adopted is None:
            break
        if adopted[0] != gen:
            raise FormatError(
                f"reading the marker files {state / NAME}*",
                found=f"they belong to two checkpoints, {gen} and {adopted[0]}",
            )
        path_hash = adopted[1]
    if path_hash not in _hashes(state):
        raise StateError(
            f"reading the marker file {state / NAME}",
            kind=Kind.CHECKPOINT_MOVED_OR_COPIED,
            found="the checkpoint was made under another path: it was moved, or it was copied "
            "and the state belongs to another query",
            advice="If it was moved, start its query once with onPathChange=adopt. If you are "
            f"sure that you mean this state, give --gen {gen}.",
        )
    return gen


def _without_marker(state: Path) -> ConfigError | StateError:
    folder = state.parent
    if not folder.is_dir():
        return ConfigError(
            f"reading the checkpoint {folder}",
            found="there is no such folder on this machine",
            advice="Give the folder that the query has as checkpointLocation. If it was deleted, "
            "`redis-state queries` lists what is left in Redis, and --gen names it.",
        )
    if not any((folder / log).is_dir() for log in LOGS):
        found = "the folder is there, but Spark has written no query into it"
        advice = (
            "Give the folder that the query has as checkpointLocation: it holds offsets and "
            "commits."
        )
    else:
        found = f"the file {_STATE}/{NAME} is missing, which says where its state is in Redis"
        advice = (
            "Either the query keeps its state elsewhere, or it has written none yet, or the file "
            "was deleted: then restore the folder as a whole, or give the checkpoint's id with "
            "--gen; `redis-state queries` lists the ids."
        )
    return StateError(
        f"reading the checkpoint {folder}", kind=Kind.MARKER_MISSING, found=found, advice=advice
    )


def _read(path: Path) -> tuple[str, str] | None:
    """Gen and hash of the path; ``None`` if there is no such file."""
    attempted = f"reading the marker file {path}"
    try:
        with path.open("rb") as file:
            raw = file.read(_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(
            attempted, found=type(error).__name__, advice="Make it readable."
        ) from error
    return _parse(attempted, raw)


def _parse(attempted: str, raw: bytes) -> tuple[str, str]:
    try:
        marker = json.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise FormatError(attempted, found="it is not JSON") from error
    if not isinstance(marker, dict) or marker.get("format") != _FORMAT:
        raise FormatError(attempted, found="its format is unknown to this release")
    gen, path_hash = marker.get("gen"), marker.get("path")
    if not isinstance(gen, str) or not is_gen(gen) or not isinstance(path_hash, str):
        raise FormatError(attempted, found="it names no checkpoint id or path")
    return gen, path_hash


def _hashes(state: Path) -> set[str]:
    """Of the qualified path as Hadoop spells it, with and without symbolic links."""
    paths = {str(state), str(state.resolve()), str(Path(*_without_dots(state)))}
    return {hashlib.sha256(f"file:{path}".encode()).hexdigest() for path in paths}


def _without_dots(path: Path) -> list[str]:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and len(parts) > 1:
            parts.pop()
        elif part != "..":
            parts.append(part)
    return parts
