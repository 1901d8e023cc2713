"""Pins in purges and in maintenance (docs/format.md, section 14).

A purge rejects a checkpoint that others pin. Maintenance ends expired pins, pins of lost forks and
of interrupted calls, and the pins of a parent once its fork has all segments itself.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import OTHER_TYPE, time_ms
from redis_state.backend.script import Command, script
from redis_state.errors import ConflictError, FormatError, Kind, RedisStateError
from redis_state.format.place import foreign_segments
from redis_state.ids import PartitionId, is_gen
from redis_state.protocol.foreign import parent_problem
from redis_state.protocol.kept import KEEP_FIELD, parse_kept
from redis_state.protocol.pins import (
    FORK,
    FORKS,
    KEEP,
    KEEP_OWNER,
    PinOwner,
    kept_name,
    owners_in,
    pin_again,
    unpin_all,
)
from redis_state.protocol.refusal import refusal
from redis_state.protocol.runs import PURGED_FIELD

GRACE_MS = 24 * 3_600_000
"""Time between the last foreign segment of a fork and the end of its parent's pins."""

GONE_MS = 25 * 3_600_000
"""Time between two observations that the owner of a pin is gone."""

_FORKS = FORKS.encode()
_PARTITIONS_AT_ONCE = 64
_WHAT = "looking for pins"
_LOG = logging.getLogger("redis_state.maintain")


def refuse_if_pinned(
    client: Client, gen: str, metas: Sequence[str], *, tenant: str, attempted: str
) -> None:
    """Raises if a fork or a kept version needs the state of a checkpoint.

    Args:
        metas: Keys of the manifests of all partitions.

    Raises:
        ConflictError: The error names each fork and each kept version.
    """
    owners = described_owners(client, metas, tenant=tenant)
    if owners:
        raise pinned_error(attempted, owners, gen)


def described_owners(client: Client, metas: Sequence[str], *, tenant: str) -> list[str]:
    """Describes each fork and each kept version that pins some partitions."""
    owners: dict[str, PinOwner] = {}
    for start in range(0, len(metas), _PARTITIONS_AT_ONCE):
        chunk = metas[start : start + _PARTITIONS_AT_ONCE]
        time, *manifests = client.call(
            _WHAT,
            [("TIME",), *(("HGETALL", meta) for meta in chunk)],
            of_other_type=OTHER_TYPE,
        )
        now_ms = time_ms(time)
        for manifest in manifests:
            if manifest is OTHER_TYPE:
                continue  # A key of another type pins nothing.
            there = (one for one in owners_in(manifest) if not one.is_expired(now_ms))
            owners.update((one.owner, one) for one in there)
    return [_described(client, one, tenant) for _, one in sorted(owners.items())]


def pinned_error(
    attempted: str, owners: Sequence[str], gen: str, *, begun: bool = False
) -> ConflictError:
    """Returns the error for a checkpoint that others need.

    Args:
        owners: Descriptions of the owners of its pins.
        begun: The pins came during the purge, so a part of the checkpoint expires already.
    """
    state = "The purge had already begun; a recall reverts it."
    return ConflictError(
        attempted,
        found=f"others read its state: {'; '.join(owners)}",
        advice=(
            f"{state if begun else 'Nothing was changed.'} "
            "Drop a kept version with `redis-state keep QUERY --drop NAME`; "
            "purge a fork first, or run the command that made it again with --detach, "
            "and wait a day. "
            "To remove the state all the same, so that its forks lose it: `redis-state purge "
            f"--gen {gen} --force`."
        ),
        kind=Kind.PINNED,
    )


def _described(client: Client, one: PinOwner, tenant: str) -> str:
    if one.owner.startswith(KEEP_OWNER):
        return f"kept version {kept_name(one.owner)!r}"
    fields = ("name", "id", PURGED_FIELD)
    (reply,) = client.call(_WHAT, [("HMGET", keys.query(one.owner, tenant=tenant), *fields)])
    name, id_, purged = reply
    title = (name or id_ or b"").decode("utf-8", "replace")
    shown = f" {title!r}" if title and title != one.owner else ""
    return f"fork{shown} (gen {one.owner}{', purged and still to be recalled' if purged else ''})"


