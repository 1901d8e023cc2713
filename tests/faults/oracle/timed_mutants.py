"""Rules of docs/format.md, section 15, switched off one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from redis_state.format.visible import unexpired
from redis_state.maintain import compaction
from redis_state.protocol import version_rows
from redis_state.store import delta, partition_state
from redis_state.store.delta import Delta
from redis_state.store.local import version as local_version
from redis_state.store.local.timed import TimedVersion
from redis_state.store.local.version import Layer, LocalVersion
from redis_state.store.write_set import WriteSet

TIMED_SCRIPTS: tuple[tuple[str, str, str, str, str], ...] = (
    (
        "run-again-at-a-new-time",
        "a batch that is run again has the time of its first attempt",
        "open",
        "reply[9] = time_above(version, uid) or server_s()",
        "reply[9] = server_s()",
    ),
    (
        "time-lost-by-acquire",
        "the time of an attempt outlives the acquire that drops the attempt",
        "acquire",
        "if time then redis.call('HSET', META, 'tv',",
        "if false then redis.call('HSET', META, 'tv',",
    ),
)


def _first(first: int, _second: int) -> int:
    return first


def _too_many(stored: Mapping[bytes, bytes], time_s: int, **more: Any) -> dict[bytes, bytes]:
    return unexpired(stored, time_s + 2, **more)


_entry = compaction._VersionBlocks.entry


def _one_less(rows: Any) -> Any:
    entry = _entry(rows)
    return replace(entry, live=max(0, entry.live - 1))


def _one_more(rows: Any) -> Any:
    entry = _entry(rows)
    return replace(entry, live=entry.live + 1)


def _raw(self: TimedVersion, key: bytes) -> bytes | None:
    stored = LocalVersion.get(self, key)
    return stored[:-4] if stored and self.hides else stored


def _only_changes(_local: LocalVersion, changes: WriteSet) -> Delta:
    keys = changes.in_order()
    values = [changes.rows[key] for key in keys]
    put = len(values) - values.count(None)
    return Delta(dict(changes.rows), keys, values, put, len(keys) - put, put, 0, complete=False)


def _merge_anywhere(upper: Layer, lower: Layer, *, bottom: bool, time_s: int) -> Layer:
    return _merge(upper, lower, bottom=bottom or bool(time_s), time_s=time_s)


_merge = local_version._merge

TIMED_METHODS: tuple[tuple[str, str, Any, str, Callable[..., Any]], ...] = (
    (
        "time-goes-back",
        "the time of a version is at least that of the version below",
        partition_state,
        "max",
        _first,
    ),
    (
        "snapshot-without-living-rows",
        "a snapshot leaves out only what is expired in its version",
        version_rows,
        "unexpired",
        _too_many,
    ),
    (
        "expired-row-found-by-get",
        "look-ups hide what scans hide",
        TimedVersion,
        "get",
        _raw,
    ),
    (
        "turned-on-without-the-rows-below",
        "the version in which a family gets a time to live is a complete delta",
        delta,
        "_all_rows",
        _only_changes,
    ),
    (
        "fewer-live-than-rows",
        "the number of live keys is never below that of the rows",
        compaction._VersionBlocks,
        "entry",
        _one_less,
    ),
    (
        "snapshot-counts-too-many",
        "the number of live keys of a snapshot is exact",
        compaction._VersionBlocks,
        "entry",
        _one_more,
    ),
    (
        "expired-row-forgotten-over-an-older-one",
        "an expired row stays where an older one of its key lies below",
        local_version,
        "_merge",
        _merge_anywhere,
    ),
)
