"""Purges a checkpoint by expiry, and recalls it in time (docs/format.md, section 12).

One script changes a partition together with the segments that its manifest names, so that no reader
gets half of it. While a partition expires, every release refuses it with a named error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import time_ms
from redis_state.backend.script import script
from redis_state.errors import FormatError, FullError, NotFoundError
from redis_state.ids import NUMBER_MAX
from redis_state.maintain.pinned import forget_looks, pinned_error, refuse_if_pinned
from redis_state.maintain.purge import (
    PARTITIONS_AT_ONCE,
    Purged,
    check_gen,
    manifests_of,
    registered_partitions,
    scan_checkpoint,
)
from redis_state.maintain.purged_files import forget_files, note_files
from redis_state.progress import Progress, silent
from redis_state.protocol.registry import is_entry_of
from redis_state.protocol.runs import PURGED_FIELD

KEPT_MS = 24 * 3600 * 1000
"""Time for which a purged checkpoint can be recalled."""

RECALLED = "recalled"
"""Field of a query with the time of its last recall, which counts as use."""

_PURGING = "purging a checkpoint"
_RECALLING = "bringing a purged checkpoint back"
_NO_EXPIRY = -1
_ANY_BYTES = "utf-8", "surrogateescape"
"""Codec that preserves the listed bytes, whatever they are."""


@dataclass(slots=True)
class Recalled:
    """Counts of a recall.

    Attributes:
        segments: Number of deltas and snapshots that a manifest names.
        incomplete: Number of these segments that lack blocks.
    """

    partitions: int = 0
    segments: int = 0
    incomplete: int = 0


@dataclass(frozen=True, slots=True)
class _PurgeRecord:
    """Note of a purge in the query, for its recall.

    Attributes:
        left_ms: Expiry of the query before the purge; -1 without one.
        listed: Fields of the query in the list of checkpoints.
    """

    left_ms: int
    listed: Mapping[str, str]


def expire(
    client: Client,
    gen: str,
    *,
    tenant: str = "",
    kept_ms: int = KEPT_MS,
    force: bool = False,
    progress: Progress = silent,
) -> Purged:
    """Makes every key of a checkpoint expire, and stops serving and listing the checkpoint at once.

    Args:
        gen: The checkpoint id.
        tenant: See `StoreId`.
        kept_ms: Time for which the checkpoint can be recalled.
        force: Also purges what forks and kept versions need.

    Raises:
        ConfigError: `gen` is not a checkpoint id.
        ConflictError: A fork or a kept version needs the state.
        FullError: There is no memory for the note; nothing was changed.
        RedisStateError: Redis does not answer, or refuses a command.
    """
    check_gen(gen)
    found = Purged()
    query = keys.query(gen, tenant=tenant)
    ids = registered_partitions(client, gen, tenant)
    metas = [keys.meta(id_) for id_ in ids]
    if not force:
        pinned = metas or manifests_of(client, gen, tenant)
        refuse_if_pinned(client, gen, pinned, tenant=tenant, attempted=_PURGING)
    # The query comes first here, and last in a recall: while the query expires, so does the rest.
    try:
        found.files = note_files(client, gen, ids, tenant=tenant, kept_ms=kept_ms)
        _expire_query(client, gen, tenant, kept_ms, found)
    except FullError as error:
        raise FullError(
            error.attempted,
            found=error.found,
            advice=(
                "Nothing was purged: a purge that can be recalled writes a note, for which a full "
                f"server has no room. `redis-state purge --gen {gen} --now` writes none, and "
                "removes the checkpoint for good."
            ),
        ) from error
    done: set[str] = set()
    for chunk in _chunks(metas):
        _expire_partitions(client, gen, chunk, kept_ms, found, force=force)
        done.update(chunk)
        progress("partitions", len(done), len(metas))
    for names in scan_checkpoint(client, gen, tenant, progress):
        more = [name for name in names if name.endswith(":m") and name not in done]
        _expire_partitions(client, gen, more, kept_ms, found, force=force)
        done.update(more)
        # Totals expire by themselves.
        named = {query, keys.totals(gen, tenant=tenant)}
        others = [name for name in names if name not in done and name not in named]
        found.names.update(others)
        found.strays += _expire_strays(client, gen, tenant, others, kept_ms)
    return found


def recall(client: Client, gen: str, *, tenant: str = "", progress: Progress = silent) -> Recalled:
    """Restores a checkpoint that was purged by expiry.

    Raises:
        ConfigError: `gen` is not a checkpoint id.
        NotFoundError: Nothing of the checkpoint expires: it was not purged, or too long ago.
        RedisStateError: Redis does not answer, or refuses a command.
    """
    check_gen(gen)
    found = Recalled()
    record = _record(client, gen, tenant)
    metas = [keys.meta(id_) for id_ in registered_partitions(client, gen, tenant)]
    done: set[str] = set()
    for chunk in _chunks(metas):
        _recall_partitions(client, chunk, found)
        done.update(chunk)
        progress("partitions", len(done), len(metas))
    for names in scan_checkpoint(client, gen, tenant, progress):
        more = [name for name in names if name.endswith(":m") and name not in done]
        _recall_partitions(client, more, found)
        done.update(more)
    if record is None and not found.partitions:
        raise NotFoundError(
            _RECALLING,
            found=f"nothing of checkpoint {gen} is about to expire",
            advice=(
                "It was not purged, or was purged more than a day ago, or is in another server, "
                "database or key prefix."
            ),
        )
    if record is not None:
        _recall_query(client, gen, tenant, record)
    forget_files(client, gen, tenant=tenant)
    return found


def _expire_query(client: Client, gen: str, tenant: str, kept_ms: int, found: Purged) -> None:
    query, checkpoints = keys.query(gen, tenant=tenant), keys.checkpoints(tenant=tenant)
    there, left_ms = client.call(_PURGING, [("EXISTS", query), ("PTTL", query)])
    listed = _listed(client, gen, tenant)
    known = _record(client, gen, tenant) if there else None
    if known is None:
        known = _PurgeRecord(left_ms, {})
    if there:
        found.names.add(query)
        # The record of an earlier purge still counts: that purge may have been interrupted.
        _note(client, query, known, listed)
        expiry_ms = kept_ms if left_ms == _NO_EXPIRY else min(left_ms, kept_ms)
        # In separate calls: a full server refuses the note, but would carry out the rest.
        client.call(_PURGING, [("PEXPIRE", query, str(expiry_ms))])
    # A process that had not seen the note may have listed the query since the first read.
    late = dict(_listed(client, gen, tenant).items() - listed.items())
    listed |= late
    if there and late:
        _note(client, query, known, listed)
    found.listed = bool(listed)
    if listed:
        client.call(_PURGING, [("HDEL", checkpoints, *listed)])
    forget_looks(client, gen, tenant=tenant)
    client.call(_PURGING, [("HDEL", keys.sizes(tenant=tenant), gen)])


def _note(client: Client, query: str, known: _PurgeRecord, listed: Mapping[str, str]) -> None:
    """Writes into a query what `recall` needs."""
    record = {"left": known.left_ms, "listed": {**known.listed, **listed}}
    client.call(_PURGING, [("HSET", query, PURGED_FIELD, json.dumps(record))])


def _listed(client: Client, gen: str, tenant: str) -> dict[str, str]:
    (listing,) = client.call(_PURGING, [("HGETALL", keys.checkpoints(tenant=tenant))])
    return {
        name.decode(*_ANY_BYTES): value.decode(*_ANY_BYTES)
        for name, value in listing.items()
        if is_entry_of(name, gen)
    }


def _recall_query(client: Client, gen: str, tenant: str, record: _PurgeRecord) -> None:
    query, checkpoints = keys.query(gen, tenant=tenant), keys.checkpoints(tenant=tenant)
    time, *there = client.call(
        _RECALLING,
        [("TIME",), *(("HGET", checkpoints, name.encode(*_ANY_BYTES)) for name in record.listed)],
    )
    now_ms = time_ms(time)
    pairs = zip(record.listed.items(), there, strict=True)
    missing = [word.encode(*_ANY_BYTES) for pair, known in pairs if known is None for word in pair]
    if missing:
        client.call(_RECALLING, [("HSET", checkpoints, *missing)])
    stay: tuple[str, ...] = ("PERSIST", query)
    if record.left_ms != _NO_EXPIRY:
        stay = ("PEXPIRE", query, str(record.left_ms))
    client.call(_RECALLING, [("HSET", query, RECALLED, str(now_ms))])
    client.call(_RECALLING, [stay, ("HDEL", query, PURGED_FIELD)])


def _record(client: Client, gen: str, tenant: str) -> _PurgeRecord | None:
    (raw,) = client.call(_RECALLING, [("HGET", keys.query(gen, tenant=tenant), PURGED_FIELD)])
    if raw is None:
        return None
    try:
        found = json.loads(raw)
        left_ms, listed = found["left"], found["listed"]
        texts = all(isinstance(text, str) for pair in listed.items() for text in pair)
        if type(left_ms) is not int or not _NO_EXPIRY <= left_ms <= NUMBER_MAX or not texts:
            raise TypeError
        for text in (text for pair in listed.items() for text in pair):
            text.encode(*_ANY_BYTES)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            _RECALLING, found="the note of the purge in the query is damaged"
        ) from error
    return _PurgeRecord(left_ms, listed)


def _expire_partitions(
    client: Client,
    gen: str,
    metas: Sequence[str],
    kept_ms: int,
    found: Purged,
    *,
    force: bool,
) -> None:
    if not metas:
        return
    calls = [(meta, (str(kept_ms), gen, "1" if force else "")) for meta in metas]
    replies = client.call(_PURGING, script("purge").many(calls))
    for meta, reply in zip(metas, replies, strict=True):
        if reply[0] == b"PINNED":
            # Since the look at all partitions; purge and recall can both be done again.
            owners = [one.decode("ascii", "replace") for one in reply[1:]]
            raise pinned_error(_PURGING, owners, gen, begun=True)
        if reply[0] == b"OK":
            found.partitions += 1
            found.segments += int(reply[1])
            found.names.add(meta)


def _recall_partitions(client: Client, metas: Sequence[str], found: Recalled) -> None:
    if not metas:
        return
    calls: list[tuple[str, Sequence[str]]] = [(meta, ()) for meta in metas]
    for reply in client.call(_RECALLING, script("recall").many(calls)):
        if reply[0] == b"OK":
            found.partitions += 1
            found.segments += int(reply[1])
            found.incomplete += int(reply[2])


def _expire_strays(
    client: Client, gen: str, tenant: str, names: Sequence[str], kept_ms: int
) -> int:
    """Sets an expiry on keys without one that no manifest names; returns their number."""
    left = client.call(_PURGING, [("PTTL", name) for name in names])
    strays = 0
    for name, left_ms in zip(names, left, strict=True):
        if left_ms != _NO_EXPIRY:
            continue
        parts = keys.parse_partition_key(name, gen=gen, tenant=tenant)
        if parts is not None and parts.is_files:
            # The script of the partition treats both together; a recall may have come meanwhile.
            (has_manifest,) = client.call(_PURGING, [("EXISTS", f"{parts.prefix}:m")])
            if has_manifest:
                continue
        if parts is None or not parts.is_segment:
            client.call(_PURGING, [("PEXPIRE", name, str(kept_ms))])
            strays += 1
            continue
        both, args = [f"{parts.prefix}:m", name], [parts.rest, str(kept_ms)]
        # A manifest that was recalled in the meantime still names the segment, so the script
        # checks.
        strays += client.script(_PURGING, script("orphan"), both, args) == ["OK"]
    return strays


def _chunks(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), PARTITIONS_AT_ONCE):
        yield names[start : start + PARTITIONS_AT_ONCE]
