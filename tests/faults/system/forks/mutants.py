"""Rules of forks, kept versions and detached forks, and stand-ins for the code without each.

Each is a name, a rule, texts to replace, and functions with their stand-ins, as in `Mutant`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from redis_state.backend.client import Client
from redis_state.files import Folder
from redis_state.forks import logs
from redis_state.forks.keep import _Keeping
from redis_state.forks.logs import BatchLogs
from redis_state.forks.state import StateFork
from redis_state.ids import PartitionId
from redis_state.maintain import compaction, pinned
from redis_state.protocol.opening import Opened
from redis_state.protocol.partition import PartitionClient
from redis_state.protocol.pins import PinnedVersion, PinOwner, unpin_all
from redis_state.reader.versions import open_latest

_LUA = "redis_state/backend/scripts"
_CORE = "jvm-adapter/core/src/main/scala/org/redisstate/core"

Edits = tuple[tuple[str, str, str], ...]
Patches = tuple[tuple[str, Any], ...]

_is_gone = pinned._is_gone


def pin_late(self: StateFork) -> None:
    """Reads the versions, and pins nothing yet."""
    opened = self.versions.opened
    self._pinned = [PinnedVersion(one.id, one.pin, "4", "1", one.segments) for one in opened]


def secure_without_a_look(self: StateFork) -> None:
    """Pins for ever, and leaves the partitions as they were made."""
    self._pin(0, lasting=True)


def secure_nothing(_self: StateFork) -> None:
    """The pins keep their expiry."""


def unpin_by_owner(client: Client, ids: Sequence[PartitionId], owner: str, **_: object) -> int:
    """Ends a pin whatever its expiry is."""
    return unpin_all(client, ids, owner)


def gone_at_once(client: Client, id_: PartitionId, one: PinOwner, now_ms: int) -> bool:
    """One look is enough."""
    there = client.call("looking", [("EXISTS", f"{{rs:{one.owner}}}:q")])[0]
    return not there or _is_gone(client, id_, one, now_ms)


def gone_when_purged(client: Client, id_: PartitionId, one: PinOwner, now_ms: int) -> bool:
    """A fork that was purged is gone."""
    query = f"{{rs:{one.owner}}}:q"
    (purged,) = client.call("looking", [("HEXISTS", query, "purged")])
    return bool(purged) or _is_gone(client, id_, one, now_ms)


def snapshot_of_an_older_version(partition: PartitionClient, opened: Opened) -> object:
    """Writes a snapshot without the newest changes."""
    if len(opened.segments) > 1:
        opened = replace(opened, segments=opened.segments[1:])
    return compaction.add_snapshot(partition, opened)


def newest_published(self: _Keeping) -> dict[tuple[int, str], list[Opened]]:
    """Opens what each partition has published last."""
    return {
        (one.operator, one.store): open_latest(
            self._client, self._query.ids(one, range(one.partitions)), alone=one.alone
        )
        for one in self._query.operators()
    }


def content_of_any_plan(self: BatchLogs, name: str, _target: Folder) -> bytes:
    """Copies an entry of Spark's logs as it is by now."""
    return logs._needed(self.checkpoint, name)


