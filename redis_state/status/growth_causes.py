"""Causes of growing state that the metadata of a query shows, with advice.

Each check is a function from the history of a store to the causes that it finds. All of them use
manifests, headers and the registry only; `docs/commands.md` describes the evidence of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import median

from redis_state.errors import ConfigError
from redis_state.format.entry import Entry
from redis_state.format.header import Family, Header
from redis_state.ids import DEFAULT_STORE
from redis_state.protocol.pins import FORK, KEEP
from redis_state.protocol.quota import WARN_SHARE
from redis_state.status.block_times import times_of_blocks
from redis_state.status.file_causes import file_causes
from redis_state.status.growth import Cause, CauseKind
from redis_state.status.query_status import Hold, PartitionStatus, QueryStatus
from redis_state.status.retained_versions import PartitionHistory, StoreHistory

_BATCHES_MIN = 5
_GROWTH_MIN = 1.05
_ROWS_MIN = 100
_UNEVEN = 3
_INTERNAL = 3
_KEPT = 3
_UNTOUCHED = 0.8
_DROPPABLE_MIN = 10
_BYTES_MIN = 64 << 10
# A part of a bucket has this many bytes before it is compressed; 16 of them are a megabyte.
_PART_BYTES = 64 << 10
_PARTS_FAT = 16
_VALUE_FAT_BYTES = 64 << 10
_VALUE_FAT_TIMES = 4
_STALE_TIMES = 5
_BLOCKS_MIN = 10
_HOUR_MS = 3_600_000
_NO_TTL = ("transformWithState", "symmetricHashJoin")
"""Beginnings of names of operators that refuse stateTtl if they have one store; joins have four."""

_SPARK_WATERMARK = (
    "Redis does not have Spark's watermark: see eventTime.watermark in query.lastProgress, or in "
    "the Spark UI."
)


def causes_of(
    query: QueryStatus, stores: Sequence[StoreHistory], older: Sequence[QueryStatus]
) -> list[Cause]:
    """Returns all visible causes, the most telling first.

    Args:
        older: Earlier checkpoints of the same folder.
    """
    found = [cause for store in stores for look in _LOOKS for cause in look(store)]
    found += [*_older(query, older), *_near_limit(query), *_pinned(query)]
    found += file_causes(query)
    order = list(CauseKind)
    return sorted(found, key=lambda cause: order.index(cause.kind))


def _near_limit(query: QueryStatus) -> Iterator[Cause]:
    """Reports a nearby limit: not a cause of growth, but its end."""
    limits = (
        ("stateBytesMax", query.bytes, query.bytes_max, "The query"),
        ("prefixBytesMax", query.prefix_bytes, query.prefix_bytes_max, "All of the key prefix"),
    )
    for option, size, limit, whose in limits:
        if limit and size >= WARN_SHARE * limit:
            yield Cause(
                CauseKind.NEAR_LIMIT,
                f"{whose} has {size:,} of the {limit:,} bytes that the option {option} allows.",
                "At the limit the query stops with QUOTA. Raise it, keep fewer versions, or "
                "remove state; the causes below show where it comes from.",
            )


def _cause(of: StoreHistory, kind: CauseKind, found: str, advice: str, *partitions: int) -> Cause:
    return Cause(kind, found, advice, of.status.operator, of.status.store, tuple(partitions))


def _growth(of: StoreHistory) -> Iterator[Cause]:
    """Checks the number of keys over the retained versions: it never falls, or no longer does."""
    live = list(of.live.items())
    falls = [at for (_, before), (at, after) in pairwise(live) if after < before]
    start = falls[-1] if falls else live[0][0] if live else 0
    batches = [at for at, _ in live if at > start]
    if len(batches) < _BATCHES_MIN:
        return
    first, last = of.live[start], of.live[batches[-1]]
    if last < max(_ROWS_MIN, first * _GROWTH_MIN) or last <= of.live[batches[-_BATCHES_MIN]]:
        return
    seen = f"in the last {len(batches)} batches the keys rose from {first:,} to {last:,}"
    if len(falls) > 1:
        gap = max(after - before for before, after in pairwise(falls))
        if len(batches) > 3 * gap:
            yield _cause(
                of,
                CauseKind.REMOVALS_STOPPED,
                f"Keys were removed up to version {start}, but not since: {seen}.",
                "The watermark is stuck, or the job no longer removes keys: does the event time "
                f"of the input still advance? {_watermark_advice(of)}",
            )
        return
    if falls:
        return
    watermark_ms = of.status.watermark_ms
    if watermark_ms == 0:
        yield _cause(
            of,
            CauseKind.NO_WATERMARK,
            f"No batch has a watermark, and the number of keys never fell: {seen}.",
            "Give the input withWatermark, or have the processor clear its state, by a time to "
            "live or a timer.",
        )
    elif watermark_ms is not None and of.status.began_ms - watermark_ms > _HOUR_MS:
        yield _cause(
            of,
            CauseKind.WATERMARK_BEHIND,
            f"The watermark is {(of.status.began_ms - watermark_ms) // _HOUR_MS:,} hours behind "
            f"the clock, and the number of keys never fell: {seen}.",
            "Is the input old, or does its event time not advance? A shorter delay in "
            "withWatermark removes keys earlier.",
        )
    else:
        yield _cause(
            of,
            CauseKind.NOTHING_REMOVED,
            f"The number of keys never fell: {seen}.",
            _expiry_advice(of),
        )


def _expiry_advice(of: StoreHistory) -> str:
    """Returns what may remove keys of a store from which no batch removed any."""
    if of.expires:
        return (
            "Its keys have a time to live, and count until a snapshot leaves the expired ones out. "
            "A shorter stateTtl removes keys earlier."
        )
    advice = f"The query has no watermark, or it is stuck, or its keys never expire.{_ttl(of)}"
    return " ".join(filter(None, (advice, _watermark_advice(of))))


def _ttl(of: StoreHistory) -> str:
    """Returns the advice to set a time to live, for operators that take one."""
    refuses = of.status.store == DEFAULT_STORE and of.status.name.startswith(_NO_TTL)
    return "" if refuses else " The option stateTtl removes keys that no batch writes again."


def _watermark_advice(of: StoreHistory) -> str:
    return _SPARK_WATERMARK if of.status.watermark_ms is None else ""


def _old_keys(of: StoreHistory) -> Iterator[Cause]:
    """Checks families ordered by time for old blocks at their beginning."""
    for one in of.partitions:
        if one.header is None or one.base is None:
            continue
        for family in one.header.families or ():
            found = _stale(of, one, one.header, family)
            if found:
                yield _cause(
                    of,
                    CauseKind.OLD_KEYS,
                    found,
                    "Such keys should have been removed: timers and windows expire once the "
                    f"watermark has passed them. {_watermark_advice(of)}",
                    one.status.partition,
                )
                return


def _stale(of: StoreHistory, one: PartitionHistory, header: Header, family: Family) -> str:
    try:
        times = times_of_blocks(family, header)
    except ConfigError:
        # Keys in Avro need a package that may be missing; then their age is unknown.
        return ""
    if len(times) < _BLOCKS_MIN or one.base is None:
        return ""
    watermark_ms = of.status.watermark_ms
    if watermark_ms:
        # A block is older as a whole if the next one begins below the watermark.
        below = sum(at_ms < watermark_ms for at_ms in times[1:])
        blocks = sum(map(len, header.ordered.values()))
        rows = below * one.base.entry.rows // max(1, blocks)
        later = sum(entry.rows for at, entry in one.deltas.items() if at > one.base.version)
        if rows - later >= _ROWS_MIN:
            return f"About {rows - later:,} keys of '{family.name}' are older than the watermark."
        return ""
    gap_ms, at = max((after - before, at) for at, (before, after) in enumerate(pairwise(times), 1))
    newer_ms = times[-1] - times[at]
    # Timers that are due now are far before those of tomorrow, too; old ones lie in the past.
    past = times[at - 1] < of.now_ms - _HOUR_MS
    if past and at <= len(times) // 2 and gap_ms > max(_HOUR_MS, _STALE_TIMES * newer_ms):
        hours = (times[-1] - times[0]) // _HOUR_MS
        return (
            f"The oldest keys of '{family.name}' are {hours:,} hours behind its newest, and most "
            f"others within {newer_ms // _HOUR_MS + 1:,}."
        )
    return ""


def _fat_key(of: StoreHistory) -> Iterator[Cause]:
    """Checks for a bucket with many parts, and for batches with few rows of many bytes."""
    advice = (
        "Find it by the size of its value, or of a join by the number of its rows: `redis-state "
        "scan --columns …`. Usual causes are null, empty and default keys: filter them out."
    )
    for one in of.partitions:
        parts = max(one.header.parts.values(), default=1) if one.header is not None else 1
        if parts >= _PARTS_FAT:
            yield _cause(
                of,
                CauseKind.FAT_KEY,
                f"One bucket of keys holds more than {(parts - 1) * _PART_BYTES / 1e6:,.1f} MB "
                "uncompressed: one key has a large value, or one join key many rows.",
                advice,
                one.status.partition,
            )
            return
    for one in of.partitions:
        rows = {at: _bytes_a_row(entry) for at, entry in one.deltas.items() if entry.rows}
        if not rows or one.base is None:
            continue
        at = max(rows, key=lambda version: rows[version])
        usual = median(rows.values())
        if one.base.entry.rows:
            usual = min(usual, _bytes_a_row(one.base.entry))
        if rows[at] >= _VALUE_FAT_BYTES and rows[at] >= _VALUE_FAT_TIMES * usual:
            entry = one.deltas[at]
            yield _cause(
                of,
                CauseKind.FAT_KEY,
                f"Version {at} changed {entry.rows:,} rows with {entry.bytes:,} bytes: "
                f"{rows[at]:,.0f} a row, where others have {usual:,.0f}.",
                advice,
                one.status.partition,
            )
            return


def _bytes_a_row(entry: Entry) -> float:
    return entry.bytes / max(1, entry.rows)


def _uneven(of: StoreHistory) -> Iterator[Cause]:
    all_ = [one for one in of.status.partitions if not one.problem]
    if len(all_) < 2:
        return
    largest = max(all_, key=lambda one: one.rows)
    others = (of.status.rows - largest.rows) / (len(all_) - 1)
    if largest.rows >= _ROWS_MIN and largest.rows >= _UNEVEN * max(1.0, others):
        yield _cause(
            of,
            CauseKind.UNEVEN_PARTITIONS,
            f"Partition {largest.partition} has {largest.rows:,} keys, the others {others:,.0f} on "
            "average.",
            "A few values of the grouping columns have most keys: see `redis-state skew`. Group "
            "by more columns, or split the large value.",
            largest.partition,
        )


def _internal(of: StoreHistory) -> Iterator[Cause]:
    if of.status.internal_rows >= max(_ROWS_MIN, _INTERNAL * of.status.rows):
        yield _cause(
            of,
            CauseKind.INTERNAL_KEYS,
            f"There are {of.status.internal_rows:,} internal keys (timers, expiry indexes, "
            f"counts) for {of.status.rows:,} keys.",
            "Timers are registered and never deleted, or lie far in the future: does the "
            "processor register one for each row? Delete the old timer first.",
        )


def _versions(of: StoreHistory) -> Iterator[Cause]:
    """Checks the versions kept besides the newest one, and the reason for keeping them."""
    kept = [one for one in of.status.partitions if one.kept]
    late = [one for one in kept if one.held_by is Hold.MAINTENANCE and _over(one)]
    stuck = [one for one in kept if one.held_by is Hold.SNAPSHOT and _over(one)]
    if stuck:
        worst = max(stuck, key=lambda one: one.kept)
        yield _cause(
            of,
            CauseKind.NO_SNAPSHOT,
            f"Partition {worst.partition} keeps {worst.kept:,} versions instead of "
            f"{worst.wanted:,}: it has no newer snapshot that they could build on.",
            "Snapshots fail, or are not made: look for 'snapshot' in the executors' log, or run "
            "`redis-state maintain --once`.",
            *(one.partition for one in stuck),
        )
    if late:
        worst = max(late, key=lambda one: one.kept)
        yield _cause(
            of,
            CauseKind.LATE_MAINTENANCE,
            f"Partition {worst.partition} keeps {worst.kept:,} versions instead of "
            f"{worst.wanted:,}, and nothing needs the others.",
            "Maintenance does not keep up: is the query stopped? Run `redis-state maintain "
            "--once`, and see spark.sql.streaming.stateStore.maintenanceInterval.",
            *(one.partition for one in late),
        )
    if not late and not stuck:
        yield from _kept_versions(of)


def _over(one: PartitionStatus) -> bool:
    return one.confirmed - one.wanted - one.oldest > max(_DROPPABLE_MIN, one.wanted)


def _kept_versions(of: StoreHistory) -> Iterator[Cause]:
    newest = 0.0
    for one in of.partitions:
        if one.base is not None:
            rows = one.status.rows + one.status.internal_rows
            newest += _bytes_a_row(one.base.entry) * rows
    total = of.status.bytes - sum(one.pinned_bytes for one in of.status.partitions)
    if newest and total - newest >= _BYTES_MIN and total - newest > _KEPT * newest:
        deltas = [entry.bytes for one in of.partitions for entry in one.deltas.values()]
        batches = max((len(one.deltas) for one in of.partitions), default=0)
        wanted = max(one.wanted for one in of.status.partitions)
        yield _cause(
            of,
            CauseKind.KEPT_VERSIONS,
            f"{total:,} bytes are kept where the newest version needs about {newest:,.0f}: a batch "
            f"changes about {sum(deltas) / max(1, batches):,.0f} bytes, and {wanted:,} versions "
            "are kept.",
            "Lower versionsToRetain (spark.sql.streaming.minBatchesToRetain is what Spark itself "
            "needs), or change fewer rows a batch.",
        )


def _untouched(of: StoreHistory) -> Iterator[Cause]:
    """Checks for rows that no kept batch can have touched; the number is a lower bound."""
    rows = left = of.status.rows
    untouched = 0, 0
    for batches, changed in enumerate(reversed(list(of.changed.values())), 1):
        left -= changed
        if left < _UNTOUCHED * rows:
            break
        untouched = batches, left
    batches, left = untouched
    if batches >= _BATCHES_MIN and rows >= _ROWS_MIN:
        yield _cause(
            of,
            CauseKind.UNTOUCHED_ROWS,
            f"At least {left:,} of {rows:,} keys were not touched in the last {batches} batches.",
            "They go when their time to live is over; a shorter stateTtl removes them earlier."
            if of.expires
            else "If they are not needed, remove them by a watermark, a timer, or a time to live."
            + _ttl(of),
        )


def _pinned(query: QueryStatus) -> Iterator[Cause]:
    """Reports bytes that only forks and kept versions hold."""
    if query.pinned_bytes < _BYTES_MIN:
        return
    forks = [one.title or one.owner for one in query.pins if one.bytes and one.kind == FORK]
    kept = [one.owner for one in query.pins if one.bytes and one.kind == KEEP]
    whose = [
        *([f"forks ({', '.join(forks)})"] if forks else []),
        *([f"kept versions ({', '.join(kept)})"] if kept else []),
    ]
    advice = [
        *([f"Drop a kept version: `redis-state keep {query.title} --drop NAME`."] if kept else []),
        *(["Purge a fork that is no longer needed, or detach it."] if forks else []),
    ]
    yield Cause(
        CauseKind.PINNED,
        f"{query.pinned_bytes:,} bytes are held only by {' and '.join(whose) or 'ended pins'}.",
        " ".join(advice) or "The next maintenance drops them: `redis-state maintain --once`.",
    )


def _older(query: QueryStatus, older: Sequence[QueryStatus]) -> Iterator[Cause]:
    if query.replaced_by:
        yield Cause(
            CauseKind.OLDER_CHECKPOINT,
            "The folder of this checkpoint was deleted and created again, but its state remains.",
            f"If it is no longer needed: `redis-state purge --gen {query.gen}`.",
        )
    left = sorted((one for one in older if one.bytes), key=lambda one: -one.bytes)
    if left:
        total = sum(one.bytes for one in left)
        which = f"{len(left)} older checkpoints" if len(left) > 1 else "An older checkpoint"
        yield Cause(
            CauseKind.OLDER_CHECKPOINT,
            f"{which} of the same folder still hold{'' if len(left) > 1 else 's'} {total:,} bytes.",
            f"If they are no longer needed: `redis-state purge --gen {left[0].gen}`"
            + (", and so on." if len(left) > 1 else "."),
        )


_LOOKS: tuple[Callable[[StoreHistory], Iterator[Cause]], ...] = (
    _growth,
    _old_keys,
    _fat_key,
    _uneven,
    _internal,
    _versions,
    _untouched,
)
