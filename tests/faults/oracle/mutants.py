"""The protocol with one of its rules switched off at a time (docs/format.md, sections 6 to 8).

Each mutant has to be found by the oracle. Those of scripts change the text that the server runs;
the others change a method of the Python client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import redis

from redis_state import keys
from redis_state.backend import script
from redis_state.backend.client import Client
from redis_state.batches import streams
from redis_state.batches.event_time import Notes, watermark_of
from redis_state.errors import Kind, StateError
from redis_state.format.entry import Segment
from redis_state.maintain import recall
from redis_state.protocol import (
    Opened,
    PartitionClient,
    SegmentGoneError,
    retention,
    runs,
    segments,
)
from redis_state.store import write_session
from redis_state.store.local import loading
from redis_state.store.local.version import empty_version
from tests.faults.oracle.copy_mutants import (
    COPIED_MUTANTS,
    COPY_METHODS,
    COPY_PAIRS,
    WALK_METHODS,
)
from tests.faults.oracle.file_mutants import FILE_METHODS, FILED_MUTANTS
from tests.faults.oracle.pin_mutants import PATCHED_MUTANTS, PINNED_MUTANTS, Edit, OwnKeys
from tests.faults.oracle.preview_mutants import PREVIEW_METHODS, PREVIEW_SCRIPTS
from tests.faults.oracle.purge_mutants import (
    PURGED_MUTANTS,
    enter_blindly,
    look_before_the_entry,
    note_once,
    purge_by_an_early_look,
    take_off_blindly,
)
from tests.faults.oracle.script_mutants import SCRIPT_MUTANTS
from tests.faults.oracle.seeds import Played
from tests.faults.oracle.stream_mutants import JOIN_MUTANTS
from tests.faults.oracle.timed_mutants import TIMED_METHODS, TIMED_SCRIPTS
from tests.faults.oracle.wire import forget_scripts

Patch = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Mutant:
    """One rule less.

    Attributes:
        rule: What is not done any more.
        of: The schedules that play it: all of them would play it too seldom.
    """

    name: str
    rule: str
    patch: Patch
    of: Played = "driver"


class StaleMutantError(Exception):
    """A script no longer has the text that a mutant takes out."""


def _edit(*edits: tuple[str, str, str]) -> Patch:
    """Returns a patch that replaces texts in scripts: script name, old text, new text."""

    @contextmanager
    def patched() -> Iterator[None]:
        read = script._read

        def mutated(name: str) -> str:
            text = read(name)
            for file, old, new in edits:
                if name == file:
                    if text.count(old) != 1:
                        raise StaleMutantError(f"{file}.lua has {text.count(old)} times: {old}")
                    text = text.replace(old, new)
            return text

        forget_scripts()
        for file, _, _ in edits:
            mutated(file)
        try:
            with mock.patch.object(script, "_read", mutated):
                yield
        finally:
            forget_scripts()

    return patched


def _replace(owner: Any, name: str, new: Callable[..., Any]) -> Patch:
    # A module has no attribute for what is built in.
    return lambda: mock.patch.object(owner, name, new, create=not hasattr(owner, name))


def _both(*patches: tuple[Any, str, Any]) -> Patch:
    """Returns a patch of several attributes: owner, name, what replaces it."""

    @contextmanager
    def patched() -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, new in patches:
                stack.enter_context(mock.patch.object(owner, name, new))
            yield

    return patched


def _scripts(of: Played, mutants: Iterable[tuple[str, str, str, str, str]]) -> Iterator[Mutant]:
    """Yields mutants of one text: name, rule, script, old text, new text."""
    for name, rule, file, old, new in mutants:
        yield Mutant(name, rule, _edit((file, old, new)), of)


def _texts(of: Played, mutants: Iterable[tuple[str, str, Sequence[Edit]]]) -> Iterator[Mutant]:
    """Yields mutants of several texts: name, rule, edits."""
    for name, rule, edits in mutants:
        yield Mutant(name, rule, _edit(*edits), of)


def _methods(of: Played, mutants: Iterable[tuple[str, str, Any, str, Any]]) -> Iterator[Mutant]:
    """Yields mutants in Python: name, rule, owner of the method, its name, its replacement."""
    for name, rule, owner, method, new in mutants:
        yield Mutant(name, rule, _replace(owner, method, new), of)


def _assume_committed(self: Client, attempted: str, commands: Sequence[Any]) -> list[Any]:
    replies: list[Any]
    try:
        replies = self._exchange(attempted, [("MULTI",), *commands, ("EXEC",)])[-1]
    except Exception as error:
        if not isinstance(error.__cause__, redis.ConnectionError):
            raise
        replies = [[b"OK"] for _ in commands]
    return replies


_open = PartitionClient.open


def _open_by_version(
    self: PartitionClient,
    run_id: str,
    version: int | None,
    cached: Sequence[Any] = (),
    **more: bool,
) -> Opened:
    opened = _open(self, run_id, version, (), **more)
    for pin in cached:
        if 0 < pin.version < opened.pin.version:
            newer = tuple(one for one in opened.segments if one.version > pin.version)
            if not any(one.alone for one in newer):
                return replace(opened, start=pin, segments=newer)
    return opened


def _lost_if_gone(self: loading.Loader, opened: Opened, start: Any) -> Any:
    try:
        return _load(self, opened, start)
    except SegmentGoneError as error:
        raise StateError("reading", found=error.segment.ident, kind=Kind.STATE_LOST) from error


def _empty_if_gone(self: loading.Loader, opened: Opened, start: Any) -> Any:
    try:
        return _load(self, opened, start)
    except SegmentGoneError:
        below = empty_version(self.reload)
        below.pin = opened.pin
        return below


_load = loading.Loader._load
_layer = loading.Loader._layer


def _twice(self: loading.Loader, segment: Segment, below: Any, fetched: Any) -> Any:
    layer, families = _layer(self, segment, below, fetched)
    if not layer.rows:
        return layer, families
    once = below.with_changes(below.pin, families, layer, segment.entry)
    return _layer(self, segment, once, fetched)


def _commit_blindly(
    self: PartitionClient, run: Any, parent: Any, uid: str, entry: Any, fields: Any
) -> None:
    ident = f"d:{parent.version + 1}:{uid}"
    self.stage(ident, ident, fields)
    self._publish("committing", run, parent, uid, entry, {})


def _stage_for_ever(self: PartitionClient, ident: str, fields: Any, **_: Any) -> None:
    stored = ("HSET", keys.staged(self.id, ident), *self._flat(ident, fields))
    self.client.transaction("staging", [stored])


_plan = retention.plan


def _plan_by_the_newest(manifest: Mapping[bytes, bytes]) -> retention.RetentionPlan:
    numbers = {name: int(manifest[name]) for name in (b"o", b"l", b"n")}
    retained = max(0, numbers[b"n"] - (numbers[b"l"] - numbers[b"o"]))
    return _plan({**manifest, b"n": b"%d" % retained})


def _plan_above_the_floor(manifest: Mapping[bytes, bytes]) -> retention.RetentionPlan:
    return _plan({**manifest, b"n": b"0"})


def _plan_of_unconfirmed(manifest: Mapping[bytes, bytes]) -> retention.RetentionPlan:
    found = _plan(manifest)
    names = [name.decode() for name in manifest if name[:2] in (b"d:", b"s:")]
    newer = [name for name in names if int(name.split(":")[1]) > found.opened.version]
    return replace(found, gone=(*found.gone, *newer))


class _SameUid:
    hex = "a" * 32


class _Uids:
    @staticmethod
    def uuid4() -> type[_SameUid]:
        return _SameUid


CLIENT_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "unknown-outcome-assumed-committed",
        "a commit whose reply was lost is sent again until its outcome is known",
        _replace(Client, "transaction", _assume_committed),
    ),
    Mutant(
        "answers-of-exec-unchecked",
        "every answer of a commit's EXEC is looked at",
        _replace(PartitionClient, "commit", _commit_blindly),
    ),
    Mutant(
        "staged-snapshot-for-ever",
        "what is staged of a snapshot has an expiry",
        _replace(PartitionClient, "stage_snapshot", _stage_for_ever),
    ),
    Mutant(
        "cache-by-version",
        "what a process has cached is known by its attempt, not by its version alone",
        _replace(PartitionClient, "open", _open_by_version),
    ),
    Mutant(
        "load-falls-back-to-empty",
        "a segment that is not there is an error or read again, never no rows",
        _replace(loading.Loader, "_load", _empty_if_gone),
    ),
    Mutant(
        "appends-applied-twice",
        "a delta is applied once",
        _replace(loading.Loader, "_layer", _twice),
    ),
    Mutant(
        "attempts-share-a-uid",
        "every attempt has a uid of its own",
        lambda: mock.patch.object(write_session, "uuid", _Uids),
    ),
    Mutant(
        "floor-from-the-newest-version",
        "retention counts from the opened version, not from the newest one present",
        _replace(retention, "plan", _plan_by_the_newest),
    ),
    Mutant(
        "base-above-the-floor",
        "retention keeps the snapshot that carries the floor",
        _replace(retention, "plan", _plan_above_the_floor),
    ),
    Mutant(
        "retention-of-unconfirmed-attempts",
        "retention leaves alone what is newer than the opened version",
        _replace(retention, "plan", _plan_of_unconfirmed),
    ),
    Mutant(
        "reader-ignores-maintenance",
        "a reader whose segment was replaced looks at the manifest again",
        _replace(loading.Loader, "_load", _lost_if_gone),
    ),
)

_PINNED_AT_PUBLISH = (
    "publish",
    "if meta('ou') ~= parent then return refuse({'FENCED', 'pinned', meta('ou')}) end",
    "",
)

_THERE_AT_PUBLISH = (
    "publish",
    "if version > 0 and not has_flag(ARGV[7], 'c') and not is_there(version, parent) then "
    "return refuse(missing(version)) end",
    "",
)

COMBINED_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "publish-behind-opened",
        "nothing is published below the opened version",
        _edit(
            (
                "publish",
                "if opened > version then return refuse({'FENCED', 'opened', text(opened)}) end",
                "",
            ),
            _PINNED_AT_PUBLISH,
        ),
    ),
    Mutant(
        "written-on-any-attempt",
        "all attempts of a run go on from the attempt that it pinned",
        _edit(
            (
                "acquire",
                "  if meta('ou') ~= uid then return {'FENCED', 'pinned', meta('ou')} end\n",
                "",
            ),
            _PINNED_AT_PUBLISH,
            _THERE_AT_PUBLISH,
        ),
    ),
    Mutant(
        "replaced-attempt-told-as-lost",
        "a version that was replaced after it was read is a conflict, no loss",
        _edit(
            (
                "acquire",
                "if found ~= uid and (there or found and is_there(version, found)) then",
                "if false then",
            )
        ),
    ),
    Mutant(
        "acquire-of-a-replaced-attempt",
        "nothing is written on an attempt that was replaced after it was read",
        _edit(
            (
                "acquire",
                "if found ~= uid and (there or found and is_there(version, found)) then",
                "if false then",
            ),
            ("acquire", "  if not there then return missing(version) end\n", ""),
            _THERE_AT_PUBLISH,
        ),
    ),
    Mutant(
        "any-attempt-of-the-version",
        "a version is found by walking back from the newest one, and a rewind drops what it leaves",
        _edit(
            (
                "acquire",
                "for _, i in ipairs(at) do drop(entries[i], entries[i + 1], ARGV[7]) end",
                "",
            ),
            (
                "open",
                "  uid = found_by_version(version)",
                "  for _, name in ipairs(redis.call('HKEYS', META)) do\n"
                "    local at, other = string.match(name, '^d:(%d+):(.+)$')\n"
                "    if at and tonumber(at) == version then uid = other break end\n"
                "  end",
            ),
        ),
    ),
)


def _watermark_of_one(notes: Iterable[Notes], delay_ms: int) -> int:
    return watermark_of(list(notes)[:1], delay_ms)


STREAM_MUTANTS: tuple[Mutant, ...] = (
    *(
        Mutant(name, rule, _edit(("join", old, new)), of="stream")
        for name, rule, old, new in JOIN_MUTANTS
    ),
    Mutant(
        "begun-over-anything",
        "a batch begins only if every partition has the version below",
        _replace(streams, "not_opened", lambda _ids, _replies, **_: []),
        of="stream",
    ),
    Mutant(
        "watermark-of-one-partition",
        "the watermark comes from all partitions",
        _replace(streams, "watermark_of", _watermark_of_one),
        of="stream",
    ),
    Mutant(
        "query-not-kept",
        "a query is kept from its first batch on",
        _replace(streams, "list_store", lambda *_, **__: None),
        of="stream",
    ),
)

PURGE_MUTANTS: tuple[Mutant, ...] = (
    *(
        Mutant(name, rule, _edit((file, old, new)), of="purge")
        for name, rule, file, old, new in PURGED_MUTANTS
    ),
    Mutant(
        "listed-without-a-second-look",
        "who enters a checkpoint in the list looks for a purge behind the entry",
        _replace(runs, "_enter", enter_blindly),
        of="purge",
    ),
    Mutant(
        "looked-before-the-entry",
        "the look for a purge comes behind the entry, not before it",
        _replace(runs, "_enter", look_before_the_entry),
        of="purge",
    ),
    Mutant(
        "taken-off-after-a-recall",
        "an entry that is taken off for a purge comes back if that was called back meanwhile",
        _replace(runs, "_enter", take_off_blindly),
        of="purge",
    ),
    Mutant(
        "list-read-before-the-mark-alone",
        "a purge reads the list once more behind its mark",
        _replace(recall, "_expire_query", purge_by_an_early_look),
        of="purge",
    ),
    Mutant(
        "late-entries-not-noted",
        "an entry that a purge finds behind its mark comes back with a recall",
        _replace(recall, "_note", note_once),
        of="purge",
    ),
)

PIN_MUTANTS: tuple[Mutant, ...] = (
    *_texts("pin", PINNED_MUTANTS),
    *_methods("pin", PATCHED_MUTANTS),
    Mutant(
        "foreign-read-under-own-key",
        "a foreign segment is read under the key of its place",
        lambda: mock.patch.object(segments, "keys", OwnKeys),
        of="pin",
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    *_scripts("driver", SCRIPT_MUTANTS),
    *COMBINED_MUTANTS,
    *CLIENT_MUTANTS,
    *STREAM_MUTANTS,
    *PURGE_MUTANTS,
    *PIN_MUTANTS,
    *_texts("file", FILED_MUTANTS),
    *_methods("file", FILE_METHODS),
    *_texts("copy", COPIED_MUTANTS),
    *_methods("copy", COPY_METHODS),
    *_methods("walks", WALK_METHODS),
    *(Mutant(name, rule, _both(*patches), "copy") for name, rule, patches in COPY_PAIRS),
    *_scripts("timed", TIMED_SCRIPTS),
    *_methods("timed", TIMED_METHODS),
    *_scripts("preview", PREVIEW_SCRIPTS),
    *_methods("preview", PREVIEW_METHODS),
)
"""Each breaks one rule; the oracle has to find every one of them."""
