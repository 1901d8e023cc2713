"""Diagnosis of the batches that Redis can serve, partition by partition; changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import OTHER_TYPE, purged_gen
from redis_state.backend.script import Command
from redis_state.errors import FormatError
from redis_state.format.entry import Segment, placed_segment
from redis_state.ids import PartitionId
from redis_state.places.reading import files_of
from redis_state.progress import Progress, silent
from redis_state.protocol.foreign import parent_problem
from redis_state.protocol.newest_batch import NewestBatch
from redis_state.protocol.registry import (
    QueryInfo,
    counted_partitions,
    list_queries,
    listed_partitions,
    newest_of_folder,
    parse_operators,
)
from redis_state.protocol.runs import PURGED_FIELD

_WHAT = "examining a partition"
_SEGMENTS_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class PartitionHealth:
    """Versions of one partition in Redis.

    Attributes:
        latest: Newest version on the living timeline; 0 without any.
        opened: Newest version that a task of the last run opened.
        floor: Retention keeps nothing below this version.
        loadable: Versions on the living timeline that load, including 0.
        broken: Idents of segments that are not whole.
        present: True if the partition has a manifest.
        problem: Reason why the versions are unknown; empty if they are known.
        purged: True if the partition expires, because its checkpoint was purged within the last
            day.
        parent: Explains that a checkpoint with segments of this fork was purged; empty if none was.
        ahead: Batch b writes version b + `ahead`.
        first: First batch of the store. The state after an earlier batch is the state before
            `first`.
    """

    id: PartitionId
    latest: int = 0
    opened: int = 0
    floor: int = 0
    loadable: frozenset[int] = frozenset({0})
    broken: tuple[str, ...] = ()
    present: bool = True
    problem: str = ""
    purged: bool = False
    parent: str = ""
    ahead: int = 1
    first: int = 0

    def serves(self, batch: int) -> bool:
        """Returns whether the state after a batch loads."""
        return max(batch, self.first - 1) + self.ahead in self.loadable


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Diagnosis of the checkpoints of a query.

    Attributes:
        purged: Checkpoints that expire, because they were purged within the last day.
    """

    partitions: tuple[PartitionHealth, ...]
    purged: tuple[str, ...] = ()

    def serves(self, batch: int) -> bool:
        """Returns whether every partition of every store serves the state after a batch."""
        return bool(self.partitions) and all(one.serves(batch) for one in self.partitions)

    def newest_batch(self, *, among: Collection[int] | None = None) -> int | None:
        """Returns the newest batch after which the query can continue; ``None`` if there is none.

        Args:
            among: See `batches`.
        """
        return max(self.batches(among=among), default=None)

    def batches(
        self, *, among: Collection[int] | None = None, since: int | None = None
    ) -> list[int]:
        """Returns the batches after which the query can continue, oldest first.

        Args:
            among: Batches after which Spark can continue; ``None`` if unknown.
            since: The lowest batch to return; ``None`` means any.
        """
        if among is None:
            among = {v - one.ahead for one in self.partitions for v in one.loadable if v > 0}
        candidates = among if since is None else [batch for batch in among if batch >= since]
        return sorted(batch for batch in candidates if self.serves(batch))


def diagnose(
    client: Client, *gens: str, tenant: str = "", progress: Progress = silent
) -> Diagnosis:
    """Diagnoses every partition of the checkpoints of a query.

    Raises:
        FormatError: The description of the query is damaged.
        UnavailableError: The server does not answer.
    """
    found, purged = [], []
    for gen in gens:
        partitions, is_purged = _look(client, gen, tenant, progress)
        found += partitions
        if is_purged or any(one.purged for one in partitions):
            purged.append(gen)
    return Diagnosis(tuple(found), tuple(purged))


def _look(
    client: Client, gen: str, tenant: str, progress: Progress
) -> tuple[list[PartitionHealth], bool]:
    """Returns the partitions of a checkpoint, and whether the checkpoint is marked as purged."""
    (raw,) = client.call("examining a query", [("HGETALL", keys.query(gen, tenant=tenant))])
    operators = parse_operators(raw)
    ids = counted_partitions(client, gen, operators.values(), tenant=tenant)
    if not ids:
        # Only the query's hash was lost, which a cluster may keep on another server. The next start
        # of the query writes it again.
        ids = [
            id_
            for info in list_queries(client, tenant=tenant)
            if info.gen == gen
            for id_ in listed_partitions(info, tenant=tenant)
        ]
    found = []
    for number, id_ in enumerate(ids, 1):
        place = id_.store.operator, id_.store.store
        counted = raw.get(f"batch:{place[0]}:{place[1]}".encode())
        newest = None if counted is None else NewestBatch.parse(counted)
        ahead, first = (1, 0) if newest is None else (newest.ahead, newest.first)
        found.append(replace(look_at(client, id_), ahead=ahead, first=first))
        progress("examining partitions", number, len(ids))
    return found, PURGED_FIELD.encode() in raw