FORK_MUTANTS: tuple[tuple[str, str, Edits, Patches], ...] = (
    (
        "fork-pins-after-it-has-read",
        "a fork pins before it makes its partitions, and makes them anew from what was pinned last",
        (),
        (
            ("redis_state.forks.state.StateFork.pin", pin_late),
            ("redis_state.forks.state.StateFork.secure", secure_without_a_look),
        ),
    ),
    (
        "fork-of-two-timelines",
        "a fork has the state of the plan that Spark's logs have when it is complete",
        (),
        (
            ("redis_state.forks.logs.BatchLogs.digest", property(lambda _: "")),
            ("redis_state.forks.logs.BatchLogs._content", content_of_any_plan),
        ),
    ),
    (
        "fork-usable-before-its-pins-last",
        "a fork can be used once its pins have no expiry",
        (),
        (("redis_state.forks.state.StateFork.secure", secure_nothing),),
    ),
    (
        "unpinned-by-owner",
        "a pin that was read is ended only if it was not renewed",
        (),
        (("redis_state.maintain.pinned.unpin_all", unpin_by_owner),),
    ),
    (
        "name-removed-whatever-owner-has-it",
        "a name that was read is removed only if no other call was given it",
        (
            (
                f"{_LUA}/forget.lua",
                "if not string.find(found, '\"' .. ARGV[2] .. '\"', 1, true) then "
                "return {'NONE'} end\n",
                "",
            ),
        ),
        (),
    ),
    (
        "unpinned-at-the-first-look",
        "the pins of a fork that is gone end at the second look, a day later",
        (),
        (("redis_state.maintain.pinned._is_gone", gone_at_once),),
    ),
    (
        "unpinned-when-purged",
        "a fork that was purged keeps its pins",
        (),
        (("redis_state.maintain.pinned._is_gone", gone_when_purged),),
    ),
    (
        "unpinned-without-a-day",
        "the parent's pins for a fork end a day after its last foreign segment",
        (),
        (("redis_state.maintain.pinned.GRACE_MS", 0),),
    ),
    (
        "purge-ignores-pins",
        "what others pin is purged by force alone",
        (
            (
                f"{_LUA}/purge.lua",
                "if #pinned > 1 and ARGV[3] ~= '1' then return pinned end",
                "",
            ),
        ),
        (
            ("redis_state.maintain.recall.refuse_if_pinned", lambda *_, **__: None),
            ("redis_state.maintain.purge.refuse_if_pinned", lambda *_, **__: None),
        ),
    ),
    (
        "retention-ignores-pins",
        "retention sets aside what is pinned",
        ((f"{_LUA}/retain.lua", "here(all, gone)\n", "has_pins = false\nhere(all, gone)\n"),),
        (),
    ),
    (
        "rewind-ignores-pins",
        "a rewind sets aside what is pinned",
        (
            (
                f"{_LUA}/acquire.lua",
                "for _, i in ipairs(at) do drop(entries[i], entries[i + 1], ARGV[7]) end\n",
                "has_pins = false\n"
                "for _, i in ipairs(at) do drop(entries[i], entries[i + 1], ARGV[7]) end\n",
            ),
        ),
        (),
    ),
    (
        "pin-of-half",
        "the owner is entered in all segments of the version",
        (
            (
                f"{_LUA}/pin.lua",
                "  for _, ident in ipairs(idents) do\n    local owners",
                "  for _, ident in ipairs({idents[1]}) do\n    local owners",
            ),
        ),
        (),
    ),
    (
        "recall-forgets-aside",
        "a recall brings back what was set aside, too",
        (
            (
                f"{_LUA}/recall.lua",
                "  if field and not meta(",
                "  if field == all[i] and not meta(",
            ),
        ),
        (),
    ),
    (
        "keep-of-the-version-before",
        "a driver keeps the version that the batch has made",
        (
            (
                f"{_CORE}/protocol/names/VersionNames.scala",
                "try pinAll(what, owner, batch + 1, stores, forMs + LongerMs)",
                "try pinAll(what, owner, math.max(1, batch), stores, forMs + LongerMs)",
            ),
        ),
        (),
    ),
    (
        "keep-of-what-is-not-confirmed",
        "a name holds what the query has confirmed, the same version in all partitions",
        (),
        (("redis_state.forks.keep._Keeping._newest", newest_published),),
    ),
    (
        "detach-of-another-version",
        "the snapshot of a detached fork has all rows of its version",
        (),
        (("redis_state.forks.detach.add_snapshot", snapshot_of_an_older_version),),
    ),
)
"""Name, rule, edits, patches."""
