"""Rules of pins and forks (docs/format.md, section 14), and what a mutant does without each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis_state import keys
from redis_state.ids import PartitionId
from redis_state.protocol.pins import fork_partitions, unpin_all
from tests.faults.oracle.pin_steps import Fork, Naming, PinMaintenance
from tests.faults.oracle.pin_world import DAY_MS

Edit = tuple[str, str, str]
"""A script, a text of it, and the text in its place."""

_BLIND = "has_pins = false\n"
_DROPPED = "for _, i in ipairs(at) do drop(entries[i], entries[i + 1], ARGV[7]) end\n"
_REPLACED = "  for _, i in ipairs(at) do drop(fields[i], fields[i + 1], ARGV[8]) end\n"
_LATE = " or redis.call('HEXISTS', KEYS[1], aside) == 1 then"

PINNED_MUTANTS: tuple[tuple[str, str, tuple[Edit, ...]], ...] = (
    (
        "rewind-ignores-pins",
        "a rewind sets aside what is pinned",
        (("acquire", _DROPPED, _BLIND + _DROPPED),),
    ),
    (
        "retention-ignores-pins",
        "retention sets aside what is pinned",
        (("retain", "here(all, gone)\n", _BLIND + "here(all, gone)\n"),),
    ),
    (
        "replaced-attempt-ignores-pins",
        "an attempt that is replaced is set aside if it is pinned",
        (("publish", _REPLACED, _BLIND + _REPLACED),),
    ),
    (
        "plan-older-than-a-pin",
        "what was set aside goes only if nobody pins it at that moment",
        (("retain", "if entry and not (aside and is_pinned(aside)) then", "if entry then"),),
    ),
    (
        "pin-of-a-version",
        "a pin names segments, and is not satisfied by others of its version",
        (
            (
                "lineage",
                "if has_pins and is_pinned(ident) then",
                "if has_pins and is_pinned(ident) and not meta((string.gsub(field, '^d', 's'))) "
                "then",
            ),
        ),
    ),
    (
        "pin-of-half",
        "the owner is entered in all segments of the version",
        (
            (
                "pin",
                "  for _, ident in ipairs(idents) do\n    local owners",
                "  for _, ident in ipairs({idents[1]}) do\n    local owners",
            ),
        ),
    ),
    (
        "lasting-pin-gets-an-expiry",
        "a fork's pin for ever stays that, whatever arrives late",
        (("pin", "not lasts and ", ""),),
    ),
    (
        "renewed-pin-ended",
        "an expired pin is ended only if it was not renewed",
        (
            (
                "unpin",
                "if ARGV[2] ~= '' and tonumber(ARGV[2]) ~= expires then return {'RENEWED'} end\n",
                "",
            ),
        ),
    ),
    (
        "fork-keeps-older-segments",
        "an incomplete fork names the segments that are pinned now",
        (("fork", "if is_same or not is_unused", "if true or not is_unused"),),
    ),
    (
        "purge-ignores-pins",
        "what others pin is purged by force alone",
        (("purge", "if #pinned > 1 and ARGV[3] ~= '1' then return pinned end\n", ""),),
    ),
    (
        "recall-forgets-aside",
        "a recall brings back what was set aside, too",
        (("recall", "  if field and not meta(", "  if field == all[i] and not meta("),),
    ),
    (
        "base-lost-behind-the-plan",
        "retention drops nothing once the base of its plan is lost",
        (("retain", "if ARGV[7] ~= '' and not meta(ARGV[7]) then return {'STALE'} end\n", ""),),
    ),
    (
        "aside-key-without-expiry",
        "maintenance of an older release leaves alone what was set aside",
        (
            (
                "lineage",
                "redis.call('PEXPIRE', PREFIX .. ':' .. ident, ASIDE_MS)",
                "redis.call('PERSIST', PREFIX .. ':' .. ident)",
            ),
        ),
    ),
    (
        "late-stage",
        "a late chunk leaves alone what was set aside",
        (("stage", " or redis.call('HEXISTS', KEYS[1], 'z:' .. ident) == 1 then", " then"),),
    ),
    ("late-abort", "a late abort leaves alone what was set aside", (("abort", _LATE, " then"),)),
    (
        "late-publish",
        "a commit that is sent again leaves alone what was set aside",
        (("publish", "if redis.call('HEXISTS', META, 'z:' .. field) == 0 then", "if true then"),),
    ),
    (
        "late-snapshot",
        "a snapshot that is sent again leaves alone what was set aside",
        (
            (
                "snapshot",
                "redis.call('UNLINK', KEYS[3])",
                "redis.call('UNLINK', KEYS[2])",
            ),
        ),
    ),
    (
        "published-again-and-aside",
        "a delta that is published again is not set aside any more",
        (("publish", "'z:' .. field, 'h:' .. field)", "'h:' .. field)"),),
    ),
    (
        "settle-format-too-early",
        "the format number is 2 while something is set aside",
        (("lineage", "'^[axyz]:'", "'^[axy]:'"),),
    ),
    (
        "place-of-a-dropped-segment",
        "with a foreign segment its place leaves the manifest",
        (("lineage", "  redis.call('HDEL', META, 'a:' .. ident)\n", ""),),
    ),
)
"""Texts of scripts: name, rule, edits."""


def secure_nothing(_self: Fork) -> None:
    """The pin keeps its expiry."""


def secure_without_replicas(self: Fork) -> None:
    """Pins for ever on one node."""
    fork_partitions(self.client, self.gen, self.pin(0), ttl_ms=DAY_MS)


_detach = PinMaintenance._detach
_is_gone = PinMaintenance.is_gone
_is_unnamed = PinMaintenance.is_unnamed


def detach_at_once(self: PinMaintenance, is_unpinned: str) -> list[str]:
    """Unpins at the parent with the last foreign segment."""
    return _detach(PinMaintenance(self.client, self.id, self.notes, grace_ms=0), is_unpinned)


def unpin_with_a_snapshot(self: PinMaintenance, fields: Mapping[bytes, bytes]) -> None:
    """Unpins at the parent as soon as the fork has a snapshot of its own."""
    parent = fields.get(b"g", b"").decode().partition(" ")[0]
    entries = {name: value.split(b" ")[0] for name, value in fields.items() if name[:2] == b"s:"}
    own = [
        name
        for name, writer in entries.items()
        if b"a:" + b":".join([*name.split(b":")[:2], writer]) not in fields
    ]
    if parent and own:
        unpin_all(self.client, [self.id.of_gen(parent)], self.id.store.gen)


def gone_when_purged(self: PinMaintenance, owner: str, now_ms: int) -> bool:
    """Returns true for a fork that was purged, too."""
    found = self.client.call("looking", [("HGET", keys.meta(self.id.of_gen(owner)), "f")])[0]
    return (found or b"").startswith(b"purged") or _is_gone(self, owner, now_ms)


def keep_gone_at_once(self: PinMaintenance, owner: str, now_ms: int) -> bool:
    """Ends the pin of a call that has not entered its name yet."""
    _is_unnamed(self, owner, now_ms)
    return (self.id.store.gen, owner) in self.notes


class OwnKeys:
    """Names of keys as if no segment were foreign."""

    @staticmethod
    def segment(id_: PartitionId, ident: str, _gen: str = "") -> str:
        """Key of a segment in the partition that names it."""
        return keys.segment(id_, ident)


PATCHED_MUTANTS: tuple[tuple[str, str, Any, str, Any], ...] = (
    (
        "fork-usable-before-its-pin-lasts",
        "a fork can be used once its pin has no expiry",
        Fork,
        "secure",
        secure_nothing,
    ),
    (
        "fork-usable-before-its-pin-is-safe",
        "a fork can be used once a replica has its pin",
        Fork,
        "secure",
        secure_without_replicas,
    ),
    (
        "unpinned-without-grace",
        "the parent's pin for a fork ends a day after the last foreign segment",
        PinMaintenance,
        "_detach",
        detach_at_once,
    ),
    (
        "unpinned-before-retention",
        "a fork needs its parent while its manifest names a foreign segment",
        PinMaintenance,
        "unpin_parent",
        unpin_with_a_snapshot,
    ),
    (
        "unpinned-at-purge",
        "a purged fork keeps its pins",
        PinMaintenance,
        "is_gone",
        gone_when_purged,
    ),
    (
        "calls-share-a-pin",
        "two calls with one name have a pin each",
        Naming,
        "owner",
        property(lambda self: f"keep.{self.name}.shared"),
    ),
    (
        "unnamed-pin-ended-at-once",
        "the pin of a call ends a day after it was found without a name",
        PinMaintenance,
        "is_unnamed",
        keep_gone_at_once,
    ),
)
"""Steps in Python: name, rule, owner of the method, its name, what replaces it."""
