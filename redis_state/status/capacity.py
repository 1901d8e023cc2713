"""Capacity of a query before it runs: memory, network and CPU of Redis, heap of executors.

The formulas are those of docs/capacity.md, which explains each of them. Constants of Redis follow
from its memory allocator and its dictionaries; the others were measured with real stores, and a
test compares the sums with further ones (`tests/contract/test_capacity.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from redis_state.format.bucketing import ROWS_A_BUCKET, buckets_for
from redis_state.protocol.retention import DROPPED_TTL_MS
from redis_state.protocol.snapshots import DELTAS_MAX, DELTAS_MIN
from redis_state.status.figures import size

# Redis: a hash of few short fields is one list; any other one is a dictionary.
_LIST_FIELDS_MAX = 128
_LIST_VALUE_MAX = 64
_LIST_BYTES = 150
_LIST_FIELD_BYTES = 8
_HASH_BYTES = 208
_ENTRY_BYTES = 40  # of a dictionary, with the name of the field
_SLOT_BYTES = 8
_TEXT_HEAD_BYTES = 6
_MANIFEST_BYTES = 700
_MANIFEST_ENTRY_BYTES = 158
_REGISTRY_BYTES = 4_000  # of a query: its run, its stores, its entry in the list
_INSTANCE_BYTES = 1_500  # of a partition that an executor serves
# Blocks.
_BLOCK_HEAD_BYTES = 24  # of ours and of zstd
_HEADER_BYTES = 52
_ROW_HEAD_BYTES = 6  # of a row in a block: family, lengths
_LONE_ROWS = 1.6  # of a block, as many rows find nothing to be compressed against
# The wire.
_COMMIT_IN_BYTES = 1_050
_COMMIT_OUT_BYTES = 330
_RETAIN_BYTES = 500
_PLAN_ENTRY_BYTES = 110  # of an entry that retention reads
_DROPPED_NAME_BYTES = 50
_HEARTBEATS_A_MINUTE = 3
_HEARTBEAT_BYTES = 1_500
# CPU: docs/benchmarks.md.
_SERVER_COMMIT_US = 100.0
_SERVER_ROW_US = 0.14
_SERVER_SNAPSHOT_ROW_US = 0.05
_SERVER_INSTANCE_US = 100.0  # a minute: heartbeats and maintenance of a partition that rests
_EXECUTOR_COMMIT_US = 1_200.0
_EXECUTOR_ROW_US = 3.9
# Heap: a row, its index, the layers above, and a base while it is folded.
_HEAP_ROW_BYTES = 22
_HEAP_SHARE = 4  # of the heap `localMemory` is a quarter
_HEAP_MIN_BYTES = 1 << 30
_CONNECTIONS_MAX = 16
_HELPERS = 2
_DRIVER_CONNECTIONS = 2
_SERVER_CORES_MAX = 0.5
_RETAIN_FEW = 10
_HEAP_MAX_BYTES = 31 << 30  # above it the JVM's pointers are twice as large
_ROOM = 1.5  # of the server's memory: copies while it saves, buffers, fragmentation
_US = 1e6


@dataclass(frozen=True, slots=True)
class Workload:
    """Query whose capacity is planned.

    Attributes:
        rows: Live rows of the state, of all stores together.
        row_bytes: Bytes of the key and the value of a row, before compression.
        updates: Changed rows of a batch, removals included.
        batches_per_minute: Batches that run in a minute.
        compression: Bytes of a row in a snapshot, as a part of `row_bytes`.
        versions_to_retain: The option `versionsToRetain`.
        partitions: Partitions of the state; Spark's `spark.sql.shuffle.partitions`.
        stores: Stores of each partition: several for joins in their older format.
        executors: Executors of the application.
        cores: Cores of each executor.
        maintenance_s: Spark's `maintenanceInterval`.
        ordered: Whether rows are kept in key order: stores of Python, timers, rows by event time.
    """

    rows: int
    row_bytes: float
    updates: float
    batches_per_minute: float
    compression: float = 0.4
    versions_to_retain: int = 100
    partitions: int = 200
    stores: int = 1
    executors: int = 2
    cores: int = 4
    maintenance_s: float = 60.0
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class SegmentSize:
    """Size of a delta or a snapshot of one store.

    Attributes:
        bytes: Sum of its blocks, which is what the network carries.
        blocks: Number of its blocks, which are fields of its hash.
        memory: Bytes of its key in Redis.
    """

    bytes: float
    blocks: float
    memory: float


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """Capacity that a query needs when retention has set in.

    Attributes:
        delta: A delta of one store.
        snapshot: A snapshot of one store.
        snapshot_every: Batches between two snapshots of a store.
        deltas: Deltas of a store that retention keeps, on average.
        snapshots: Snapshots of a store that retention keeps, on average.
        dropped_deltas: Dropped deltas of a store that are still there.
        dropped_snapshots: Dropped snapshots of a store that are still there.
        memory_bytes: Memory of the query in Redis.
        live_bytes: Its part for the newest version alone: a snapshot of each store.
        dropped_bytes: Its part for dropped segments.
        network_in_bytes_s: Bytes a second that the server receives.
        network_out_bytes_s: Bytes a second that the server sends.
        commits_s: Commits of stores a second.
        server_cores: Cores of the server; it has one for all scripts.
        executor_cores: Cores of all executors for the state, without the operator itself.
        connections: Most connections to the server.
        local_bytes: State of one executor in memory.
        server_memory_bytes: Proposal: `maxmemory` of a server for this query alone.
        servers: Proposal: servers, or masters of a cluster, so that none is busy half of the time.
        executor_heap_bytes: Proposal: heap of an executor, of which `localMemory` is a quarter.
        few_versions_bytes: Memory of the query in Redis with `versionsToRetain=10`.
    """

    delta: SegmentSize
    snapshot: SegmentSize
    snapshot_every: float
    deltas: float
    snapshots: float
    dropped_deltas: float
    dropped_snapshots: float
    memory_bytes: float
    live_bytes: float
    dropped_bytes: float
    network_in_bytes_s: float
    network_out_bytes_s: float
    commits_s: float
    server_cores: float
    executor_cores: float
    connections: int
    local_bytes: float
    server_memory_bytes: float
    servers: int
    executor_heap_bytes: float
    few_versions_bytes: float


def plan(work: Workload) -> CapacityPlan:
    """Computes what a query needs."""
    found = _plan(work)
    few = min(_RETAIN_FEW, work.versions_to_retain)
    less = _plan(replace(work, versions_to_retain=few))
    return replace(found, few_versions_bytes=less.memory_bytes)


def _plan(work: Workload) -> CapacityPlan:
    stores = work.partitions * work.stores
    rows, updates = work.rows / stores, work.updates / stores
    snapshot, delta = snapshot_size(work, rows), delta_size(work, updates)
    every = _snapshot_every(work, snapshot, delta)
    spacing = _spacing(work.versions_to_retain, every)
    deltas = work.versions_to_retain + spacing / 2 + _maintenance_batches(work) / 2
    snapshots = work.versions_to_retain / spacing + 2 - every / spacing
    gone_deltas = work.batches_per_minute * DROPPED_TTL_MS / 60_000
    gone_snapshots = gone_deltas / every
    gone = gone_deltas * delta.memory + gone_snapshots * snapshot.memory
    manifest = _MANIFEST_BYTES + (deltas + snapshots) * _MANIFEST_ENTRY_BYTES
    store = deltas * delta.memory + snapshots * snapshot.memory + gone + manifest
    memory = stores * (store + _INSTANCE_BYTES) + _REGISTRY_BYTES
    network_in, network_out = _network(work, delta, snapshot, every, deltas + snapshots)
    server_cores = _server_cores(work, stores, every)
    local = work.rows * (work.row_bytes + _HEAP_ROW_BYTES) / work.executors
    each = min(_CONNECTIONS_MAX, work.cores + _HELPERS)
    return CapacityPlan(
        delta=delta,
        snapshot=snapshot,
        snapshot_every=every,
        deltas=deltas,
        snapshots=snapshots,
        dropped_deltas=gone_deltas,
        dropped_snapshots=gone_snapshots,
        memory_bytes=memory,
        live_bytes=stores * snapshot.memory,
        dropped_bytes=stores * gone,
        network_in_bytes_s=stores * network_in,
        network_out_bytes_s=stores * network_out,
        commits_s=stores * work.batches_per_minute / 60,
        server_cores=server_cores,
        executor_cores=_executor_cores(work, stores),
        connections=_DRIVER_CONNECTIONS + work.executors * each,
        local_bytes=local,
        server_memory_bytes=memory * _ROOM,
        servers=max(1, math.ceil(server_cores / _SERVER_CORES_MAX)),
        executor_heap_bytes=max(_HEAP_MIN_BYTES, local * _HEAP_SHARE),
        few_versions_bytes=memory,
    )


def proposals(work: Workload, found: CapacityPlan) -> Iterator[str]:
    """Yields settings to begin with, and reasons to choose others."""
    yield (
        f"a server with maxmemory {size(int(found.server_memory_bytes))} for this query, "
        "and maxmemory-policy noeviction"
    )
    if found.servers > 1:
        yield f"a cluster of {found.servers} masters: one core of one server is not enough"
    yield _heap(work, found)
    kept = found.memory_bytes - found.live_bytes - found.dropped_bytes
    if kept > 2 * found.live_bytes and found.few_versions_bytes < found.memory_bytes / 2:
        yield (
            f"versionsToRetain={_RETAIN_FEW}, if no older version is read or gone back to: "
            f"{size(int(found.few_versions_bytes))} instead of {size(int(found.memory_bytes))}"
        )
    if found.dropped_bytes > found.memory_bytes / 2:
        yield (
            "fewer batches a minute: more than half of the memory are segments that were dropped "
            f"in the last {DROPPED_TTL_MS // 60_000} minutes"
        )
    if work.rows / work.partitions < 1_000 and found.commits_s > 1_000:
        yield "fewer partitions: most of the server's work are commits of few rows"


def _heap(work: Workload, found: CapacityPlan) -> str:
    if found.executor_heap_bytes <= _HEAP_MAX_BYTES:
        return f"spark.executor.memory {math.ceil(found.executor_heap_bytes / (1 << 30))}g"
    executors = math.ceil(work.executors * found.executor_heap_bytes / _HEAP_MAX_BYTES)
    return (
        f"{executors} executors with spark.executor.memory {_HEAP_MAX_BYTES >> 30}g: "
        f"the state of {work.executors} needs larger heaps"
    )


def snapshot_size(work: Workload, rows: float) -> SegmentSize:
    """Returns the size of a snapshot of this many rows."""
    blocks = _buckets(work, rows) if rows >= 1 else rows
    return _segment(rows * work.row_bytes * work.compression, blocks, with_header=True)


def delta_size(work: Workload, updates: float) -> SegmentSize:
    """Returns the mean size of a delta, of which some may be empty if changes are few."""
    touched = -math.expm1(-updates)
    if touched == 0:
        return SegmentSize(0, 0, 0)
    rows = updates / touched
    buckets = _buckets(work, rows)
    blocks = buckets * (1 - (1 - 1 / buckets) ** rows)
    in_block = rows / blocks
    lone = min(in_block, _LONE_ROWS) * max(0.0, 1 - in_block / ROWS_A_BUCKET)
    raw = work.row_bytes + _ROW_HEAD_BYTES
    packed = work.row_bytes * work.compression
    of_rows = rows * packed + blocks * (_BLOCK_HEAD_BYTES + lone * max(0.0, raw - packed))
    whole = _segment(of_rows, blocks, with_header=work.ordered)
    return SegmentSize(whole.bytes * touched, whole.blocks * touched, whole.memory * touched)


def allocated(length: float) -> float:
    """Returns the bytes that jemalloc takes for texts of about this size, on average."""
    return sum(_size_class(length * spread) for spread in _SPREADS) / len(_SPREADS)


_SPREADS = (0.9, 0.95, 1.0, 1.05, 1.1)  # blocks of one segment differ in size


def _size_class(length: float) -> float:
    if length <= 64:
        return 8 * math.ceil(length / 8)
    step = 2.0 ** (math.ceil(math.log2(length)) - 3)
    return float(step * math.ceil(length / step))


def _segment(of_rows: float, buckets: float, *, with_header: bool) -> SegmentSize:
    """Returns the size of a segment, given the bytes and the number of its buckets."""
    blocks, total = buckets + with_header, of_rows + with_header * _HEADER_BYTES
    block = of_rows / buckets if buckets else 0.0
    if blocks <= _LIST_FIELDS_MAX and block <= _LIST_VALUE_MAX:
        return SegmentSize(total, blocks, _LIST_BYTES + total + blocks * _LIST_FIELD_BYTES)
    slots = max(4, 2 ** math.ceil(math.log2(max(1, blocks))))
    texts = buckets * allocated(block + _TEXT_HEAD_BYTES)
    texts += with_header * _size_class(_HEADER_BYTES + _TEXT_HEAD_BYTES)
    memory = _HASH_BYTES + blocks * _ENTRY_BYTES + slots * _SLOT_BYTES + texts
    return SegmentSize(total, blocks, memory)


def _buckets(work: Workload, rows: float) -> float:
    raw = rows * (work.row_bytes + _ROW_HEAD_BYTES)
    return float(buckets_for(math.ceil(rows), math.ceil(raw)))


def _maintenance_batches(work: Workload) -> float:
    return max(1.0, work.batches_per_minute * work.maintenance_s / 60)


def _snapshot_every(work: Workload, snapshot: SegmentSize, delta: SegmentSize) -> float:
    """Returns the batches between two snapshots: when one is due and maintenance finds it."""
    between = _maintenance_batches(work)
    due = snapshot.bytes / 2 / delta.bytes if delta.bytes else math.inf
    # The delta that makes it due is whole, and half of the batches until the next pass go by.
    late = min(due, DELTAS_MAX) + between / 2
    return max(between, DELTAS_MIN, late) if due < DELTAS_MAX else between * _passes(between)


def _passes(between: float) -> int:
    """Returns the passes of maintenance until the deltas are too many."""
    return math.ceil(DELTAS_MAX / between)


def _spacing(retained: int, every: float) -> float:
    """Returns the versions between two snapshots that retention keeps."""
    return every * math.ceil(max(1, retained // 2) / every)


def _network(
    work: Workload, delta: SegmentSize, snapshot: SegmentSize, every: float, named: float
) -> tuple[float, float]:
    """Returns the bytes a second of one store that the server receives and sends."""
    batches_s = work.batches_per_minute / 60
    passes_s = 1 / work.maintenance_s
    dropped_s = batches_s * (1 + 1 / every)
    received = batches_s * (delta.bytes + _COMMIT_IN_BYTES)
    received += batches_s / every * (snapshot.bytes + _COMMIT_IN_BYTES)
    received += passes_s * _RETAIN_BYTES + dropped_s * _DROPPED_NAME_BYTES
    beats_s = _HEARTBEATS_A_MINUTE / 60
    sent = batches_s * _COMMIT_OUT_BYTES + passes_s * (_RETAIN_BYTES + named * _PLAN_ENTRY_BYTES)
    return received + beats_s * _HEARTBEAT_BYTES, sent + beats_s * _TEXT_HEAD_BYTES


def _updates_s(work: Workload) -> float:
    return work.updates * work.batches_per_minute / 60


def _executor_cores(work: Workload, stores: int) -> float:
    commits_s = stores * work.batches_per_minute / 60
    return (commits_s * _EXECUTOR_COMMIT_US + _updates_s(work) * _EXECUTOR_ROW_US) / _US


def _server_cores(work: Workload, stores: int, every: float) -> float:
    batches_s = work.batches_per_minute / 60
    micros = stores * batches_s * _SERVER_COMMIT_US + _updates_s(work) * _SERVER_ROW_US
    micros += work.rows * batches_s / every * _SERVER_SNAPSHOT_ROW_US
    return (micros + stores / 60 * _SERVER_INSTANCE_US) / _US
