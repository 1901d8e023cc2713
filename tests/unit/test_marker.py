"""Marker files: which of several counts. `RescaledMarkerSuite` holds the JVM to the same."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from redis_state.errors import FormatError, StateError
from redis_state.files import folder_at
from redis_state.recovery.marker import marker_of

OLD, NEW, OTHER = ("1" * 32, "2" * 32, "3" * 32)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    for name in ("state", "offsets", "commits"):
        (tmp_path / name).mkdir()
    write(tmp_path, OLD)
    return tmp_path


def write(checkpoint: Path, gen: str, *, batch: int | None = None) -> Path:
    """The next marker file; with a batch it announces the gen."""
    state = checkpoint / "state"
    number = len(list(state.glob("_redis_state*")))
    path = state / (f"_redis_state.{number}" if number else "_redis_state")
    hashed = hashlib.sha256(f"file:{state}".encode()).hexdigest()
    marker = {"format": 1, "gen": gen, "path": hashed}
    if batch is not None:
        marker |= {"format": 2, "batch": batch, "partitions": 8}
    path.write_text(json.dumps(marker))
    return path


def plan(checkpoint: Path, batch: int, gen: str | None = None) -> Path:
    conf = {"spark.sql.shuffle.partitions": "8"} | ({"redis-state.gen": gen} if gen else {})
    entry = checkpoint / "offsets" / str(batch)
    entry.write_text("v1\n" + json.dumps({"conf": conf}) + "\n-")
    return entry


def found(checkpoint: Path) -> tuple[str, int | None]:
    marker = marker_of(folder_at(str(checkpoint)))
    return marker.gen, marker.since


def test_announced_marker_counts_once_logged(checkpoint: Path) -> None:
    assert found(checkpoint) == (OLD, None)
    write(checkpoint, NEW, batch=5)
    assert found(checkpoint) == (OLD, None)
    plan(checkpoint, 5)
    assert found(checkpoint) == (OLD, None)
    plan(checkpoint, 5, NEW)
    assert found(checkpoint) == (NEW, 5)


@pytest.mark.parametrize(("decided", "since"), [(OLD, None), (NEW, 5)])
def test_decided_marker_needs_no_log(checkpoint: Path, decided: str, since: int | None) -> None:
    write(checkpoint, NEW, batch=5)
    write(checkpoint, decided)
    assert found(checkpoint) == (decided, since)
    write(checkpoint, OTHER, batch=9)
    assert found(checkpoint) == (decided, since)
    plan(checkpoint, 9, OTHER)
    assert found(checkpoint) == (OTHER, 9)


def test_logged_marker_of_several_announced_counts(checkpoint: Path) -> None:
    write(checkpoint, NEW, batch=5)
    write(checkpoint, OTHER, batch=5)
    plan(checkpoint, 5, NEW)
    assert found(checkpoint) == (NEW, 5)


@pytest.mark.parametrize("late", [4, 5])
def test_marker_announced_after_the_decision_is_ignored(checkpoint: Path, late: int) -> None:
    write(checkpoint, NEW, batch=5)
    plan(checkpoint, 5, NEW)
    write(checkpoint, NEW)
    write(checkpoint, OTHER, batch=late)
    plan(checkpoint, late, NEW if late == 5 else OTHER)
    assert found(checkpoint) == (NEW, 5)


def test_marker_of_another_checkpoint_is_refused(checkpoint: Path) -> None:
    announced = write(checkpoint, NEW, batch=5)
    plan(checkpoint, 5, OTHER)
    with pytest.raises(FormatError, match=f"gen {OTHER}, which no marker file names"):
        found(checkpoint)
    plan(checkpoint, 5, NEW).write_text("v1")
    with pytest.raises(FormatError, match="not an entry of an offset log"):
        found(checkpoint)
    other = write(checkpoint, OTHER)
    with pytest.raises(FormatError, match=f"two checkpoints, {OLD} and {OTHER}"):
        found(checkpoint)
    other.unlink()
    announced.write_text('{"format": 2, "gen": "' + NEW + '", "path": "x"}')
    with pytest.raises(FormatError, match="it names no batch"):
        found(checkpoint)
    announced.write_text('{"format": 3}')
    with pytest.raises(FormatError, match="its format is unknown to this release"):
        found(checkpoint)


def test_moved_folder_is_reported(checkpoint: Path) -> None:
    moved = checkpoint.with_name("moved")
    checkpoint.rename(moved)
    with pytest.raises(StateError, match="the checkpoint was made under another path"):
        found(moved)
