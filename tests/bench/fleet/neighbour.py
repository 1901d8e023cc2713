"""A neighbour that stages much, and what it does to the batches of another store."""

from __future__ import annotations

import multiprocessing
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from enum import Enum
from multiprocessing.synchronize import Event

from redis_state import config, stores
from redis_state.backend.client import Client
from redis_state.codec import RAW
from redis_state.format.chunks import CHUNK_BYTES_MAX, STAGED_BYTES_MAX
from redis_state.ids import PartitionId, StateStoreId, StateStoreProviderId, StoreId
from redis_state.protocol import PartitionClient, partition
from tests.bench.fleet.workers import Work

MIB = 1 << 20
_BLOCK_BYTES = 16 << 10
_SEGMENT_BYTES = 32 * MIB
_VICTIM_EACH_S = 0.005
_START_S = 60


class Way(Enum):
    """Way in which a neighbour sends its blocks."""

    LARGE_SCRIPTS = "scripts of 1,024 KiB"
    SCRIPTS = "scripts of 64 KiB"
    """Blocks ahead of a commit."""
    TRANSACTIONS = "transactions of 1,024 KiB"
    """Blocks of a commit that go along."""

    @property
    def sent_bytes(self) -> int:
        """Bytes sent at once."""
        return STAGED_BYTES_MAX if self is Way.SCRIPTS else CHUNK_BYTES_MAX


def victim(url: str, seconds: float) -> Work:
    """Runs a small batch each 5 ms in a store of its own.

    The first one, which connects, is not measured.
    """
    work = Work()
    id_ = StateStoreProviderId(StateStoreId(f"victim {uuid.uuid4().hex}", 0, 0), str(uuid.uuid4()))
    end_s = time.perf_counter() + seconds
    version = 0
    while time.perf_counter() < end_s:
        began_s = time.perf_counter()
        store = stores.get(id_, version, url=url, codec=RAW)
        for number in range(5):
            store.put(b"%d" % number, b"%d" % version)
        store.commit()
        version += 1
        passed_s = time.perf_counter() - began_s
        work.seconds.append(passed_s)
        time.sleep(max(0.0, _VICTIM_EACH_S - passed_s))
    stores.unload(id_)
    del work.seconds[0]
    return work


@contextmanager
def neighbour(url: str, *, megabytes_s: float, way: Way) -> Iterator[None]:
    """Stages blocks at this rate in a process of its own."""
    context = multiprocessing.get_context("spawn")
    begun, ended = context.Event(), context.Event()
    process = context.Process(
        target=_stage, args=(url, megabytes_s, way, begun, ended), daemon=True
    )
    process.start()
    try:
        if not begun.wait(_START_S):
            raise SystemExit("the neighbour did not begin")
        yield
    finally:
        ended.set()
        process.join(_START_S)


def _stage(url: str, megabytes_s: float, way: Way, begun: Event, ended: Event) -> None:
    """Stages segments of blocks that were made before, and aborts each."""
    if way is not Way.SCRIPTS:
        # The constants are read where they are used, by the names that they have there.
        vars(partition).update(STAGED_BY_SCRIPT_MAX=way.sent_bytes, STAGED_BYTES_MAX=way.sent_bytes)
    block = random.Random(1).randbytes(_BLOCK_BYTES)
    blocks = way.sent_bytes // _BLOCK_BYTES
    each_s = blocks * _BLOCK_BYTES / (megabytes_s * 1e6)
    id_ = PartitionId(StoreId(uuid.uuid4().hex, 0, "default"), 0)
    with closing(Client(config.parse({"url": url}))) as client:
        writer = PartitionClient(client, id_, versions_to_retain=2)
        due_s = time.perf_counter()
        staged, ident = 0, f"d:1:{uuid.uuid4().hex}"
        while not ended.is_set():
            fields = {str(number): block for number in range(staged, staged + blocks)}
            if way is Way.TRANSACTIONS:
                writer.stage_snapshot(ident, fields)
            else:
                writer.stage(ident, ident, fields)
            begun.set()
            staged += blocks
            if staged * _BLOCK_BYTES >= _SEGMENT_BYTES:
                _drop(writer, ident, way)
                ident, staged = f"d:1:{uuid.uuid4().hex}", 0
            due_s = max(due_s + each_s, time.perf_counter() - 1)
            time.sleep(max(0.0, due_s - time.perf_counter()))
        _drop(writer, ident, way)


def _drop(writer: PartitionClient, ident: str, way: Way) -> None:
    if way is Way.TRANSACTIONS:
        writer.abort_snapshot(ident)
    else:
        writer.abort(ident)