def others_of_folder(
    client: Client, gen: str, *, tenant: str = ""
) -> tuple[QueryInfo | None, list[QueryInfo]]:
    """Finds other checkpoints of the same folder, which was recreated or rescaled.

    Returns:
        The checkpoint that replaced this one, or ``None``; and the checkpoints that this one
        replaced.

    Raises:
        UnavailableError: The server does not answer.
    """
    queries = list_queries(client, tenant=tenant)
    own = next((info for info in queries if info.gen == gen and info.path), None)
    if own is None:
        return None, []
    newest = newest_of_folder(queries, own)
    if newest.gen != gen:
        return newest, []
    return None, [info for info in queries if info.path == own.path and info.gen != gen]


def listing_problem(client: Client, gen: str, *, tenant: str = "") -> str:
    """Returns the problem of a checkpoint's unreadable entry in the list; empty without any.

    Raises:
        UnavailableError: The server does not answer.
    """
    found = (info for info in list_queries(client, tenant=tenant) if info.gen == gen)
    return next((info.problem for info in found), "")


def look_at(client: Client, id_: PartitionId) -> PartitionHealth:
    """Diagnoses one partition.

    Raises:
        UnavailableError: The server does not answer.
    """
    (raw,) = client.call(_WHAT, [("HGETALL", keys.meta(id_))], of_other_type=OTHER_TYPE)
    if raw is OTHER_TYPE:
        problem = "its manifest is a key of another type"
        return PartitionHealth(id_, loadable=frozenset(), problem=problem)
    if not raw:
        return PartitionHealth(id_, present=False, problem="it has no manifest")
    try:
        fields = {name.decode("ascii"): value.decode("ascii") for name, value in raw.items()}
        segments = [
            placed_segment(raw, name, value)
            for name, value in raw.items()
            if name[:2] in (b"d:", b"s:")
        ]
        numbers = [int(fields.get(name, "0")) for name in ("l", "o", "w")]
    except (FormatError, ValueError) as error:
        return PartitionHealth(
            id_, loadable=frozenset(), problem=f"its manifest is damaged: {error}"
        )
    if purged_gen(fields.get("f", "")):
        problem = "it was purged, and its keys expire within a day of the purge"
        return PartitionHealth(id_, loadable=frozenset(), problem=problem, purged=True)
    broken = _broken(client, id_, segments)
    newest = _newest(fields, latest=numbers[0], opened=numbers[1])
    loadable = _loadable(segments, *newest, broken)
    names = tuple(sorted(segment.ident for segment in broken))
    gens = sorted({segment.gen for segment in segments if segment.gen})
    parents = [found for gen in gens if (found := parent_problem(client, id_, gen))]
    parent = "; ".join(f"{told}: {advice}" for told, advice in parents)
    return PartitionHealth(id_, numbers[0], numbers[1], numbers[2], loadable, names, parent=parent)


def _newest(fields: Mapping[str, str], *, latest: int, opened: int) -> tuple[int, str]:
    """Returns the newest version that a run finds by number, and its uid (docs/format.md, 3.2)."""
    found = latest, fields.get("lu", "-")
    if latest == opened:
        # The run that holds the partition has no newer version, so a contender's attempt counts.
        for contender in fields.get("k", "").split():
            _, _, uids = contender.partition(":")
            found = (opened + 1, uids.split(",")[-1]) if uids else found
    return found


def _broken(client: Client, id_: PartitionId, segments: Sequence[Segment]) -> set[Segment]:
    """Returns the segments that lack blocks, in Redis or in their files."""
    with_key = [one for one in segments if one.entry.blocks and one.place is None]
    files = files_of(client)
    broken = {
        one for one in segments if one.place is not None and not files.is_whole(client, id_, one)
    }
    for start in range(0, len(with_key), _SEGMENTS_AT_ONCE):
        chunk = with_key[start : start + _SEGMENTS_AT_ONCE]
        commands: list[Command] = [("HLEN", keys.segment(id_, one.ident, one.gen)) for one in chunk]
        for segment, blocks in zip(chunk, client.call(_WHAT, commands), strict=True):
            # The parent of a fork may have moved it, or maintenance just now.
            if blocks != segment.entry.blocks and not files.is_whole(client, id_, segment):
                broken.add(segment)
    return broken


def _loadable(
    segments: Sequence[Segment], latest: int, uid: str, broken: set[Segment]
) -> frozenset[int]:
    """Returns the versions of the timeline ending at (latest, uid) whose segments are whole."""
    by_field: Mapping[str, Segment] = {segment.field: segment for segment in segments}
    timeline: list[tuple[Segment | None, Segment | None]] = []
    version = latest
    while version > 0:
        delta = by_field.get(f"d:{version}:{uid}")
        timeline.append((delta, by_field.get(f"s:{version}:{uid}")))
        if delta is None:
            break
        version, uid = version - 1, delta.entry.ref
    loads = version == 0
    found = {0}
    for at, (delta, snapshot) in enumerate(reversed(timeline), latest - len(timeline) + 1):
        whole = delta is not None and delta not in broken
        loads = whole and (loads or (delta is not None and delta.alone))
        loads = loads or (snapshot is not None and snapshot not in broken)
        if loads:
            found.add(at)
    return frozenset(found)
