"""Stores that are measured on a server of their own, to be compared with a capacity plan.

Time is simulated: after each batch the expiries of all keys are brought forward.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import redis

from redis_state.codec import RAW
from redis_state.format.entry import Segment, segments_in
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.status.capacity import Workload
from redis_state.store.provider import StateStoreProvider
from tests.support.redis_server import bytes_of

MINUTE_MS = 60_000
_WORDS = [
    "alpha",
    "bravo",
    "charlie",
    "delta",
    "echo",
    "foxtrot",
    "golf",
    "hotel",
    "india",
    "juliet",
    "kilo",
    "lima",
    "mike",
]
Row = tuple[bytes, bytes]


def fixed_width(number: int, version: int) -> Row:
    """A row of numbers, as Spark's encoder writes it."""
    chance = random.Random(number * 31 + version)
    key = b"\0" + struct.pack("<qq", 0, number * 1_000_003)
    return key, b"\0" + struct.pack("<qqd", 0, chance.randrange(5_000), chance.randrange(99) / 2)


def text(number: int, version: int) -> Row:
    """A row of words."""
    chance = random.Random(number * 31 + version)
    return b"customer-%08d" % number, " ".join(chance.choices(_WORDS, k=20)).encode()


def noise(number: int, version: int) -> Row:
    """A row that cannot be compressed."""
    value = random.Random(number * 31 + version).randbytes(84)
    return random.Random(number).randbytes(16), value


@dataclass(frozen=True, slots=True)
class Measured:
    """Means of a batch once retention has set in.

    Attributes:
        memory: Bytes of all keys in Redis.
        received: Bytes that the server received.
        sent: Bytes that the server sent.
        commands: Commands from clients.
        compression: Bytes of the newest snapshots, as a part of their rows' bytes.
    """

    memory: float
    received: float
    sent: float
    commands: float
    compression: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counters of a server."""

    received: int
    sent: int
    commands: int

    def since(self, before: Traffic) -> Traffic:
        return Traffic(
            self.received - before.received,
            self.sent - before.sent,
            self.commands - before.commands,
        )


class SimulatedTime:
    """Time of a server that nobody waits for."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def pass_ms(self, passed_ms: int) -> None:
        """Brings the expiries of all segments forward; heartbeats come in real time."""
        names = [name for kind in "ds" for name in self.client.scan_iter(f"*:{kind}:*", count=1000)]
        self._bring_forward(names, passed_ms)

    def pass_all_ms(self, passed_ms: int, *, but: Sequence[str]) -> None:
        """Brings the expiries of all keys forward, except of those with such names."""
        left_out = {name for one in but for name in self.client.scan_iter(one, count=1000)}
        names = [name for name in self.client.scan_iter(count=1000) if name not in left_out]
        self._bring_forward(names, passed_ms)

    def _bring_forward(self, names: Sequence[bytes], passed_ms: int) -> None:
        with self.client.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.pttl(name)
            expiries = pipeline.execute()
            for name, left_ms in zip(names, expiries, strict=True):
                if left_ms > passed_ms:
                    pipeline.pexpire(name, left_ms - passed_ms)
                elif left_ms >= 0:
                    pipeline.delete(name)
            pipeline.execute()

    def used(self) -> int:
        """Bytes of all keys."""
        with self.client.pipeline(transaction=False) as pipeline:
            for name in self.client.scan_iter(count=1000):
                pipeline.memory_usage(name, samples=0)
            return sum(size or 0 for size in pipeline.execute())

    def traffic(self) -> Traffic:
        """Counters so far; they count each call of this method, too."""
        found = self.client.info("stats")
        return Traffic(
            found["total_net_input_bytes"],
            found["total_net_output_bytes"],
            found["total_commands_processed"],
        )

    @contextmanager
    def without_calls(self, into: list[Traffic]) -> Iterator[None]:
        """Adds the traffic of the block, without that of the counting itself."""
        first, before = self.traffic(), self.traffic()
        yield
        after = self.traffic()
        into.append(after.since(before).since(before.since(first)))


def measure(
    url: str, work: Workload, row: Callable[[int, int], Row], *, batches: int
) -> tuple[Measured, Workload]:
    """Runs batches of Python stores, and measures the second half of them.

    Args:
        work: Rows and updates; the size and compression of a row are measured.
        row: A row, given its number and the version that sets it.

    Returns:
        What was measured, and the workload with the size and compression of its rows.
    """
    chance = random.Random(3)
    options = {"url": url, "versions_to_retain": work.versions_to_retain}
    providers = [
        StateStoreProvider(
            StateStoreProviderId(StateStoreId("plan", 0, number), "run"), config=options, codec=RAW
        )
        for number in range(work.partitions)
    ]
    rows, changes = work.rows // work.partitions, int(work.updates) // work.partitions
    between = max(1, round(work.batches_per_minute * work.maintenance_s / 60))
    found: list[Traffic] = []
    memory: list[int] = []
    with redis.Redis.from_url(url) as client:
        time = SimulatedTime(client)
        for version in range(batches):
            with time.without_calls(found):
                for number, provider in enumerate(providers):
                    store = provider.get_store(version)
                    picked = range(rows) if not version else chance.sample(range(rows), changes)
                    for index in picked:
                        store.put(*row(number * rows + index, version))
                    store.commit()
                if version % between == 0:
                    for provider in providers:
                        provider.do_maintenance()
            time.pass_ms(round(MINUTE_MS / work.batches_per_minute))
            if version >= batches // 2:
                memory.append(time.used())
        found = found[batches // 2 :]
        row_bytes = sum(map(len, row(1, 1)))
        compression = compressed(client) / row_bytes
    measured = Measured(
        memory=sum(memory) / len(memory),
        received=sum(one.received for one in found) / len(found),
        sent=sum(one.sent for one in found) / len(found),
        commands=sum(one.commands for one in found) / len(found),
        compression=compression,
    )
    return measured, replace(work, row_bytes=row_bytes, compression=compression)


def compressed(client: redis.Redis) -> float:
    """Bytes of a row in the newest snapshots."""
    newest: list[Segment] = []
    for name in client.scan_iter("*:m"):
        raw = client.hgetall(name)
        found = segments_in({bytes_of(key): bytes_of(value) for key, value in raw.items()})
        snapshots = [one for one in found if one.snapshot]
        newest += sorted(snapshots, key=lambda one: one.version)[-1:]
    return sum(one.entry.bytes for one in newest) / sum(one.entry.rows for one in newest)
