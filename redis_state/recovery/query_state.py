"""Checkpoints in Redis with the state of a query: of Spark's operators and of Python stores.

Spark's operators have the checkpoint that the marker file names. A Python store whose batches are
counted has a checkpoint of its own, which names its query (docs/format.md, section 9).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_error
from redis_state.backend.script import script
from redis_state.errors import (
    ConflictError,
    InternalError,
    Kind,
    NotFoundError,
    StateError,
    UsageError,
)
from redis_state.files import Folder
from redis_state.ids import is_gen
from redis_state.protocol.newest_batch import NewestBatch
from redis_state.protocol.runs import checkpoint_gen
from redis_state.recovery.marker import marker_of

_BATCH = "batch:"
_GENS_AT_ONCE = 256
_METADATA = "metadata"
_REWOUND = "rewound"
_WHAT = "looking for the stores of a query"


@dataclass(frozen=True, slots=True)
class CountedStore:
    """A Python store whose batches Redis counts.

    Attributes:
        name: Name of the checkpoint.
        place: Operator and store, in fields of the registry.
        newest: Newest batch of the store.
        first: First batch of the store.
        query_id: Spark's id of the query; empty if unknown.
        raw: Registry field of the newest batch.
    """

    gen: str
    name: str
    place: str
    newest: int
    first: int
    query_id: str
    raw: bytes

    def at(self, batch: int) -> int:
        """Returns the store's newest batch when the query's is `batch`; at least `first - 1`."""
        return max(batch, self.first - 1)

    def follows(self, committed: int | None) -> bool:
        """Returns whether a query can continue after its newest committed batch."""
        newest = -1 if committed is None else committed
        return self.newest in (self.at(newest), newest + 1)

    def set_to(self, client: Client, batch: int, *, tenant: str, word: str = _REWOUND) -> None:
        """Makes a batch the newest; all partitions must hold its version.

        Args:
            word: Written in place of the batch's run.

        Raises:
            ConflictError: A batch has begun, or the store was moved, since this was read.
            StateError: The checkpoint was purged.
        """
        what = f"setting store '{self.name}' to batch {batch}"
        number = str(self.at(batch))
        query = [keys.query(self.gen, tenant=tenant)]
        reply = client.script(what, script("rewind"), query, [self.place, self.raw, number, word])
        match reply:
            case ["OK"]:
                return
            case ["PURGED"]:
                raise purged_error(what, self.gen)
            case ["CHANGED"] | ["MOVED", _]:
                raise ConflictError(
                    what,
                    found="a batch of the store began meanwhile, or its partitions changed",
                    advice="Stop the query, and run the command again.",
                )
        raise InternalError(what, found=f"the script answered '{' '.join(reply)[:200]}'")


@dataclass(frozen=True, slots=True)
class QueryState:
    """Checkpoints of one query.

    Attributes:
        gens: All checkpoint ids, that of Spark's operators first.
        since: First batch of the state of Spark's operators; 0 unless they were rescaled.
        stores: Python stores whose batches are counted.
    """

    gens: tuple[str, ...]
    since: int
    stores: tuple[CountedStore, ...]

    def behind(self, committed: int | None) -> list[CountedStore]:
        """Returns the stores that block a query from continuing after its newest commit."""
        return [store for store in self.stores if not store.follows(committed)]

    def changes(self, batch: int) -> list[str]:
        """Describes the changes of `set_to`, one line for each store."""
        return [
            f"store {one.name[:80]!r}: batch {one.newest} -> {one.at(batch)}"
            for one in self.stores
            if one.newest != one.at(batch)
        ]

    def set_to(self, client: Client, batch: int, *, tenant: str) -> None:
        """Makes a batch the newest of each store.

        Raises:
            ConflictError: A batch has begun in the meantime.
            StateError: A checkpoint was purged.
        """
        for store in self.stores:
            if store.newest != store.at(batch):
                store.set_to(client, batch, tenant=tenant)


def query_id_of(checkpoint: Folder) -> str:
    """Returns Spark's id of a checkpoint's query; empty if the folder has none.

    Raises:
        ConfigError: The folder cannot be read.
        UnavailableError: The file system does not answer.
    """
    try:
        found = json.loads((checkpoint.read(_METADATA) or b"{}").decode())
        id_ = found["id"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return ""
    return id_ if isinstance(id_, str) else ""


def stores_of_query(client: Client, query_id: str, *, tenant: str) -> list[CountedStore]:
    """Returns the stores of a Spark query, including recently purged ones.

    Raises:
        FormatError: A registry is damaged.
        UnavailableError: The server does not answer.
    """
    if not query_id:
        return []
    (names,) = client.call(_WHAT, [("HGETALL", keys.names(tenant=tenant))])
    gens = sorted({gen for raw in names.values() if is_gen(gen := raw.decode("ascii", "replace"))})
    found = _counted(client, gens, tenant)
    return [store for store in found if store.query_id == query_id]


def stores_of(client: Client, gen: str, *, tenant: str) -> list[CountedStore]:
    """Returns the stores of a checkpoint whose batches are counted; empty for Spark's operators.

    Raises:
        FormatError: The registry is damaged.
        UnavailableError: The server does not answer.
    """
    return _counted(client, [gen], tenant)


def state_of(
    client: Client,
    checkpoint: Folder | None,
    *,
    gen: str | None = None,
    names: Sequence[str] = (),
    tenant: str,
) -> QueryState:
    """Finds the checkpoints and stores of a query.

    Args:
        checkpoint: Folder of the query; ``None`` if there is none, or it must not be read.
        gen: A checkpoint in Redis: of Spark's operators, in place of the one that the marker file
            names; or of a Python store.
        names: Names of further Python stores that the query writes.

    Raises:
        StateError: There is no marker file and no store, or the folder was moved or copied.
        UsageError: A store belongs to another query.
        NotFoundError: A store of this name does not exist.
        FormatError: A file or a registry is damaged.
        ConfigError: The folder does not exist, or cannot be read.
    """
    given = [] if gen is None else [gen]
    given += [_gen_of(client, name, tenant) for name in names]
    stores = {(one.gen, one.place): one for one in _counted(client, given, tenant)}
    query_id = "" if checkpoint is None else query_id_of(checkpoint)
    for one in stores.values():
        _check_query(one, query_id)
    for one in stores_of_query(client, query_id, tenant=tenant):
        stores[one.gen, one.place] = one
    of_python = tuple(stores.values())
    own = {one.gen for one in of_python}
    marked = [one for one in given if one not in own]
    since = 0
    if checkpoint is not None and (gen is None or gen in own):
        try:
            marker = marker_of(checkpoint)
        except StateError as error:
            if error.kind is not Kind.MARKER_MISSING or not of_python:
                raise
        else:
            marked.insert(0, marker.gen)
            since = marker.since or 0
    gens = dict.fromkeys([*marked, *(one.gen for one in of_python)])
    return QueryState(tuple(gens), since, of_python)


def _counted(client: Client, gens: Sequence[str], tenant: str) -> list[CountedStore]:
    found: list[CountedStore] = []
    for start in range(0, len(gens), _GENS_AT_ONCE):
        chunk = gens[start : start + _GENS_AT_ONCE]
        commands = [("HGETALL", keys.query(gen, tenant=tenant)) for gen in chunk]
        for gen, raw in zip(chunk, client.call(_WHAT, commands), strict=True):
            found += _stores_in(gen, raw)
    return found


def _stores_in(gen: str, raw: Mapping[bytes, bytes]) -> Iterable[CountedStore]:
    for field, value in raw.items():
        name = field.decode("utf-8", "replace")
        place = name.removeprefix(_BATCH)
        if place == name or f"moved:{place}".encode() in raw:
            continue
        newest = NewestBatch.parse(value)
        joined = raw.get(f"joined:{place}".encode(), b"").decode("utf-8", "replace").split(" ")
        known = raw.get(f"query:{place}".encode(), b"").decode("utf-8", "replace")
        query_id = joined[-1] if len(joined) == 5 else known
        title = raw.get(b"name", b"").decode("utf-8", "replace")
        yield CountedStore(gen, title, place, newest.number, newest.first, query_id, value)


def _gen_of(client: Client, name: str, tenant: str) -> str:
    gen = checkpoint_gen(client, name, tenant=tenant)
    if gen is None:
        raise NotFoundError(
            _WHAT,
            found=f"Redis knows no store of the name {name[:80]!r}",
            advice="`redis-state queries` lists them.",
        )
    return gen


def _check_query(store: CountedStore, query_id: str) -> None:
    if query_id and store.query_id and store.query_id != query_id:
        raise UsageError(
            _WHAT,
            found=f"store {store.name[:80]!r} belongs to the query {store.query_id}, and the "
            f"folder to the query {query_id}",
            advice="Give the folder of that query. Nothing was changed.",
        )
