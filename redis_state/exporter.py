"""Metrics for Prometheus: query status, and the counts of instances.

Each scrape reads only metadata. Gauges come from the status of the queries. Counters come from the
totals that instances publish with their heartbeats (docs/format.md, section 9). This process adds
up their increases to one counter for each store, starting from the totals at its own start.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from redis_state.clock import SYSTEM, Clock
from redis_state.errors import RedisStateError
from redis_state.live import Reader
from redis_state.protocol.pins import FORK, KEEP
from redis_state.reader import QueryStatus, StoreStatus
from redis_state.status.query_status import fullest
from redis_state.status.totals import CheckpointStore, ErrorIncreases, Increases

_LOG = logging.getLogger("redis_state.exporter")
_BUSY_SHARE = 0.1
_FRESH_S_MAX = 60.0
_OF_A_QUERY = ("query", "gen")
_OF_A_STORE = (*_OF_A_QUERY, "operator", "store")


@dataclass(frozen=True, slots=True)
class _CounterMetric:
    name: str
    counts: str
    meaning: str
    per_unit: float = 1.0


_COUNTERS = (
    _CounterMetric("redis_state_opens", "opens", "Versions that were opened."),
    _CounterMetric("redis_state_open_seconds", "openMs", "Time to open versions.", 1000.0),
    _CounterMetric("redis_state_loads", "loads", "Versions that had to be read from Redis."),
    _CounterMetric(
        "redis_state_load_seconds", "loadMs", "Time to read versions from Redis.", 1000.0
    ),
    _CounterMetric("redis_state_commits", "commits", "Versions that were committed."),
    _CounterMetric("redis_state_commit_seconds", "commitMs", "Time to commit.", 1000.0),
    _CounterMetric("redis_state_rows_written", "rowsWritten", "Rows that commits put."),
    _CounterMetric("redis_state_rows_removed", "rowsRemoved", "Rows that commits removed."),
    _CounterMetric("redis_state_sent_bytes", "bytesSent", "Bytes sent to Redis."),
    _CounterMetric("redis_state_file_reads", "fileReads", "Reads from files."),
    _CounterMetric(
        "redis_state_file_read_seconds", "fileReadMs", "Time to read from files.", 1000.0
    ),
    _CounterMetric("redis_state_file_read_bytes", "fileBytes", "Bytes read from files."),
    _CounterMetric("redis_state_moved_bytes", "movedBytes", "Bytes moved into files."),
    _CounterMetric("redis_state_failed_moves", "failedMoves", "Moves of history that failed."),
    _CounterMetric("redis_state_room_waits", "roomWaits", "Calls that waited for a full share."),
    _CounterMetric(
        "redis_state_room_wait_seconds",
        "roomWaitMs",
        "Time that calls waited for a full share.",
        1000.0,
    ),
)

_Gauge = tuple[str, str, Callable[[QueryStatus], "float | None"]]
_GaugeOfStore = tuple[str, str, Callable[[StoreStatus], "float | None"]]

_QUERY_GAUGES: tuple[_Gauge, ...] = (
    (
        "redis_state_query_alive",
        "1 while a driver, an owner or a late write shows that the query runs.",
        lambda query: float(query.alive),
    ),
    (
        "redis_state_confirmed_batch",
        "Newest batch that every partition has confirmed.",
        lambda query: query.confirmed_batch,
    ),
    (
        "redis_state_newest_batch",
        "Newest batch that any partition has published.",
        lambda query: query.newest_batch,
    ),
    (
        "redis_state_last_write_timestamp_seconds",
        "Time of the last write of a partition, to the minute.",
        lambda query: _seconds(query.written_ms),
    ),
    (
        "redis_state_driver_timestamp_seconds",
        "Time of the driver's last heartbeat.",
        lambda query: _seconds(query.driver_ms),
    ),
    (
        "redis_state_limit_bytes",
        "Limit set by stateBytesMax.",
        lambda query: query.bytes_max or None,
    ),
    (
        "redis_state_prefix_limit_bytes",
        "Limit set by prefixBytesMax for all queries of the key prefix.",
        lambda query: query.prefix_bytes_max or None,
    ),
    (
        "redis_state_limit_ratio",
        "Bytes divided by the nearer limit; at 1 the query stops.",
        lambda query: query.limit_share,
    ),
    (
        "redis_state_copy_every_batches",
        "Batches between two copies of the state, set by copyEveryBatches.",
        lambda query: query.copy_every or None,
    ),
    (
        "redis_state_copied_batch",
        "Newest batch whose state the driver has copied.",
        lambda query: query.copied_batch,
    ),
    (
        "redis_state_copy_timestamp_seconds",
        "Time of that copy.",
        lambda query: _seconds(query.copied_ms),
    ),
    (
        "redis_state_problems",
        "Number of problems of the query and its partitions; `redis-state show` lists them.",
        lambda query: len(query.problems),
    ),
)

_STORE_GAUGES: tuple[_GaugeOfStore, ...] = (
    ("redis_state_partitions", "Partitions.", lambda store: len(store.partitions)),
    (
        "redis_state_served_partitions",
        "Partitions that a process serves and reported within the last minute.",
        lambda store: sum(one.owner is not None for one in store.partitions),
    ),
    (
        "redis_state_rows",
        "Keys of the confirmed versions, without internal ones.",
        lambda store: store.rows,
    ),
    (
        "redis_state_internal_rows",
        "Keys that Spark or a processor keeps for itself, such as timers.",
        lambda store: store.internal_rows,
    ),
    ("redis_state_bytes", "Bytes of everything that manifests name.", lambda store: store.bytes),
    (
        "redis_state_pinned_bytes",
        "Bytes of segments that only forks and kept versions hold.",
        lambda store: sum(one.pinned_bytes for one in store.partitions),
    ),
    (
        "redis_state_foreign_bytes",
        "Bytes of segments that a fork reads from its parent.",
        lambda store: sum(one.foreign_bytes for one in store.partitions),
    ),
    (
        "redis_state_file_bytes",
        "Bytes of segments in files, which are not in Redis.",
        lambda store: sum(one.file_bytes for one in store.partitions),
    ),
    (
        "redis_state_share_bytes",
        "Share of redisMemory that each partition has.",
        lambda store: max((one.share for one in store.partitions), default=0) or None,
    ),
    (
        "redis_state_share_ratio",
        "Used part of the fullest share; maintenance keeps a sixth of each free.",
        lambda store: fullest(store.partitions),
    ),
    (
        "redis_state_share_change_ratio",
        "Part of a share that the largest kept change takes; above 1 a batch fails with NO_ROOM.",
        lambda store: max(
            (one.largest_change / one.share for one in store.partitions if one.share), default=None
        ),
    ),
    (
        "redis_state_history_bytes",
        "Bytes in Redis of what the newest snapshot makes history; it may wait for a file.",
        lambda store: sum(one.history_bytes for one in store.partitions),
    ),
    (
        "redis_state_delta_bytes",
        "Bytes of all kept deltas.",
        lambda store: sum(one.delta_bytes for one in store.partitions),
    ),
    (
        "redis_state_kept_versions",
        "Most versions that a partition keeps.",
        lambda store: max((one.kept for one in store.partitions), default=None),
    ),
    (
        "redis_state_wanted_versions",
        "Versions that the query asks to keep.",
        lambda store: max((one.wanted for one in store.partitions), default=None),
    ),
    (
        "redis_state_largest_partition_ratio",
        "Rows of the largest partition over their mean.",
        lambda store: _skew([one.rows + one.internal_rows for one in store.partitions]),
    ),
    (
        "redis_state_watermark_timestamp_seconds",
        "Watermark of the newest batch, where Redis knows it.",
        lambda store: _seconds(store.watermark_ms or 0),
    ),
)


_ERROR_COUNTERS = (
    ("redis_state_fenced", "fenced", "Tasks that failed because another run continues."),
    ("redis_state_lost", "lost", "Tasks that failed because Redis has lost their state."),
)

_PINS = "redis_state_pins"
_FILES = "redis_state_files"
_FILES_BYTES = "redis_state_files_bytes"

METRICS = (
    *(name for name, _, _ in (*_QUERY_GAUGES, *_STORE_GAUGES)),
    _PINS,
    _FILES,
    _FILES_BYTES,
    *(f"{counter.name}_total" for counter in _COUNTERS),
    *(f"{name}_total" for name, _, _ in _ERROR_COUNTERS),
)
"""Names of all metrics except `redis_state_up`."""


class QueryCollector(Collector):
    """Collects metrics of one Redis, database and key prefix for each scrape; thread-safe.

    A scrape never fails: if Redis does not answer, `redis_state_up` is 0, and the log has the
    reason.
    Reading takes at most a tenth of the time, or happens once a minute. Scrapes in between get the
    previous result, however many there are.
    """

    def __init__(self, reader: Reader, *, clock: Clock = SYSTEM) -> None:
        self._reader = reader
        self._clock = clock
        self._lock = threading.Lock()
        self._metrics: Sequence[Metric] = ()
        self._fresh_until_s = 0.0
        self._counted = Increases()
        self._failed = ErrorIncreases(clock)

    def describe(self) -> Iterable[Metric]:
        """Returns nothing, so that registering the collector sends no request to Redis."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of one scrape."""
        with self._lock:
            began_s = self._clock.monotonic_s()
            if not self._metrics or began_s >= self._fresh_until_s:
                found = self._look()
                self._metrics = [_up(0.0 if found is None else 1.0), *(found or ())]
                ended_s = self._clock.monotonic_s()
                # A server that did not answer is asked again sooner.
                share = 1.0 if found is None else 1 / _BUSY_SHARE - 1
                self._fresh_until_s = ended_s + min((ended_s - began_s) * share, _FRESH_S_MAX)
            metrics = self._metrics
        yield from metrics

    def _look(self) -> list[Metric] | None:
        """Returns the metrics; ``None`` if Redis gave no answer."""
        try:
            queries = [one for one in self._reader.status() if not one.replaced_by]
            gens = [one.gen for one in queries]
            counted = self._reader.counted(gens)
            sums = self._counted.add({gen: one.totals for gen, one in counted.items()})
            errors = self._failed.add({gen: one.errors for gen, one in counted.items()})
            return [*_gauges(queries), *_counters(queries, sums), *_errors(queries, errors)]
        except RedisStateError as error:
            _LOG.warning("Redis could not be read: %s", error)
        except Exception:  # noqa: BLE001  # foreign entries may cause any exception
            # An exception would fail the scrape, and take even `redis_state_up` away.
            _LOG.exception("the reply of Redis could not be shown")
        return None


