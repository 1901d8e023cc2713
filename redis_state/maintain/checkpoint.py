"""Maintenance of all partitions of a checkpoint."""

from __future__ import annotations

import random
from collections.abc import Mapping

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import OTHER_TYPE
from redis_state.backend.script import Command
from redis_state.errors import FormatError
from redis_state.ids import PartitionId
from redis_state.maintain.partition import maintain_partition
from redis_state.maintain.pinned import forget_unpinned_forks
from redis_state.maintain.report import MaintenanceReport, PassControl, Policy
from redis_state.maintain.rotation import Rotation, stamp_commands, stamps
from redis_state.places.settings import FIELD as PLACES_FIELD
from redis_state.protocol.instances import Instance, decode_instance
from redis_state.protocol.kept import forget_expired
from redis_state.protocol.registry import (
    PYTHON_OPERATOR,
    OperatorInfo,
    counted_partitions,
    parse_operators,
)

PARTITIONS_AT_ONCE = 256
_TO_THE_END = PassControl()


def maintain_checkpoint(
    client: Client,
    gen: str,
    *,
    policy: Policy,
    tenant: str = "",
    name: str = "",
    control: PassControl = _TO_THE_END,
    rotation: Rotation | None = None,
) -> MaintenanceReport:
    """Runs the due maintenance of each partition of a checkpoint.

    The partitions come in random order, so that workers who start together seldom meet.

    Args:
        name: Name of the query in problems; empty uses the checkpoint id.
        control: Follows the pass, and ends it early.
        rotation: Omits unchanged partitions whose turn has not come; ``None`` maintains all.

    Raises:
        UnavailableError: The server does not answer.
        ConfigError: The server refuses the user.
    """
    called = name or gen
    report = MaintenanceReport(checkpoints=1)
    registry, looks = keys.query(gen, tenant=tenant), keys.looks(tenant=tenant)
    raw, looked = client.call("maintaining a checkpoint", [("HGETALL", registry), ("HKEYS", looks)])
    try:
        operators = parse_operators(raw)
    except FormatError as error:
        report.problem(f"{called}: {error}")
        return report
    with report.noting(called):
        # Before the pins of these names end.
        forget_expired(client, gen, raw, tenant=tenant)
    ids = counted_partitions(client, gen, operators.values(), tenant=tenant)
    # Spark's own maintenance moves the history of a query.
    has_files = PLACES_FIELD.encode() in raw
    random.shuffle(ids)
    for start in range(0, len(ids), PARTITIONS_AT_ONCE):
        chunk = ids[start : start + PARTITIONS_AT_ONCE]
        commands: list[Command] = [("MGET", *map(keys.instance, chunk))]
        commands += stamp_commands(chunk) if rotation is not None else []
        raws, *rest = client.call("looking for changes", commands, of_other_type=OTHER_TYPE)
        instances = _instances(chunk, raws, report, called)
        seen = stamps(chunk, rest, instances) if rest else {}
        for index, id_ in enumerate(chunk):
            if control.stopped():
                return report
            found = rotation.unchanged(id_, seen.get(id_)) if rotation is not None else None
            if found is None:
                found = maintain_partition(
                    client,
                    id_,
                    instances.get(id_),
                    policy,
                    name=called,
                    moves=has_files and _is_of_python(operators, id_),
                    since=rotation.since(id_, seen.get(id_)) if rotation is not None else None,
                    progress=control.step,
                )
                if rotation is not None:
                    rotation.maintained(id_, seen.get(id_), found)
            report.add(found)
            control.progress(f"maintaining {called}", start + index + 1, len(ids))
    with report.noting(called):
        forget_unpinned_forks(client, gen, ids, raw, looked, tenant=tenant)
    return report


def _is_of_python(operators: Mapping[tuple[int, str], OperatorInfo], id_: PartitionId) -> bool:
    """Returns whether a partition is of a Python store."""
    found = operators.get((id_.store.operator, id_.store.store))
    return found is not None and found.name == PYTHON_OPERATOR


def _instances(
    ids: list[PartitionId], raws: list[bytes | None], report: MaintenanceReport, called: str
) -> dict[PartitionId, Instance]:
    found: dict[PartitionId, Instance] = {}
    for id_, raw in zip(ids, raws, strict=True):
        try:
            instance = decode_instance(raw)
        except FormatError as error:
            report.problem(f"{called}: {id_}: {error}")
            continue
        if instance is not None:
            found[id_] = instance
    return found
