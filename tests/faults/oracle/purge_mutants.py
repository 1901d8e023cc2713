"""Rules of purges and recalls (docs/format.md, section 12), and what a mutant does without each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_error
from redis_state.maintain import recall
from redis_state.protocol import runs

_LOOK = "if redis.call('HEXISTS', query, 'purged') == 1 then return {'PURGED'} end"

PURGED_MUTANTS: tuple[tuple[str, str, str, str, str], ...] = tuple(
    (name, rule, file, old, "")
    for name, rule, file, old in (
        ("joined-after-a-purge", "no task joins a purged query", "join", f"{_LOOK}\n"),
        ("registered-after-a-purge", "a purged query gets no run", "register", f"  {_LOOK}\n"),
        ("begun-after-a-purge", "no batch begins in a purged query", "batch", f"{_LOOK}\n"),
        ("described-after-a-purge", "no store of a purged query grows", "describe", f"{_LOOK}\n"),
        ("kept-after-a-purge", "the expiry of a purged query stays", "stay", f"{_LOOK}\n"),
        ("set-back-after-a-purge", "no batch of a purged query is set", "rewind", f"{_LOOK}\n"),
    )
)
"""One text of one script each: name, rule, script, old text, new text."""


def _words(fields: Mapping[str, str]) -> list[str]:
    return [word for pair in fields.items() for word in pair]


def enter_blindly(
    client: Client, what: str, _gen: str, fields: Mapping[str, str], *, tenant: str
) -> None:
    """Enters a checkpoint in the list, and does not look for a purge behind that."""
    client.call(what, [("HSET", keys.checkpoints(tenant=tenant), *_words(fields))])


def look_before_the_entry(
    client: Client, what: str, gen: str, fields: Mapping[str, str], *, tenant: str
) -> None:
    """Enters a checkpoint in the list, behind a look for a purge."""
    query = keys.query(gen, tenant=tenant)
    (purged,) = client.call(what, [("HEXISTS", query, runs.PURGED_FIELD)])
    if purged:
        raise purged_error(what, gen)
    enter_blindly(client, what, gen, fields, tenant=tenant)


def take_off_blindly(
    client: Client, what: str, gen: str, fields: Mapping[str, str], *, tenant: str
) -> None:
    """Removes the entry after a purge, without a check for a later recall."""
    query, listed = keys.query(gen, tenant=tenant), keys.checkpoints(tenant=tenant)
    client.call(what, [("HSET", listed, *_words(fields))])
    (purged,) = client.call(what, [("HEXISTS", query, runs.PURGED_FIELD)])
    if purged:
        client.call(what, [("HDEL", listed, *fields)])
        raise purged_error(what, gen)


def note_once(client: Client, query: str, known: Any, listed: Mapping[str, str]) -> None:
    """Keeps what brings a query back, unless something is kept already."""
    note = json.dumps({"left": known.left_ms, "listed": {**known.listed, **listed}})
    client.call("purging a checkpoint", [("HSETNX", query, runs.PURGED_FIELD, note)])


def purge_by_an_early_look(client: Client, gen: str, tenant: str, *args: Any) -> None:
    """Purges the query, and reads the list for that only before the mark."""
    early = recall._listed(client, gen, tenant)
    # Other purges go on at the same time, so nothing is patched.
    names = {**vars(recall), "_listed": lambda *_: dict(early)}
    FunctionType(_EXPIRE_QUERY.__code__, names)(client, gen, tenant, *args)


_EXPIRE_QUERY = recall._expire_query
