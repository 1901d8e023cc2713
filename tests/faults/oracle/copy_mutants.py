"""Rules of copies (docs/format.md, section 11), and what a mutant does without each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_state.maintain import files
from redis_state.protocol import PartitionClient
from tests.faults.oracle import copier
from tests.faults.oracle.copier import Copier, PlayedCopy
from tests.faults.oracle.pin_mutants import Edit

COPIED_MUTANTS: tuple[tuple[str, str, tuple[Edit, ...]], ...] = (
    (
        "restored-without-a-row",
        "a file of a copy gets its row when a partition is restored",
        (
            (
                "restore",
                "for file, count in pairs(segments) do set_file(file, USED, count, "
                "text(bytes[file])) end\n",
                "",
            ),
        ),
    ),
)
"""Texts of scripts: name, rule, edits."""


def _tidy_first(self: Copier, partition: PartitionClient, format_: int) -> None:
    """Removes older copies before the own one is there."""
    opened = partition.open("", None)
    if not opened.pin.version or not self._holds():
        return
    kept, copier.KEPT = copier.KEPT, copier.KEPT - 1
    self._made_ms = self._now_ms()
    names = sorted(self._copies.complete(), key=lambda one: one.version)
    self._name = names[-1].name if names else ""
    try:
        self._tidy()
    finally:
        copier.KEPT = kept
    self._make(opened, format_)


def _since_the_first(
    self: Copier, others: Sequence[PlayedCopy], listed: set[str] | None, own: set[str]
) -> dict[str, int]:
    """Keeps the time at which a file was written or listed first, whoever named it since."""
    now = self._now_ms()
    born = self.__dict__.setdefault("born", {})
    found = (listed or set()) | own
    for one in others:
        found |= one.files | one.unneeded.keys()
        for file, ms in one.unneeded.items():
            born[file] = min(ms, born.get(file, ms))
        for file in one.files:
            born.setdefault(file, now)
    return {file: born.setdefault(file, now) for file in sorted(found - self._gone)}


def _takes_its_files_along(self: Copier, own: set[str]) -> None:
    """Deletes the files of a copy whose manifest was not answered."""
    for file in sorted(own):
        self._files.remove_file(file)


COPY_METHODS: tuple[tuple[str, str, Any, str, Any], ...] = (
    (
        "deleted-at-once",
        "a file stays for an hour after the last copy that named it",
        copier,
        "GRACE_MS",
        -1,
    ),
    (
        "copies-removed-after-a-sleep",
        "no copy is removed later than half an hour after the manifest was begun",
        Copier,
        "_may_remove",
        lambda _: True,
    ),
    (
        "copies-removed-before-their-successor",
        "older copies are removed behind the new one",
        Copier,
        "run",
        _tidy_first,
    ),
    (
        "one-copy-kept",
        "the two newest copies stay",
        copier,
        "KEPT",
        1,
    ),
    (
        "unneeded-since-its-first-day",
        "the hour of a file begins anew while a complete copy names it",
        Copier,
        "_since",
        _since_the_first,
    ),
    (
        "failed-copy-takes-its-files-along",
        "a writer that fails leaves its files",
        Copier,
        "_failed",
        _takes_its_files_along,
    ),
    (
        "files-of-killed-writers-forgotten",
        "a listing shows the files that no copy names",
        Copier,
        "_is_survey_due",
        lambda *_: False,
    ),
    (
        "copy-not-read-back",
        "the end of each new region is read back before the manifest",
        copier,
        "is_whole",
        lambda *_: True,
    ),
    (
        "sweep-takes-files-of-copies",
        "a sweep leaves the files of copies alone",
        files,
        "is_copy_name",
        lambda _: False,
    ),
)
"""Steps in Python: name, rule, owner of the method, its name, what replaces it."""

WALK_METHODS: tuple[tuple[str, str, Any, str, Any], ...] = (
    (
        "names-what-a-removed-copy-had",
        "a copy names no place that no complete copy names any more",
        Copier,
        "_check_named",
        lambda *_: None,
    ),
    (
        "deleted-though-a-copy-names-it",
        "no file is deleted that a complete copy names",
        Copier,
        "_unnamed",
        lambda _, files: list(files),
    ),
    (
        "deleted-while-a-server-may-go-back",
        "a file that a restored partition dropped stays for the grace",
        Copier,
        "_is_free",
        lambda *_: True,
    ),
    (
        "slow-copy-unchecked",
        "a copy that took more than half an hour lists the files that it names",
        Copier,
        "_check_files",
        lambda *_: None,
    ),
    (
        "old-files-of-its-own",
        "a writer names no file of its own that another copy listed half an hour ago",
        Copier,
        "_check_age",
        lambda *_: None,
    ),
    (
        "removed-by-an-older-copy",
        "a writer whose copy is not one of the two newest removes none",
        Copier,
        "_is_among",
        lambda *_: True,
    ),
)
"""Those that only the given walks find, as `COPY_METHODS`."""

COPY_PAIRS: tuple[tuple[str, str, tuple[tuple[Any, str, Any], ...]], ...] = (
    (
        "deleted-though-a-partition-reads-it",
        "no file that a restored partition reads from is deleted",
        (
            (Copier, "_placed_in", lambda *_: set()),
            (Copier, "_is_free", lambda *_: True),
        ),
    ),
)
"""Two steps at once, where one alone has the effect of the other."""
