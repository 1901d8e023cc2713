"""The batch of a kept version, and whether a query can be set back to it."""

from __future__ import annotations

from redis_state.backend.client import Client
from redis_state.errors import NotFoundError, StateError, UsageError
from redis_state.files import Folder
from redis_state.protocol.kept import KeptVersion, find_kept, open_kept
from redis_state.protocol.opening import open_named
from redis_state.reader.query import find_query
from redis_state.recovery.doctor import Diagnosis
from redis_state.recovery.query_state import QueryState
from redis_state.recovery.rewind import startable_batches

_SHOWN_MAX = 8


def kept_batch(
    client: Client,
    name: str,
    state: QueryState,
    folder: Folder | None,
    found: Diagnosis,
    *,
    tenant: str,
) -> int:
    """Returns the batch of a kept version after which the query can continue.

    Spark needs the batch in its logs, and opens its versions without the name.

    Args:
        folder: The checkpoint; ``None`` for a Python store without a query of Spark.

    Raises:
        NotFoundError: No checkpoint of the query has such a version.
        UsageError: The logs lack the batch, or its state was replaced or dropped; the message
            names the batches that can be reached.
    """
    kept, gen = _found(client, name, state, tenant=tenant)
    batch = kept.batch
    startable = None if folder is None else startable_batches(folder)
    why = ""
    if startable is not None and batch not in startable:
        why = f"Spark's logs lack its batch {batch} or the one before it"
    elif not found.serves(batch):
        why = f"retention has dropped versions that a query needs after its batch {batch}"
    elif not _is_living(client, kept, gen, tenant=tenant):
        why = f"the query went back since, and wrote batch {batch} again"
    if why:
        reachable = found.batches(among=startable, since=state.since)
        raise _unreachable(name, why, reachable, folder)
    return batch


def _found(client: Client, name: str, state: QueryState, *, tenant: str) -> tuple[KeptVersion, str]:
    failed: NotFoundError | None = None
    for gen in state.gens:
        try:
            return find_kept(client, gen, name, tenant=tenant), gen
        except NotFoundError as error:
            failed = failed or error
    if failed is None:
        raise NotFoundError(
            f"rewinding to '{name}'",
            found="the query has no state in this Redis, database and key prefix",
            advice="Give the server and the --key-prefix of the query.",
        )
    raise failed


def _is_living(client: Client, kept: KeptVersion, gen: str, *, tenant: str) -> bool:
    """Returns whether the attempts of the kept version are those that the query continued from."""
    query = find_query(client, gen, tenant=tenant)
    for one in query.operators():
        if kept.pins and f"{one.operator}:{one.store}" not in kept.pins:
            continue
        held = open_kept(client, one, query.ids(one, range(one.partitions)), kept.name)
        there = [each for each in held if each.pin.version]
        for each in there:
            try:
                (now,) = open_named(client, [each.id], each.pin.version, uids={})
            except StateError:
                return False
            if now.pin != each.pin:
                return False
    return True


def _unreachable(name: str, why: str, batches: list[int], folder: Folder | None) -> UsageError:
    shown = ", ".join(map(str, batches[-_SHOWN_MAX:]))
    more = "the newest are " if len(batches) > _SHOWN_MAX else ""
    return UsageError(
        f"rewinding to the kept version '{name}'",
        found=why,
        advice=f"Nothing was moved. Batches that can be reached: {more}{shown or 'none'}. The "
        "kept version can still be read and exported, with --at and its name.",
        where="" if folder is None else str(folder),
    )
