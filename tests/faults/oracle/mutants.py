"""The protocol with one of its rules switched off at a time (docs/format.md, sections 6 to 8).

Each mutant has to be found by the oracle. Those of scripts change the text that the server runs;
the others change a method of the Python client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import redis

from redis_state import loading, partition_store
from redis_state.backend import script
from redis_state.backend.client import Client
from redis_state.errors import Kind, StateError
from redis_state.format.entry import Segment
from redis_state.protocol import Opened, PartitionClient, SegmentGoneError
from tests.faults.oracle.wire import forget_scripts

Patch = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Mutant:
    """One rule less.

    Attributes:
        rule: What is not done any more.
    """

    name: str
    rule: str
    patch: Patch


class StaleMutantError(Exception):
    """A script no longer has the text that a mutant takes out."""


def _edit(*edits: tuple[str, str, str]) -> Patch:
    """Takes texts out of scripts: name of the script, old text, new text."""

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
    return lambda: mock.patch.object(owner, name, new)


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
    self: PartitionClient, run_id: str, version: int | None, cached: Sequence[Any] = ()
) -> Opened:
    opened = _open(self, run_id, version, ())
    for pin in cached:
        if 0 < pin.version < opened.pin.version:
            newer = tuple(one for one in opened.segments if one.version > pin.version)
            if not any(one.alone for one in newer):
                return Opened(opened.pin, opened.held, opened.opened, opened.floor, pin, newer)
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
        below = self.empty()
        below.pin = opened.pin
        return below


_load = loading.Loader._load
_layer = loading.Loader._layer


def _twice(self: loading.Loader, segment: Segment, below: Any, fetched: Any) -> Any:
    layer, family = _layer(self, segment, below, fetched)
    if not layer.rows:
        return layer, family
    once = below.with_changes(below.pin, below.live, family or below.family, layer, 1)
    return _layer(self, segment, once, fetched)


def _commit_blindly(
    self: PartitionClient, run: Any, parent: Any, uid: str, entry: Any, fields: Any
) -> None:
    ident = f"d:{parent.version + 1}:{uid}"
    self.stage(ident, ident, fields)
    self._publish("committing", run, parent, uid, entry, {})


class _SameUid:
    hex = "a" * 32


class _Uids:
    @staticmethod
    def uuid4() -> type[_SameUid]:
        return _SameUid


SCRIPT_MUTANTS: tuple[tuple[str, str, str, str, str], ...] = (
    (
        "commit-not-idempotent",
        "a commit that is sent again finds its entry and changes nothing",
        "publish",
        "if redis.call('HEXISTS', META, field) == 1 then",
        "if false then",
    ),
    (
        "no-fence",
        "a run that no longer holds the partition cannot publish",
        "publish",
        "if meta('r') ~= run then",
        "if false then",
    ),
    (
        "block-count-unchecked",
        "a delta is published only with all its blocks",
        "publish",
        "if blocks ~= tonumber(ARGV[6]) then",
        "if false then",
    ),
    (
        "published-delta-expires",
        "a published delta loses its expiry",
        "publish",
        "'lu', uid)\nkeep(delta, ARGV[10])",
        "'lu', uid)",
    ),
    (
        "refused-delta-stays",
        "a refused publish leaves no key",
        "publish",
        "  redis.call('UNLINK', delta)\n",
        "",
    ),
    (
        "latest-not-moved",
        "publishing moves the newest version",
        "publish",
        ", 'l', text(version + 1), 'lu', uid)",
        ")",
    ),
    (
        "late-stage-over-published",
        "a staged chunk that comes late does not touch a published delta",
        "stage",
        "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return {'PUBLISHED'} end",
        "",
    ),
    (
        "staged-for-ever",
        "what is staged has an expiry",
        "stage",
        "redis.call('PEXPIRE', KEYS[2], ARGV[2])",
        "",
    ),
    (
        "abort-without-published-check",
        "giving up does not drop what was published",
        "abort",
        "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return {'PUBLISHED'} end",
        "",
    ),
    (
        "open-does-not-pin",
        "opening a version pins it for all attempts of the run",
        "open",
        "  redis.call('HSET', META, 'o', text(version), 'ou', uid, 'l', text(version), 'lu', uid)",
        "  redis.call('HSET', META, 'l', text(version), 'lu', uid)",
    ),
    (
        "reader-opens",
        "a reader changes nothing",
        "open",
        "if held and version > opened then",
        "if version > opened then",
    ),
    (
        "cached-child-of-anything",
        "what a process has cached counts only if the version descends from it",
        "open",
        "for i = 4, #ARGV, 2 do cached[ARGV[i] .. ':' .. ARGV[i + 1]] = true end",
        "for i = 4, #ARGV, 2 do cached[ARGV[i] .. ':' .. (walk(version, uid or '-', "
        "tonumber(ARGV[i])) or '-')] = true end",
    ),
    (
        "acquire-with-any-epoch",
        "the epoch of a partition only rises",
        "acquire",
        "if epoch <= number('e') then return {'FENCED', 'epoch', meta('e')} end",
        "",
    ),
    (
        "dropped-by-a-second-attempt",
        "version 0 drops the old timeline only while the epoch is raised",
        "acquire",
        "if meta('r') == run then",
        "if meta('r') == run and version == 0 then epoch = epoch + 1 elseif meta('r') == run then",
    ),
    (
        "old-timeline-stays-newest",
        "acquiring makes the version that is written on the newest one",
        "acquire",
        "\n  'l', text(version), 'lu', uid, 'n', ARGV[6], 'c', ARGV[8])\nreturn",
        "\n  'n', ARGV[6], 'c', ARGV[8])\nreturn",
    ),
    (
        "acquire-does-not-pin",
        "acquiring pins the version that is written on",
        "acquire",
        "'o', text(version), 'ou', uid,\n  'l', text(version), 'lu', uid, 'n', ARGV[6]",
        "'l', text(version), 'lu', uid, 'n', ARGV[6]",
    ),
    (
        "unregistered-run-goes-back",
        "a run that no driver registered cannot acquire below the opened version",
        "acquire",
        "if ARGV[3] ~= '1' and version < opened then",
        "if false then",
    ),
    (
        "epochs-of-runs-equal",
        "a run that is registered later has a greater epoch",
        "register",
        "epoch = math.max(newest + 1, above + 1, now_ms)",
        "epoch = math.max(newest, above)",
    ),
    (
        "snapshot-blocks-unchecked",
        "a snapshot is entered only with all its blocks",
        "snapshot",
        "if blocks ~= tonumber(ARGV[4]) then",
        "if false then",
    ),
    (
        "second-snapshot-of-a-version",
        "of two snapshots of a version the first stays",
        "snapshot",
        "  if ref(entry) ~= writer then return refuse({'EXISTS'}) end\n",
        "  if ref(entry) ~= writer then entry = nil end\nend\nif entry then\n",
    ),
    (
        "snapshot-expires",
        "a snapshot that was entered loses its expiry",
        "snapshot",
        "redis.call('HSET', META, field, ARGV[5])\nkeep(KEYS[2], ARGV[6])",
        "redis.call('HSET', META, field, ARGV[5])",
    ),
    (
        "floor-from-the-newest-version",
        "retention counts from the opened version, not from the newest one present",
        "retain",
        "local floor = math.max(number('w'), opened - retained)",
        "local floor = math.max(number('w'), number('l') - retained)",
    ),
    (
        "base-above-the-floor",
        "retention keeps the snapshot that carries the floor",
        "retain",
        "  if bases[i] <= floor then base = bases[i] end",
        "  base = bases[i]",
    ),
    (
        "retention-of-unconfirmed-attempts",
        "retention leaves alone what is newer than the opened version",
        "retain",
        "local keep_it = lineage[all[i]] or version > opened",
        "local keep_it = lineage[all[i]]",
    ),
    (
        "dropped-segment-stays",
        "a segment that is taken out of the manifest expires",
        "lineage",
        "  redis.call('PEXPIRE', segment_key(field, entry), ttl_ms)\n",
        "",
    ),
    (
        "named-segment-swept",
        "the sweep leaves alone what the manifest names",
        "orphan",
        "if meta(ARGV[1]) then return {'NAMED'} end\n",
        "",
    ),
    (
        "sibling-replaced-in-format-2",
        "in format 2 attempts of a version stay side by side",
        "publish",
        "if ARGV[9] == '2' then",
        "if false then",
    ),
    (
        "uid-not-looked-at",
        "in format 2 the attempt that was asked for is opened",
        "open",
        "elseif wanted ~= '' then\n  uid = wanted\n",
        "",
    ),
    (
        "siblings-forgotten",
        "a run that no driver registered goes on from any attempt of the newest version",
        "acquire",
        "local siblings = ' ' .. (meta('b') or '') .. ' '",
        "local siblings = ''",
    ),
    (
        "unregistered-run-on-a-left-timeline",
        "a run that no driver registered goes on from the living timeline or not at all",
        "acquire",
        "if not living then return",
        "if false then return",
    ),
    (
        "format-1-after-format-2",
        "once a query has format 2, no unregistered run of format 1 acquires",
        "acquire",
        "if ARGV[3] ~= '1' and (ARGV[8] == '2' or meta('c') == '2') then",
        "if ARGV[3] ~= '1' and ARGV[8] == '2' then",
    ),
)

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
        lambda: mock.patch.object(partition_store, "uuid", _Uids),
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
                "  for _, i in ipairs(abandoned) do drop(all[i], all[i + 1], ARGV[7]) end",
                "",
            ),
            (
                "open",
                "  uid = walk(number('l'), meta('lu'), version)",
                "  for _, name in ipairs(redis.call('HKEYS', META)) do\n"
                "    local at, other = string.match(name, '^d:(%d+):(.+)$')\n"
                "    if at and tonumber(at) == version then uid = other break end\n"
                "  end",
            ),
        ),
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    *(Mutant(name, rule, _edit((file, old, new))) for name, rule, file, old, new in SCRIPT_MUTANTS),
    *COMBINED_MUTANTS,
    *CLIENT_MUTANTS,
)
"""Each breaks one rule; the oracle has to find every one of them."""
