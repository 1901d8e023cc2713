"""Rotation of a worker over partitions that do not change: a tenth of them in each pass.

A pass compares a few fields of each manifest with those of the previous pass, in one round trip for
many partitions. A changed partition is maintained at once. An unchanged one is maintained when its
turn comes, at the latest in the tenth pass, and its segments are verified then.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis_state import keys
from redis_state.backend.replies import OTHER_TYPE
from redis_state.backend.script import Command
from redis_state.ids import PartitionId
from redis_state.maintain.report import MaintenanceReport
from redis_state.protocol.instances import Instance

TURNS = 10
PARTITIONS_MAX = 100_000
# A write, another run, retention or a snapshot changes one of these fields, or their number.
_FIELDS = ("f", "e", "r", "o", "ou", "l", "lu", "b", "k", "n", "w", "t")

Stamp = tuple[object, ...]
"""Fields by which a changed partition differs from an unchanged one."""


@dataclass(frozen=True, slots=True)
class _KnownPartition:
    stamp: Stamp
    number: int
    partitions: int
    named: int
    lag_versions: int
    lag_bytes: int


@dataclass(frozen=True, slots=True)
class Since:
    """The last maintenance of a partition that has not changed since.

    Attributes:
        round: Number of the round of all turns.
        lag_versions: See `MaintenanceReport`.
        lag_bytes: See `MaintenanceReport`.
    """

    round: int
    lag_versions: int
    lag_bytes: int


class Rotation:
    """Partitions that one worker has maintained, in bounded memory.

    Args:
        turns: Number of passes in which each unchanged partition is maintained once.
    """

    def __init__(self, *, turns: int = TURNS) -> None:
        self._turns = turns
        self._number = 0
        self._maintained: dict[PartitionId, _KnownPartition] = {}

    def begin_pass(self) -> None:
        """Begins the next pass, and forgets partitions that no longer occur."""
        self._number += 1
        last = self._number - 2 * self._turns
        for id_ in [id_ for id_, one in self._maintained.items() if one.number < last]:
            del self._maintained[id_]

    def unchanged(self, id_: PartitionId, stamp: Stamp | None) -> MaintenanceReport | None:
        """Returns what is known of a partition that this pass need not maintain; else ``None``."""
        known = self._maintained.get(id_)
        if known is None or stamp is None or known.stamp != stamp:
            return None
        mine = zlib.crc32(keys.meta(id_).encode()) % self._turns == self._number % self._turns
        if mine or self._number - known.number >= self._turns:
            return None
        return MaintenanceReport(
            partitions=known.partitions,
            unchanged=known.partitions,
            named=known.named,
            lag_versions=known.lag_versions,
            lag_bytes=known.lag_bytes,
        )

    def since(self, id_: PartitionId, stamp: Stamp | None) -> Since | None:
        """Returns what the last maintenance found in a partition that has not changed since."""
        known = self._maintained.get(id_)
        if known is None or stamp is None or known.stamp != stamp:
            return None
        return Since(self._number // self._turns, known.lag_versions, known.lag_bytes)

    def maintained(self, id_: PartitionId, stamp: Stamp | None, report: MaintenanceReport) -> None:
        """Notes a partition after its maintenance; an incomplete one is maintained again.

        Args:
            stamp: Stamp from before the maintenance; ``None`` is unknown.
        """
        self._maintained.pop(id_, None)
        bad = report.problems or report.left_to_others or report.snapshots_missed
        if stamp is not None and not bad and len(self._maintained) < PARTITIONS_MAX:
            self._maintained[id_] = _KnownPartition(
                stamp,
                self._number,
                report.partitions,
                report.named,
                report.lag_versions,
                report.lag_bytes,
            )


def stamp_commands(ids: Sequence[PartitionId]) -> list[Command]:
    """Returns the commands whose replies `stamps` reads, other types as `OTHER_TYPE`."""
    commands: list[Command] = []
    for meta in map(keys.meta, ids):
        commands += [("HMGET", meta, *_FIELDS), ("HLEN", meta)]
    return commands


def stamps(
    ids: Sequence[PartitionId],
    replies: Sequence[Any],
    instances: Mapping[PartitionId, Instance],
) -> dict[PartitionId, Stamp]:
    """Returns the stamp of each partition, without those whose manifest has another type.

    Args:
        replies: Of `stamp_commands`.
        instances: Instances that serve the partitions; another run changes the stamp.
    """
    found: dict[PartitionId, Stamp] = {}
    for id_, fields, length in zip(ids, replies[::2], replies[1::2], strict=True):
        if fields is OTHER_TYPE or length is OTHER_TYPE:
            continue
        instance = instances.get(id_)
        found[id_] = (*fields, length, instance.run_id if instance is not None else None)
    return found