def _up(value: float) -> Metric:
    up = GaugeMetricFamily("redis_state_up", "1 if Redis answered this scrape.")
    up.add_metric([], value)
    return up


def _gauges(queries: Iterable[QueryStatus]) -> Iterator[Metric]:
    for name, meaning, of_query in _QUERY_GAUGES:
        family = GaugeMetricFamily(name, meaning, labels=_OF_A_QUERY)
        for query in queries:
            _add(family, _labels(query), of_query(query))
        yield family
    for name, meaning, of_store in _STORE_GAUGES:
        family = GaugeMetricFamily(name, meaning, labels=_OF_A_STORE)
        for query in queries:
            for store in query.stores:
                _add(family, _labels(query, store), of_store(store))
        yield family
    yield from _files(queries)
    family = GaugeMetricFamily(
        _PINS, "Forks and kept versions that hold segments.", labels=(*_OF_A_QUERY, "kind")
    )
    for query in queries:
        for kind in (FORK, KEEP):
            count = sum(pin.kind == kind for pin in query.pins)
            family.add_metric([*_labels(query), kind], float(count))
    yield family


def _files(queries: Iterable[QueryStatus]) -> Iterator[Metric]:
    labels = (*_OF_A_STORE, "state")
    files = GaugeMetricFamily(_FILES, "Files that Redis knows, by their state.", labels=labels)
    sizes = GaugeMetricFamily(_FILES_BYTES, "Bytes of these files.", labels=labels)
    for query in queries:
        for store in query.stores:
            tallies = [one.files for one in store.partitions if one.files is not None]
            if not tallies:
                continue
            of = _labels(query, store)
            for state in ("announced", "used", "condemned"):
                count = sum(getattr(one, state) for one in tallies)
                files.add_metric([*of, state], float(count))
            sizes.add_metric([*of, "used"], float(sum(one.used_bytes for one in tallies)))
            size = sum(one.condemned_bytes for one in tallies)
            sizes.add_metric([*of, "condemned"], float(size))
    yield from (files, sizes)