def unpin_parents(client: Client, ids: Sequence[PartitionId], manifests: Sequence[object]) -> None:
    """Ends the pins that parents hold for partitions of a fork that are removed for good.

    Args:
        ids: Partitions of one checkpoint.
        manifests: All fields of `P:m` of each partition.
    """
    parents: dict[str, list[PartitionId]] = {}
    for id_, manifest in zip(ids, manifests, strict=True):
        raw = manifest.get(b"g") if isinstance(manifest, Mapping) else None
        if raw is not None:
            parent = raw.decode("ascii", "replace").split(" ")[0]
            parents.setdefault(parent, []).append(id_)
    for parent, partitions in parents.items():
        of = partitions[0].store
        try:
            unpin_all(client, [id_.of_gen(parent) for id_ in partitions], of.gen)
            query = keys.query(parent, tenant=of.tenant)
            client.call(_WHAT, [("HDEL", query, f"{FORKS}{of.gen}")])
        except RedisStateError as error:
            # The maintenance of the parent ends these pins later.
            _LOG.warning("%s: its pins for %s are still there: %s", parent, of.gen, error)


def maintain_pins(client: Client, id_: PartitionId, manifest: Mapping[bytes, bytes]) -> int:
    """Ends expired pins, those whose owner is gone, and the parent's pins for a detached fork.

    Args:
        manifest: All fields of `P:m`.

    Returns:
        Number of pins that were ended.
    """
    owners = owners_in(manifest)
    if not owners and b"g" not in manifest:
        return 0
    (time,) = client.call(_WHAT, [("TIME",)])
    now_ms = time_ms(time)
    ended = 0
    unnamed = _unnamed(client, id_, [one for one in owners if one.kind == KEEP], now_ms)
    for one in owners:
        why = ""
        if one.is_expired(now_ms):
            why = "it has expired"
        elif one.owner in unnamed:
            why = "no name has it"
        elif one.kind == FORK and _is_gone(client, id_, one, now_ms):
            why = "the fork is gone"
        if why:
            # While the pin is there, the next pass finds an unfinished fork again.
            if one.kind == FORK and not one.is_expired(now_ms):
                _expire_unfinished(client, id_.of_gen(one.owner))
            ended += unpin_all(client, [id_], one.owner, expires=str(one.expires_ms))
            _LOG.info("%s: the pin of %s was ended: %s", id_, one.owner, why)
    if b"g" in manifest:
        if pin_again(client, id_, manifest):
            _LOG.info("%s: its parent, which was restored, pins its segments again", id_)
        ended += _detach(client, id_)
    return ended


def _unnamed(client: Client, id_: PartitionId, owners: Sequence[PinOwner], now_ms: int) -> set[str]:
    """Returns the owners that no name had at two observations, a day apart."""
    if not owners:
        return set()
    gen, tenant = id_.store.gen, id_.store.tenant
    fields = [KEEP_FIELD + kept_name(one.owner) for one in owners]
    notes = [f"{gen}:{one.owner}" for one in owners]
    looks = keys.looks(tenant=tenant)
    read: list[Command] = [("HMGET", keys.query(gen, tenant=tenant), *fields)]
    entries, noted = client.call(_WHAT, [*read, ("HMGET", looks, *notes)])
    found = set()
    for one, field, entry, note, raw in zip(owners, fields, entries, notes, noted, strict=True):
        try:
            there = parse_kept({field.encode(): entry}) if entry is not None else []
        except FormatError:
            continue
        named = [kept for kept in there if kept.owner == one.owner]
        if named:
            _forget_note(client, looks, note, raw)
        elif _is_second_look(client, looks, note, raw, now_ms):
            found.add(one.owner)
    return found


def _forget_note(client: Client, looks: str, note: str, raw: bytes | None) -> None:
    if raw is not None:
        client.call(_WHAT, [("HDEL", looks, note)])


def _is_second_look(client: Client, looks: str, note: str, raw: bytes | None, now_ms: int) -> bool:
    """Returns whether the owner of a pin was gone long ago, too; notes the first observation."""
    try:
        since_ms = int(json.loads(raw)["at"]) if raw is not None else None
    except (ValueError, KeyError, TypeError):
        since_ms = None
    if since_ms is None:
        client.call(_WHAT, [("HSET", looks, note, json.dumps({"at": now_ms}))])
        return False
    return now_ms - since_ms >= GONE_MS


