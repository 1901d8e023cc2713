"""Maintenance of one partition: snapshot, retention, verification, overtaken instances."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import purged_gen
from redis_state.errors import ConfigError, Kind, UnavailableError
from redis_state.format.entry import segments_in
from redis_state.format.header import FIELD
from redis_state.format.signature import is_signed
from redis_state.ids import PartitionId
from redis_state.maintain.claims import claim, release
from redis_state.maintain.compaction import add_snapshot, deltas_of, is_due, versions_above
from redis_state.maintain.history import move_when_due
from redis_state.maintain.pinned import maintain_pins, purged_parents
from redis_state.maintain.report import MaintenanceReport, Policy
from redis_state.maintain.rotation import Since
from redis_state.maintain.verification import verify
from redis_state.progress import Progress, silent
from redis_state.protocol import PartitionClient, find_run
from redis_state.protocol.instances import TTL_MS, Instance, leave
from redis_state.protocol.texts import number_or_zero

_PATIENCE_SERVED = 2
"""Factor for served partitions: their process writes snapshots from memory, and gets more time."""


@dataclass(frozen=True, slots=True)
class _Work:
    where: str
    moves: bool
    since: Since | None
    progress: Progress


def maintain_partition(
    client: Client,
    id_: PartitionId,
    instance: Instance | None,
    policy: Policy,
    *,
    name: str,
    moves: bool = False,
    since: Since | None = None,
    progress: Progress = silent,
) -> MaintenanceReport:
    """Runs the due maintenance of one partition, unless another worker has claimed it.

    Args:
        instance: Instance that serves the partition now.
        name: Name of the query in problems.
        moves: Moves history into files, if the store wants that.
        since: The last maintenance, if nothing has changed since.
        progress: Called with the progress of each step.

    Raises:
        UnavailableError: The server does not answer.
        ConfigError: The server refuses the user.
    """
    report = MaintenanceReport()
    if not claim(client, id_, policy):
        report.left_to_others = 1
        return report
    done = False
    where = f"{name}: {id_}"
    try:
        with report.noting(where):
            work = _Work(where, moves, since, progress)
            _maintain(client, id_, instance, policy, report, work)
        done = True
    finally:
        release(client, id_, policy, done=done)
    return report


def _maintain(
    client: Client,
    id_: PartitionId,
    instance: Instance | None,
    policy: Policy,
    report: MaintenanceReport,
    work: _Work,
) -> None:
    where = work.where
    what = "examining a partition"
    meta = keys.meta(id_)
    (head, left_ms) = client.call(what, [("HMGET", meta, "f", "o", "e", "r"), ("PTTL", meta)])
    if head[0] is None or purged_gen(head[0].decode("ascii", "replace")):
        return
    report.partitions = 1
    with report.noting(where):
        if instance is not None and _is_overtaken(client, id_, instance, head):
            report.deactivated = leave(client, {id_: instance}, told_ms=TTL_MS)
            instance = None
    if policy.unsigned_too and client.signer is not None and not _is_signed(client, id_):
        client = client.without_signer()
    partition = PartitionClient(
        client, id_, versions_to_retain=1, keep_ms=max(0, left_ms), where=where
    )
    if head[0] != b"1":
        with report.noting(where):
            (manifest,) = client.call(what, [("HGETALL", meta)])
            report.unpinned = maintain_pins(client, id_, manifest)
            for problem in purged_parents(client, id_, manifest):
                report.problem(f"{where}: {problem}")
    # Pins and files change with time, snapshots and retention with the manifest alone.
    since = work.since if head[0] == b"1" and not work.moves else None
    if since is not None:
        report.lag_versions, report.lag_bytes = since.lag_versions, since.lag_bytes
    else:
        with _noting_files(client, id_, report, where=where):
            _compact(partition, instance, policy, report, work.progress)
        with report.noting(where):
            found = partition.retain()
            report.dropped, report.dropped_bytes = found.dropped, found.dropped_bytes
    if work.moves:
        _move(client, id_, report, work)
    part = None if since is None else since.round
    with _noting_files(client, id_, report, where=where):
        verify(partition, policy, report, where=where, part=part, progress=work.progress)


@contextmanager
def _noting_files(
    client: Client, id_: PartitionId, report: MaintenanceReport, *, where: str
) -> Iterator[None]:
    """Notes errors as `MaintenanceReport.noting` does, and those of a file system.

    Raises:
        UnavailableError: The server does not answer.
        ConfigError: The server refuses the user.
    """
    with report.noting(where):
        try:
            yield
        except (ConfigError, UnavailableError) as error:
            if error.kind is Kind.PERMISSION:
                raise
            # A server that does not answer ends the pass here. A folder is of one query only.
            client.call("examining a partition", [("HGET", keys.meta(id_), "f")])
            report.problem(f"{where}: {error}")


def _is_signed(client: Client, id_: PartitionId) -> bool:
    """Returns whether the base of the partition is signed, as its deltas must then be, too."""
    (raw,) = client.call("examining a partition", [("HGETALL", keys.meta(id_))])
    for segment in segments_in(raw):
        if segment.entry.header and segment.place is None:
            (head,) = client.call(
                "looking for a signature",
                [("HGET", keys.segment(id_, segment.ident, segment.gen), FIELD)],
            )
            if head is not None:
                return is_signed(bytes(head))
    return True


def _is_overtaken(
    client: Client, id_: PartitionId, instance: Instance, head: list[bytes | None]
) -> bool:
    """Returns whether a newer run than the instance's has taken the partition."""
    epoch, holder = head[2:]
    if holder is None or holder == instance.run_id.encode():
        return False
    of = id_.store
    run = find_run(client, of.gen, instance.run_id, tenant=of.tenant)
    held = number_or_zero(epoch)
    return run is not None and run.epoch < held


def _compact(
    partition: PartitionClient,
    instance: Instance | None,
    policy: Policy,
    report: MaintenanceReport,
    progress: Progress,
) -> None:
    opened = partition.open("", None, hot_runs=True)
    if opened.pin.version == 0:
        return
    patience = 1 if instance is None else _PATIENCE_SERVED
    deltas = deltas_of(opened.segments)
    lag_versions, lag_bytes = versions_above(opened.segments), sum(d.entry.bytes for d in deltas)
    changes = sum(segment.entry.rows for segment in opened.segments[:-1])
    if is_due(opened.segments, patience=patience) and changes <= policy.changes_max:
        # No version depends on a hot run, so that none has to be whole.
        entry = add_snapshot(partition, partition.open("", None), progress=progress)
        if entry is not None:
            report.snapshots, report.snapshot_bytes = 1, entry.bytes
            lag_versions = lag_bytes = 0
        else:
            report.snapshots_missed = 1
    report.lag_versions, report.lag_bytes = lag_versions, lag_bytes


def _move(client: Client, id_: PartitionId, report: MaintenanceReport, work: _Work) -> None:
    """Moves history into files; a folder that cannot be written stops no other query's pass."""
    with report.noting(work.where):
        try:
            moved = move_when_due(client, id_, progress=work.progress)
        except (ConfigError, UnavailableError) as error:
            report.problem(f"{work.where}: {error}")
            return
        report.moved, report.moved_bytes = moved.segments, moved.bytes
