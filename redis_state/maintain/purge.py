"""Immediate removal of all keys of a checkpoint, and of no others; `recall` has the reversible way.

The registry and the manifests name almost all keys. The rest was staged by a lost attempt, or left
when a manifest was destroyed. One pass of `SCAN` finds these keys, the only scan of redis-state.
Manifests are removed after the keys that they name, and the query's hash last: so an interrupted
purge is finished by another one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.scan import scan
from redis_state.errors import ConfigError, FormatError, FullError
from redis_state.format.entry import segments_in
from redis_state.ids import PartitionId, is_gen
from redis_state.maintain.pinned import forget_looks, refuse_if_pinned, unpin_parents
from redis_state.maintain.purged_files import PurgedFiles, files_before, write_note
from redis_state.progress import Progress, silent
from redis_state.protocol.registry import counted_partitions, is_entry_of, parse_operators

PARTITIONS_AT_ONCE = 64
_KEYS_AT_ONCE = 256
_WHAT = "purging a checkpoint"
_LOG = logging.getLogger("redis_state.maintain")


@dataclass(slots=True)
class Purged:
    """Keys that a purge found, and removed unless it only counted.

    Attributes:
        segments: Number of deltas and snapshots that a manifest names.
        strays: Number of keys that nothing names.
        listed: True if the checkpoint was in the list of checkpoints.
        files: Files of the checkpoint, which stay; ``None`` without any.
    """

    partitions: int = 0
    segments: int = 0
    strays: int = 0
    listed: bool = False
    files: PurgedFiles | None = None
    names: set[str] = field(default_factory=set, repr=False)

    @property
    def keys(self) -> int:
        """Returns the number of keys of the checkpoint."""
        return len(self.names)


def purge(
    client: Client,
    gen: str,
    *,
    tenant: str = "",
    dry_run: bool = False,
    force: bool = False,
    progress: Progress = silent,
) -> Purged:
    """Removes every key of a checkpoint, and the pins of its parent if it is a fork.

    Args:
        gen: The checkpoint id.
        tenant: See `StoreId`.
        dry_run: Only counts.
        force: Also removes what forks and kept versions need.

    Raises:
        ConfigError: `gen` is not a checkpoint id.
        ConflictError: A fork or a kept version needs the state.
        RedisStateError: Redis does not answer, or refuses a command.
    """
    check_gen(gen)
    found = Purged()
    partitions = registered_partitions(client, gen, tenant)
    if not (dry_run or force):
        metas = manifests_of(client, gen, tenant)
        refuse_if_pinned(client, gen, metas, tenant=tenant, attempted=_WHAT)
    found.files = files_before(client, gen, partitions, tenant=tenant, kept_ms=0)
    if not dry_run:
        is_noted = _is_noted(client, found.files, tenant)
        _forget_name(client, gen, tenant)
    for start in range(0, len(partitions), PARTITIONS_AT_ONCE):
        chunk = partitions[start : start + PARTITIONS_AT_ONCE]
        _purge_partitions(client, chunk, found, dry_run=dry_run)
        progress("partitions", min(start + PARTITIONS_AT_ONCE, len(partitions)), len(partitions))
    named = {keys.query(gen, tenant=tenant), keys.totals(gen, tenant=tenant)}
    for batch in scan_checkpoint(client, gen, tenant, progress):
        strays = [key for key in batch if key not in found.names and key not in named]
        found.strays += len(strays)
        found.names.update(strays)
        if not dry_run:
            _unlink(client, strays)
    _purge_registry(client, gen, tenant, found, dry_run=dry_run)
    if not dry_run and not is_noted and not _is_noted(client, found.files, tenant):
        _LOG.warning("%s: the server has no room for a note of its files, %s", gen, found.files)
    return found


def _is_noted(client: Client, files: PurgedFiles | None, tenant: str) -> bool:
    """Notes the files of a checkpoint; a full server has room only once keys were removed."""
    try:
        if files is not None:
            write_note(client, files, tenant=tenant)
    except FullError:
        return False
    return True


def check_gen(gen: str, *, attempted: str = _WHAT) -> None:
    """Checks that a text is a checkpoint id.

    Raises:
        ConfigError: The text is not a checkpoint id.
    """
    if not is_gen(gen):
        raise ConfigError(
            attempted,
            found="the id is not 32 lower-case hexadecimal digits",
            advice="Give the id that `redis-state queries` prints as 'gen'.",
        )


def _forget_name(client: Client, gen: str, tenant: str) -> None:
    """Removes the name first: a Python store of this name then begins a new checkpoint.

    The name is found by the checkpoint id alone, since a checkpoint without a batch is not listed,
    and its query does not name it.
    """
    names = keys.names(tenant=tenant)
    (known,) = client.call(_WHAT, [("HGETALL", names)])
    own = [field_ for field_, found in known.items() if found == gen.encode()]
    if own:
        client.call(_WHAT, [("HDEL", names, *own)])


def registered_partitions(client: Client, gen: str, tenant: str) -> list[PartitionId]:
    """Returns the partitions that the query counts; empty if the query is damaged.

    The scan finds all other partitions.
    """
    (reply,) = client.call(_WHAT, [("HGETALL", keys.query(gen, tenant=tenant))])
    try:
        operators = parse_operators(reply)
    except FormatError:
        return []
    return counted_partitions(client, gen, operators.values(), tenant=tenant)


def manifests_of(client: Client, gen: str, tenant: str) -> list[str]:
    """Returns the keys of all manifests; a scan finds them if the query does not count them."""
    known = [keys.meta(id_) for id_ in registered_partitions(client, gen, tenant)]
    if known:
        return known
    found = scan_checkpoint(client, gen, tenant, silent)
    return [name for names in found for name in names if name.endswith(":m")]


def _purge_partitions(
    client: Client, ids: Sequence[PartitionId], found: Purged, *, dry_run: bool
) -> None:
    commands: list[tuple[str | bytes, ...]] = []
    for id_ in ids:
        commands += [("HGETALL", keys.meta(id_)), ("EXISTS", keys.instance(id_))]
    replies = client.call(_WHAT, commands)
    if not dry_run:
        unpin_parents(client, ids, replies[::2])
    for id_, meta, live in zip(ids, replies[::2], replies[1::2], strict=True):
        # The scan finds the segments of unreadable entries.
        named = (one.ident for one in segments_in(meta) if one.entry.blocks and not one.gen)
        segments = [keys.segment(id_, ident) for ident in named]
        if meta:
            found.partitions += 1
            found.names.add(keys.meta(id_))
        if live:
            found.names.add(keys.instance(id_))
        found.segments += len(segments)
        found.names.update(segments)
        if not dry_run:
            _unlink(client, [*segments, keys.files(id_), keys.meta(id_), keys.instance(id_)])


def scan_checkpoint(
    client: Client, gen: str, tenant: str, progress: Progress
) -> Iterator[list[str]]:
    """Yields the keys of the checkpoint, batch by batch."""
    pattern = keys.checkpoint_pattern(gen, tenant=tenant)
    for names in scan(client, _WHAT, pattern, progress):
        yield [name for name in names if keys.owned_by(name, gen=gen, tenant=tenant)]


def _purge_registry(client: Client, gen: str, tenant: str, found: Purged, *, dry_run: bool) -> None:
    query, checkpoints = keys.query(gen, tenant=tenant), keys.checkpoints(tenant=tenant)
    totals = keys.totals(gen, tenant=tenant)
    there, counted, fields = client.call(
        _WHAT, [("EXISTS", query), ("EXISTS", totals), ("HKEYS", checkpoints)]
    )
    listed = [name for name in fields if is_entry_of(name, gen)]
    found.listed = bool(listed)
    found.names.update(key for key, is_there in ((query, there), (totals, counted)) if is_there)
    if dry_run:
        return
    if listed:
        client.call(_WHAT, [("HDEL", checkpoints, *listed)])
    forget_looks(client, gen, tenant=tenant)
    client.call(
        _WHAT,
        [
            ("HDEL", keys.sizes(tenant=tenant), gen),
            ("UNLINK", query),
            ("UNLINK", totals),
        ],
    )


def _unlink(client: Client, names: Sequence[str]) -> None:
    """Unlinks keys by one command each, so that different hash tags fit into one pipeline."""
    for start in range(0, len(names), _KEYS_AT_ONCE):
        chunk = names[start : start + _KEYS_AT_ONCE]
        client.call(_WHAT, [("UNLINK", name) for name in chunk])