def _counters(
    queries: Iterable[QueryStatus], sums: Mapping[CheckpointStore, Mapping[str, int]]
) -> Iterator[Metric]:
    for counter in _COUNTERS:
        family = CounterMetricFamily(counter.name, counter.meaning, labels=_OF_A_STORE)
        for query in queries:
            for store in query.stores:
                counted = sums.get((query.gen, store.operator, store.store), {})
                if counter.counts in counted:
                    value = counted[counter.counts] / counter.per_unit
                    family.add_metric(_labels(query, store), value)
        yield family


def _errors(
    queries: Iterable[QueryStatus], sums: Mapping[tuple[str, str, int, str], int]
) -> Iterator[Metric]:
    for name, error, meaning in _ERROR_COUNTERS:
        family = CounterMetricFamily(name, meaning, labels=_OF_A_STORE)
        for query in queries:
            for store in query.stores:
                value = sums.get((query.gen, error, store.operator, store.store), 0)
                family.add_metric(_labels(query, store), value)
        yield family


def _add(family: GaugeMetricFamily, labels: list[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)


def _labels(query: QueryStatus, store: StoreStatus | None = None) -> list[str]:
    of_query = [query.title, query.gen]
    return of_query if store is None else [*of_query, str(store.operator), store.store]


def _seconds(at_ms: int) -> float | None:
    return at_ms / 1000 if at_ms else None


def _skew(rows: list[int]) -> float | None:
    total = sum(rows)
    return max(rows) * len(rows) / total if total else None
