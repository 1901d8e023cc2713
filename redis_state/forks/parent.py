"""The parent of a fork: its folder, and the checkpoints in Redis that hold its state."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_error
from redis_state.errors import ConfigError, NotFoundError, RedisStateError, UsageError
from redis_state.files import Folder
from redis_state.protocol.newest_batch import NewestBatch
from redis_state.protocol.pins import FORK_OF
from redis_state.protocol.registry import (
    PYTHON_OPERATOR,
    OperatorInfo,
    QueryInfo,
    list_queries,
    parse_operators,
)
from redis_state.protocol.runs import PURGED_FIELD, checkpoint_gen
from redis_state.recovery.marker import marker_of
from redis_state.recovery.query_state import query_id_of, state_of

_WHAT = "forking a query"
_CHANGES = ("moved:", "moving:")


@dataclass(frozen=True, slots=True)
class ParentState:
    """A checkpoint in Redis with state of the parent.

    Attributes:
        name: Name of a Python store; empty for the operators of a Spark query.
        fields: Fields of the registry.
    """

    gen: str
    name: str
    fields: Mapping[str, bytes]
    operators: tuple[OperatorInfo, ...]

    def counted(self, one: OperatorInfo) -> NewestBatch | None:
        """Returns the newest batch of a store; ``None`` if its batches are not counted."""
        raw = self.fields.get(f"batch:{one.operator}:{one.store}")
        return None if raw is None else NewestBatch.parse(raw)

    def version(self, one: OperatorInfo, batch: int) -> int:
        """Returns the version of a store after a batch of the query."""
        newest = self.counted(one)
        return batch + 1 if newest is None else max(batch, newest.first - 1) + newest.ahead


@dataclass(frozen=True, slots=True)
class Parent:
    """A query, or a Python store, to fork.

    Attributes:
        title: Its name in messages.
        folder: Checkpoint folder; ``None`` for a Python store that is forked by its name.
        query_id: Spark's id of the query; empty without a folder.
        since: First batch of the state, after a change of the number of partitions; else 0.
        states: Spark's operators first.
    """

    title: str
    folder: Folder | None
    query_id: str
    since: int
    states: tuple[ParentState, ...]

    @property
    def where(self) -> str:
        """Name of the parent in errors."""
        return self.title if self.folder is None else str(self.folder)


def find_parent(
    client: Client,
    query: str,
    checkpoint: Folder | None,
    *,
    open_folder: Callable[[str], Folder],
    tenant: str,
) -> Parent:
    """Finds the query to fork, and rejects one that cannot be forked; changes nothing.

    Args:
        query: Name or id of the query, a gen, or the checkpoint folder.
        checkpoint: Checkpoint folder of the query; ``None`` if `query` names it, or for a Python
            store.
        open_folder: Opens a folder by its address.

    Raises:
        NotFoundError: There is no such query, or Redis has no state of it.
        ConfigError: The folder of a Spark query was not given.
        UsageError: The folder is of another query, the query is ephemeral or itself an unfinished
            fork, or its number of partitions is being changed.
        StateError: The state was purged, or the folder has no marker file.
    """
    queries = list_queries(client, tenant=tenant)
    found = [info for info in queries if query and query in (info.gen, info.id, info.name)]
    folder = checkpoint
    if folder is None and not found:
        folder = _folder(query, open_folder)
    if folder is None:
        parent = _of_name(client, query, found, queries, tenant)
    else:
        parent = _of_folder(client, folder, tenant)
        if checkpoint is not None:
            _check_same(query, found, queries, parent)
    for state in parent.states:
        _check_state(client, state, parent, tenant)
    return parent


def _folder(query: str, open_folder: Callable[[str], Folder]) -> Folder | None:
    """Returns the folder that an argument names; ``None`` if it is no folder.

    Raises:
        RedisStateError: The argument is an address, which cannot be read.
    """
    try:
        folder = open_folder(query)
        return folder if folder.items() else None
    except (RedisStateError, ValueError):
        if "://" in query:
            raise
        return None


def _of_folder(client: Client, folder: Folder, tenant: str) -> Parent:
    state = state_of(client, folder, tenant=tenant)
    names = {one.gen: one.name for one in state.stores}
    if any(gen not in names for gen in state.gens) and marker_of(folder).changes:
        raise UsageError(
            _WHAT,
            found="its number of partitions is being changed (rescaleTo)",
            advice="Start the query, wait until it has run a batch, and fork it then. Nothing was "
            "made.",
            where=str(folder),
        )
    states = tuple(_state(client, gen, names.get(gen, ""), tenant) for gen in state.gens)
    title = next((_title(one) for one in states if _title(one)), folder.name)
    return Parent(title, folder, query_id_of(folder), state.since, states)


def _of_name(
    client: Client,
    query: str,
    found: Sequence[QueryInfo],
    queries: Sequence[QueryInfo],
    tenant: str,
) -> Parent:
    if not found:
        raise _not_found(query, queries)
    newest = max(found, key=lambda info: (info.seen_ms, info.created_ms))
    state = _state(client, newest.gen, newest.name, tenant)
    if not all(one.name == PYTHON_OPERATOR for one in state.operators):
        raise ConfigError(
            _WHAT,
            found=f"{newest.title!r} is a query of Spark, and Redis has only a hash of its "
            "checkpoint folder",
            advice="Give the folder that the query has as checkpointLocation, with --checkpoint.",
        )
    current = checkpoint_gen(client, newest.name, tenant=tenant) if newest.name else None
    if state.operators and query != newest.gen and current not in (None, newest.gen):
        state = _state(client, current or "", newest.name, tenant)
    return Parent(newest.title, None, "", 0, (state,))


def _state(client: Client, gen: str, name: str, tenant: str) -> ParentState:
    (raw,) = client.call(_WHAT, [("HGETALL", keys.query(gen, tenant=tenant))])
    fields = {field.decode("utf-8", "replace"): value for field, value in raw.items()}
    return ParentState(gen, name, fields, tuple(parse_operators(raw).values()))


def _title(state: ParentState) -> str:
    return state.fields.get("name", b"").decode("utf-8", "replace")


def _check_same(
    query: str, found: Sequence[QueryInfo], queries: Sequence[QueryInfo], parent: Parent
) -> None:
    gens = {state.gen for state in parent.states}
    if not found and query not in gens:
        raise _not_found(query, queries)
    if not gens.intersection(info.gen for info in found):
        raise UsageError(
            _WHAT,
            found=f"the folder holds the state of {parent.title!r} ({min(gens)}), which is another "
            f"query than {query[:80]!r}",
            advice="Give the folder and the name of one query. Nothing was made.",
            where=parent.where,
        )


def _not_found(query: str, queries: Sequence[QueryInfo]) -> NotFoundError:
    near = difflib.get_close_matches(query, [info.title for info in queries], n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return NotFoundError(
        _WHAT,
        found=f"{query[:200]!r} is neither a query in this Redis, database and key prefix, nor a "
        "checkpoint folder",
        advice=f"{hint}`redis-state queries` lists the queries.",
    )


def _check_state(client: Client, state: ParentState, parent: Parent, tenant: str) -> None:
    """Rejects a checkpoint that cannot be forked.

    Raises:
        NotFoundError: Redis has no such checkpoint.
        StateError: The checkpoint was purged.
        UsageError: The checkpoint expires, or its number of partitions is being changed.
    """
    if not state.operators:
        raise NotFoundError(
            _WHAT,
            found=f"this Redis, database and key prefix has no state of checkpoint {state.gen}",
            advice="A fork is made on the server of its parent, with its key prefix: give those of "
            "the query with --url and --key-prefix. Nothing was made.",
            where=parent.where,
        )
    if PURGED_FIELD in state.fields:
        raise purged_error(_WHAT, state.gen, where=parent.where)
    if any(field.startswith(_CHANGES) for field in state.fields):
        raise UsageError(
            _WHAT,
            found="its number of partitions is being changed, or was changed into another "
            "checkpoint",
            advice="Finish that change, or fork the checkpoint that has the state now. Nothing was "
            "made.",
            where=parent.where,
        )
    (left_ms,) = client.call(_WHAT, [("PTTL", keys.query(state.gen, tenant=tenant))])
    if left_ms >= 0:
        unfinished = FORK_OF in state.fields
        raise UsageError(
            _WHAT,
            found="it is itself a fork that is not complete"
            if unfinished
            else "the query is ephemeral: its state expires when its run ends",
            advice="Run the command that forks it again, and then this one."
            if unfinished
            else "Only state that stays can be forked. Nothing was made.",
            where=parent.where,
        )
