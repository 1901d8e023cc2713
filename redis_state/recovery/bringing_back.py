"""What a restore and an import have in common: nothing that Redis serves is ever replaced."""

from __future__ import annotations

import json
from collections.abc import Mapping

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_error
from redis_state.errors import Kind, StateError
from redis_state.ids import PartitionId, Pin
from redis_state.protocol.partition import PartitionClient
from redis_state.recovery.doctor import look_at


def serves(client: Client, id_: PartitionId, pin: Pin, *, what: str, verb: str) -> bool:
    """Whether Redis has the partition and serves the version; false if it has no manifest.

    Args:
        what: What is done, for errors, such as ``restoring``.
        verb: The same, such as ``restore``.

    Raises:
        StateError: It has the partition and does not serve the version, or it was purged.
    """
    attempted, gen = f"{what} version {pin.version}", id_.store.gen
    health = look_at(client, id_)
    if not health.present:
        return False
    if health.purged:
        raise purged_error(attempted, gen, where=str(id_))
    if pin.version in health.loadable:
        partition = PartitionClient(client, id_, versions_to_retain=1)
        if partition.open("", pin.version).pin.uid == pin.uid:
            return True
    raise StateError(
        attempted,
        kind=Kind.STATE_LOST,
        found="Redis has this partition, but in other versions"
        if not health.problem
        else health.problem,
        advice="Nothing was changed: existing state is never replaced. `redis-state doctor` "
        "says what it serves. If that does not help, stop the query, remove all of it with "
        f"`redis-state purge --gen {gen} --now`, and {verb}.",
        where=str(id_),
    )


def describe(
    client: Client,
    gen: str,
    fields: Mapping[str, str],
    counts: Mapping[tuple[int, str], int],
    *,
    created_ms: int,
    tenant: str,
) -> None:
    """So that readers and maintenance find the query before it runs; it renews all of that.

    Args:
        fields: Of the query's registry; those that are there stay.
        counts: Numbers of partitions, by operator and store.
        created_ms: Milliseconds since 1970, where `fields` do not say it.
    """
    what = "describing the query"
    query = keys.query(gen, tenant=tenant)
    known = {"f": "1", **fields}
    time, *_ = client.call(
        what,
        [
            ("TIME",),
            *(("HSETNX", query, name, value.encode()) for name, value in known.items()),
            ("PERSIST", query),
        ],
    )
    seen_ms = int(time[0]) * 1000 + int(time[1]) // 1000
    listed = {gen: json.dumps(_listing(fields, created_ms, seen_ms))}
    for (operator, store), count in counts.items():
        listed[f"{gen}:{operator}:{store}"] = str(count)
    checkpoints = keys.checkpoints(tenant=tenant)
    client.call(what, [("HSETNX", checkpoints, *pair) for pair in listed.items()])


def _listing(fields: Mapping[str, str], created_ms: int, seen_ms: int) -> dict[str, str | int]:
    """The entry in the list of checkpoints."""
    created = fields.get("created", "")
    texts = {name: fields.get(name, "") for name in ("path", "id", "name")}
    created_ms = int(created) if created.isdecimal() else created_ms
    return {**texts, "created": created_ms, "seen": seen_ms}
