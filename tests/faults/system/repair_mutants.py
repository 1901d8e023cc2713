"""Stand-ins for what rewinds and imports do, each with one rule less."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any
from unittest import mock

from redis_state.backend.client import Client
from redis_state.cli.operate import rewind
from redis_state.exports import import_plan
from redis_state.recovery.query_state import CountedStore, QueryState
from redis_state.recovery.rewind import Rewind

_run = rewind.run
_to_set_back = import_plan._to_set_back


def set_one(state: QueryState, client: Client, batch: int, *, tenant: str) -> None:
    """Sets the first store of a query."""
    for store in state.stores[:1]:
        if store.newest != store.at(batch):
            store.set_to(client, batch, tenant=tenant)


def move_logs_first(arguments: argparse.Namespace) -> int:
    """Moves the logs, and then sets the stores."""
    with mock.patch.object(QueryState, "set_to", _nothing):
        status = _run(arguments)
    if status == 0 and arguments.yes:
        with mock.patch.object(Rewind, "carry_out", _nothing):
            status = _run(arguments)
    return status


def set_back_what_lacks(
    client: Client,
    what: str,
    gen: str,
    export: Any,
    missing: Sequence[Any],
    *args: Any,
    **given: Any,
) -> tuple[CountedStore, ...]:
    """Sets stores back if a partition is lacking."""
    found = _to_set_back(client, what, gen, export, missing, *args, **given)
    return found if missing else ()


def set_back_what_is_there(
    client: Client,
    what: str,
    gen: str,
    export: Any,
    missing: Sequence[Any],
    *args: Any,
    **given: Any,
) -> tuple[CountedStore, ...]:
    """Sets stores back unless some partitions are lacking."""
    found = _to_set_back(client, what, gen, export, missing, *args, **given)
    every = sum(len(store.partitions) for store in export.stores)
    return found if len(missing) in (0, every) else ()


def set_back_its_own(
    client: Client, what: str, gen: str, *args: Any, **given: Any
) -> tuple[CountedStore, ...]:
    """Sets the store that is imported back, and no other."""
    found = _to_set_back(client, what, gen, *args, **given)
    return tuple(one for one in found if one.gen == gen)


def _nothing(*_: object, **__: object) -> None:
    return None