def purged_parents(client: Client, id_: PartitionId, manifest: Mapping[bytes, bytes]) -> list[str]:
    """Returns a message for each purged checkpoint that has segments of a fork."""
    gens = set(foreign_segments(manifest).values())
    found = (parent_problem(client, id_, gen) for gen in sorted(gens) if is_gen(gen))
    return [f"{told}: {advice}" for told, advice in filter(None, found)]


def forget_looks(client: Client, gen: str, *, tenant: str) -> None:
    """Removes what maintenance noted about a checkpoint and about the owners of pins on it."""
    looks, prefix = keys.looks(tenant=tenant), f"{gen}:".encode()
    (names,) = client.call(_WHAT, [("HKEYS", looks)])
    noted = [name for name in names if name.startswith(prefix)]
    client.call(_WHAT, [("HDEL", looks, gen, *noted)])


def forget_unpinned_forks(
    client: Client,
    gen: str,
    ids: Sequence[PartitionId],
    raw: Mapping[bytes, bytes],
    looked: Sequence[bytes],
    *,
    tenant: str,
) -> None:
    """Removes registry entries of forks for which no partition of the parent is pinned.

    Args:
        ids: All partitions of the parent.
        raw: All registry fields of the parent.
        looked: Names of all looks of maintenance, from before it.
    """
    looks, prefix = keys.looks(tenant=tenant), f"{gen}:".encode()
    listed = {name[len(_FORKS) :] for name in raw if name.startswith(_FORKS)}
    noted = {name[len(prefix) :] for name in looked if name.startswith(prefix)}
    for owner in sorted(listed | noted):
        wanted = [("HEXISTS", keys.meta(id_), b"x:" + owner.split(b":")[0]) for id_ in ids]
        if not any(client.call(_WHAT, wanted) if wanted else ()):
            if owner in listed:
                query = keys.query(gen, tenant=tenant)
                client.call(_WHAT, [("HDEL", query, _FORKS + owner)])
            if owner in noted:
                client.call(_WHAT, [("HDEL", looks, prefix + owner)])


def _is_gone(client: Client, id_: PartitionId, one: PinOwner, now_ms: int) -> bool:
    """Returns whether the fork's query was gone at two observations, a day apart."""
    store, tenant = id_.store, id_.store.tenant
    of_query = f"{store.gen}:{one.owner}"
    of_partition = f"{of_query}:{store.operator}:{id_.partition}:{store.store}"
    looks = keys.looks(tenant=tenant)
    of_fork = keys.meta(id_.of_gen(one.owner))
    there, (raw, raw_of_partition), (format_, began) = client.call(
        _WHAT,
        [
            ("EXISTS", keys.query(one.owner, tenant=tenant)),
            ("HMGET", looks, of_query, of_partition),
            ("HMGET", of_fork, "f", "g"),
        ],
    )
    if not there:
        return _is_second_look(client, looks, of_query, raw, now_ms)
    _forget_note(client, looks, of_query, raw)
    # A detached partition has no `g`: a fail-over has brought its pin back.
    if format_ is not None and began is None:
        return _is_second_look(client, looks, of_partition, raw_of_partition, now_ms)
    _forget_note(client, looks, of_partition, raw_of_partition)
    return False


def _expire_unfinished(client: Client, id_: PartitionId) -> None:
    """Purges a partition of a fork that is gone, if a run has never acquired the partition.

    The command that made it was killed between its last two steps, so only its query expired.
    """
    meta, query = keys.meta(id_), keys.query(id_.store.gen, tenant=id_.store.tenant)
    there, (epoch, began) = client.call(_WHAT, [("EXISTS", query), ("HMGET", meta, "e", "g")])
    if not there and epoch == b"0" and began is not None:
        client.script(_WHAT, script("purge"), [meta], [str(GRACE_MS), id_.store.gen, ""])


def _detach(client: Client, id_: PartitionId) -> int:
    """Ends the parent's pins for a fork without foreign segments; returns 1 when they ended."""
    what = "detaching a fork from its parent"
    meta, grace = keys.meta(id_), str(GRACE_MS)
    match client.script(what, script("detach"), [meta], [grace, ""]):
        case ["DUE", parent]:
            unpin_all(client, [id_.of_gen(parent)], id_.store.gen)
            answer = client.script(what, script("detach"), [meta], [grace, "1"])
            return int(answer == ["OK"])
        case ["NONE"] | ["FOREIGN", _] | ["WAITS", _]:
            return 0
        case other:
            raise refusal(what, other, where=str(id_), version=None)
