"""Common steps of a restore and an import: state that Redis serves is never replaced."""

from __future__ import annotations

import json
from collections.abc import Mapping

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_error, time_ms
from redis_state.errors import Kind, StateError
from redis_state.files import Folder
from redis_state.ids import PartitionId, Pin
from redis_state.protocol.partition import PartitionClient
from redis_state.protocol.runs import PURGED_FIELD, keep_checkpoint
from redis_state.recovery.doctor import diagnose, look_at
from redis_state.recovery.query_state import CountedStore, query_id_of, stores_of_query


def serves(client: Client, id_: PartitionId, pin: Pin, *, what: str, verb: str) -> bool:
    """Returns whether Redis serves the version of a partition; false without a manifest.

    Args:
        what: Present participle of the operation, for errors, such as ``restoring``.
        verb: Infinitive of the operation, such as ``restore``.

    Raises:
        StateError: The partition exists but does not serve the version, or was purged.
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
        found="Redis has other versions of this partition"
        if not health.problem
        else health.problem,
        advice="Nothing was changed: existing state is never replaced. `redis-state doctor --gen "
        f"{gen}` prints which batches it can serve. If that does not help, stop the query, remove "
        f"all of its state with `redis-state purge --gen {gen} --now`, and {verb}.",
        where=str(id_),
    )


def check_not_purged(client: Client, gen: str, *, attempted: str, tenant: str) -> None:
    """Refuses a checkpoint that was purged within the last day, also without any partition.

    Raises:
        StateError: The checkpoint was purged.
    """
    command = ("HEXISTS", keys.query(gen, tenant=tenant), PURGED_FIELD)
    (purged,) = client.call("looking for a purge", [command])
    if purged:
        raise purged_error(attempted, gen)


def others_serving(
    client: Client, checkpoint: Folder, gen: str, batch: int, *, what: str, tenant: str
) -> list[CountedStore]:
    """Returns the Python stores that go back with a query's logs, except one checkpoint's.

    Args:
        gen: The checkpoint that is restored, whose stores are left out.

    Raises:
        StateError: A store does not serve the state after the batch, or was purged.
    """
    stores = stores_of_query(client, query_id_of(checkpoint), tenant=tenant)
    others = [store for store in stores if store.gen != gen]
    for store in others:
        found = diagnose(client, store.gen, tenant=tenant)
        if found.purged:
            raise purged_error(what, store.gen)
        if not found.serves(batch):
            raise StateError(
                what,
                kind=Kind.STATE_LOST,
                found=f"the query also writes store {store.name[:80]!r}, of which not all "
                f"partitions have the state after batch {batch}",
                advice=(
                    f"Nothing was changed. `redis-state doctor --gen {store.gen}` prints which "
                    "batches it can serve: choose a batch that both have, or bring an export of "
                    "that store back first."
                ),
                where=str(checkpoint),
            )
    return others


def describe(
    client: Client,
    gen: str,
    fields: Mapping[str, str],
    counts: Mapping[tuple[int, str], int],
    *,
    created_ms: int,
    tenant: str,
) -> None:
    """Describes a query that has not run yet, so that readers and maintenance find it.

    The query's next run renews the description.

    Args:
        fields: Fields of the query's registry; existing fields stay.
        counts: Numbers of partitions, by operator and store.
        created_ms: Milliseconds since 1970; used if `fields` has no creation time.

    Raises:
        StateError: The checkpoint was purged within the last day.
    """
    what = "describing the query"
    query = keys.query(gen, tenant=tenant)
    keep_checkpoint(client, gen, attempted=what, tenant=tenant)
    known = {"f": "1", **fields}
    time, *_ = client.call(
        what,
        [
            ("TIME",),
            *(("HSETNX", query, name, value.encode()) for name, value in known.items()),
        ],
    )
    seen_ms = time_ms(time)
    listed = {gen: json.dumps(_listing(fields, created_ms, seen_ms))}
    for (operator, store), count in counts.items():
        listed[f"{gen}:{operator}:{store}"] = str(count)
    checkpoints = keys.checkpoints(tenant=tenant)
    client.call(what, [("HSETNX", checkpoints, *pair) for pair in listed.items()])


def _listing(fields: Mapping[str, str], created_ms: int, seen_ms: int) -> dict[str, str | int]:
    created = fields.get("created", "")
    texts = {name: fields.get(name, "") for name in ("path", "id", "name")}
    created_ms = int(created) if created.isdecimal() else created_ms
    return {**texts, "created": created_ms, "seen": seen_ms}
