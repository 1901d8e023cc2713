"""Moves the name of a store from its checkpoint to the rescaled one; no pyspark."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from redis_state import keys
from redis_state.backend.replies import purged_error
from redis_state.backend.script import script
from redis_state.batches.driver import OPERATOR, PLACE
from redis_state.errors import ConflictError, RedisStateError, StateError, UnavailableError
from redis_state.ids import DEFAULT_STORE, Pin
from redis_state.protocol import NamedStore, RegisteredRun, confirm_checkpoint
from redis_state.protocol.newest_batch import NewestBatch
from redis_state.protocol.runs import STAGED_TTL_MS
from redis_state.rescaling.checkpoints import RescaledCheckpoint, RescaledStore

_LOG = logging.getLogger(__name__)


def expire_leftover(store: RescaledStore) -> None:
    """Sets the expiry of a checkpoint left by a call that was killed before the decisive step.

    That call cannot take the step any more, because a newer run is registered.
    """
    fields = (f"moved:{PLACE}", f"moving:{PLACE}")
    command = ("HMGET", store.query, *fields)
    ((moved, moving),) = store.client.call(store.what, [command])
    if moved is not None:
        raise _overtaken(store)
    if moving is not None:
        gen = moving.decode()
        described = ("HGET", keys.query(gen, tenant=store.tenant), f"batch:{PLACE}")
        (newest,) = store.client.call(store.what, [described])
        if newest is not None:
            store.checkpoint(gen, NewestBatch.parse(newest).partitions).keep(STAGED_TTL_MS)


def leave(
    store: RescaledStore, copy: RescaledCheckpoint, pins: Sequence[Pin], run: RegisteredRun
) -> None:
    """Commits the move, after which no batch begins in the old checkpoint.

    A server that does not answer may still take the step, so the written data stays. The next
    call finishes the move or makes the data expire.
    """
    store.client.call(store.what, [("HSET", store.query, f"moving:{PLACE}", copy.gen)])
    if not copy.keep(0) or not copy.is_whole(pins):
        copy.keep(STAGED_TTL_MS)
        raise UnavailableError(
            store.what,
            found="the written state expired or was lost before the last step",
            advice="Nothing was changed. Try again.",
        )
    args = [PLACE, str(run.epoch), str(store.newest), copy.gen]
    reply = store.client.script(store.what, script("leave"), [store.query], args)
    if reply == ["PURGED"]:
        raise purged_error(store.what, store.gen)
    if reply != ["OK", copy.gen]:
        copy.keep(STAGED_TTL_MS)
        raise _overtaken(store)


def _overtaken(store: RescaledStore) -> ConflictError:
    return ConflictError(
        store.what,
        found="the query was started meanwhile, or another call was faster",
        advice="The query continues with its present partitions. Stop it, and try again.",
    )


def finish(store: RescaledStore, new_gen: str) -> tuple[int, tuple[int, ...]]:
    """Moves the name to the new checkpoint; may be repeated.

    Returns:
        The newest batch there, and the number of rows of each partition.
    """
    described = ("HGET", keys.query(new_gen, tenant=store.tenant), f"batch:{PLACE}")
    (field,) = store.client.call(store.what, [described])
    if field is None:
        raise StateError(
            store.what,
            found=f"its state was moved to checkpoint {new_gen}, which is missing",
            advice="Restore the data of that Redis.",
        )
    newest = NewestBatch.parse(field)
    count = newest.partitions
    rows = store.checkpoint(new_gen, count).rows(newest.version)
    named = NamedStore(store.name, OPERATOR, DEFAULT_STORE, count)
    confirm_checkpoint(store.client, new_gen, named, tenant=store.tenant)
    args = [keys.name_field(store.name), store.gen, new_gen]
    reply = store.client.script(
        store.what, script("rename"), [keys.names(tenant=store.tenant)], args
    )
    if reply != ["OK"]:
        raise ConflictError(
            store.what,
            found=f"the name now has another checkpoint, {reply[-1]}",
            advice="Another call was faster. See `redis-state queries`.",
        )
    _wake_readers(store)
    return newest.number, rows


def _wake_readers(store: RescaledStore) -> None:
    """Wakes the readers of the old partitions, so that they find the new checkpoint."""
    try:
        store.take()
    except RedisStateError as error:
        # The store has moved all the same, and a reader that opens it anew finds the new
        # checkpoint.
        _LOG.warning("feeds of checkpoint %s were not woken: %s", store.gen, error)
