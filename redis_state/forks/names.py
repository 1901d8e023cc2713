"""Names and ids of forked Python stores."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import UsageError
from redis_state.forks.parent import Parent
from redis_state.protocol.runs import check_name, checkpoint_gen

_GEN_DIGITS = 32
_SUFFIX = "-fork"
_WHAT = "naming the fork of a store"


def store_names(parent: Parent, to: str, given: Mapping[str, str] | None) -> dict[str, str]:
    """Returns the new name of each Python store, by its name in the parent.

    Args:
        to: The new name of a store that is forked without a query of Spark.
        given: New names of the stores of a query.

    Raises:
        UsageError: A name is malformed or used twice, or the query has no such store.
    """
    old = [state.name for state in parent.states if state.name]
    if parent.folder is None:
        found = {old[0]: to} if old else {}
    else:
        found = {name: (given or {}).get(name, f"{name}{_SUFFIX}") for name in old}
    unknown = sorted(set(given or {}) - set(old))
    if unknown:
        raise UsageError(
            _WHAT,
            found=f"the query writes no store {unknown[0][:80]!r}",
            advice=f"Its stores: {', '.join(old) or 'none'}. Nothing was made.",
            where=parent.where,
        )
    for new in found.values():
        check_name(new, what="the name of a store")
    if len(set(found.values())) < len(found) or set(found.values()) & set(old):
        raise UsageError(
            _WHAT,
            found="two stores would have one name",
            advice="Give each fork a name of its own. Nothing was made.",
            where=parent.where,
        )
    return found


def store_gen(parent: str, name: str) -> str:
    """Returns the checkpoint id of a store's fork, which is the same in every call."""
    return hashlib.sha256(f"fork\n{parent}\n{name}".encode()).hexdigest()[:_GEN_DIGITS]


def check_free(client: Client, name: str, gen: str, *, tenant: str) -> None:
    """Rejects a name that another store has.

    Raises:
        UsageError: The name is taken.
    """
    if checkpoint_gen(client, name, tenant=tenant) not in (None, gen):
        raise _taken(name)


def claim(client: Client, name: str, gen: str, *, tenant: str) -> None:
    """Publishes the name by which programs find a fork.

    Raises:
        UsageError: Another store got the name meanwhile.
    """
    key, field = keys.names(tenant=tenant), keys.name_field(name)
    found = client.call_lasting(_WHAT, [("HSETNX", key, field, gen), ("HGET", key, field)])[-1]
    if found != gen.encode():
        raise _taken(name)


def _taken(name: str) -> UsageError:
    return UsageError(
        _WHAT,
        found=f"another store has the name {name[:80]!r}",
        advice="Give another name, with --to or, for a store of a Spark query, with --store-name.",
    )
