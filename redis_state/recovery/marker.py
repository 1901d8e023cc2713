"""The marker file of a checkpoint, which names its keys (docs/format.md, section 9)."""

from __future__ import annotations

import hashlib
import json
from itertools import count

from redis_state.errors import ConfigError, FormatError, Kind, StateError
from redis_state.files import Folder
from redis_state.ids import is_gen
from redis_state.recovery.rewind import LOGS

NAME = "_redis_state"
_STATE = "state"
_FORMAT = 1
_BYTES_MAX = 1 << 16


def has_marker(checkpoint: Folder) -> bool:
    """Whether the state of a checkpoint is in Redis, or was once.

    Raises:
        FormatError: The file is damaged.
        UnavailableError: Its file system gives no answer.
    """
    return _read(checkpoint / _STATE, NAME) is not None


def gen_of(checkpoint: Folder) -> str:
    """The id of a checkpoint.

    Raises:
        StateError: There is no marker file, or it was copied from another checkpoint.
        FormatError: The file is damaged.
        ConfigError: There is no such folder, or it cannot be read.
        UnavailableError: Its file system gives no answer.
    """
    state = checkpoint / _STATE
    found = _read(state, NAME)
    if found is None:
        raise _without_marker(checkpoint)
    gen, path_hash = found
    for number in count(1):
        adopted = _read(state, f"{NAME}.{number}")
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


def _without_marker(checkpoint: Folder) -> ConfigError | StateError:
    items = checkpoint.items()
    if items is None:
        return ConfigError(
            f"reading the checkpoint {checkpoint}",
            found=checkpoint.missing(),
            advice="Give the folder that the query has as checkpointLocation. If it was deleted, "
            "`redis-state queries` lists what is left in Redis, and --gen names it.",
        )
    if not any(item.name in LOGS and item.is_folder for item in items):
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
        f"reading the checkpoint {checkpoint}",
        kind=Kind.MARKER_MISSING,
        found=found,
        advice=advice,
    )


def _read(state: Folder, name: str) -> tuple[str, str] | None:
    """Gen and hash of the path; ``None`` if there is no such file."""
    raw = state.read(name, most=_BYTES_MAX)
    return None if raw is None else _parse(f"reading the marker file {state / name}", raw)


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


def _hashes(state: Folder) -> set[str]:
    """Of the qualified path as Hadoop spells it."""
    return {hashlib.sha256(path.encode()).hexdigest() for path in state.spellings()}
