"""Python store whose state is several times its bound."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.format import ordered
from redis_state.format.entry import segments_in
from redis_state.ids import PartitionId, Pin, StateStoreId, StateStoreProviderId
from redis_state.places.room import META_BYTES, cost_of
from redis_state.protocol.partition import PartitionClient
from redis_state.protocol.runs import register_run
from redis_state.store.local.families import family_of
from redis_state.store.provider import StateStoreProvider
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import bytes_of

ID = StateStoreId("ledger", 0, 0)
MIB = 1 << 20
BOUND = MIB + META_BYTES
ROWS = 300
"""Rows of a batch, of about 1 KiB that does not compress: 0.3 MiB."""


class Ledger:
    """A Python store whose state is several times its bound."""

    def __init__(self, url: str, folder: Path, **options: Any) -> None:
        self.url, self.folder = url, folder
        self.options = {"redis_memory": str(BOUND), "places_folder": str(folder), **options}
        if self.options["redis_memory"].isdigit():
            self.options["redis_memory"] = f"{int(self.options['redis_memory']) // 1024}k"
        self.raw: Any = redis.Redis.from_url(url)
        self.client = Client(config.parse({"url": url}), clock=ManualClock())
        self.dice = random.Random(7)
        self.rows: dict[str, bytes] = {}
        self.at = self.runs = self.peak = 0
        self.provider = self.new_provider()

    def new_provider(self, **options: Any) -> StateStoreProvider:
        self.runs += 1
        return StateStoreProvider(
            StateStoreProviderId(ID, f"run-{self.runs}"),
            config=config.parse({"url": self.url} | self.options | options),
            clock=ManualClock(),
        )

    def commit(self, times: int = 1, *, rows: int = ROWS, size: int = 1000) -> None:
        for _ in range(times):
            store = self.provider.get_store(self.at)
            for _ in range(rows):
                key = f"k{self.dice.randrange(5000)}"
                self.rows[key] = self.dice.randbytes(size)
                store.put(key, self.rows[key])
            self.at = store.commit()
            self.sample()

    def place_base(self) -> None:
        """Commits about 3 MiB, and maintains them until a base is in a file."""
        for _ in range(4):
            self.commit(3)
            self.provider.do_maintenance()

    def sample(self) -> None:
        """Notes the memory of the partition's keys, the server's own count."""
        mark = f"{{rs:{self.gen}:"
        used = 0
        for key in self.raw.scan_iter(match="*", count=1000):
            if key.decode().startswith(mark):
                used += self.raw.memory_usage(key, samples=0) or 0
        self.peak = max(self.peak, used)
        assert used <= BOUND

    @property
    def gen(self) -> str:
        return bytes_of(self.raw.hget(keys.names(), keys.name_field(ID.checkpoint))).decode()

    @property
    def id(self) -> PartitionId:
        return ID.partition(self.gen)

    def manifest(self) -> dict[bytes, bytes]:
        return dict(self.raw.hgetall(keys.meta(self.id)))

    def in_redis(self) -> list[str]:
        return [
            one.ident
            for one in segments_in(self.manifest())
            if one.place is None and one.entry.blocks
        ]

    def partition(self) -> PartitionClient:
        return PartitionClient(self.client, self.id, versions_to_retain=100)

    def check(self) -> None:
        """Compares all rows with those that a process reads that has nothing in memory."""
        provider = self.new_provider()
        try:
            found = dict(provider.get_read_store(self.at).iterator())
        finally:
            provider.close()
        assert found == self.rows


@contextmanager
def opened_ledger(url: str, folder: Path) -> Iterator[Ledger]:
    """A ledger with its files below a folder."""
    made = Ledger(url, folder / "segments")
    yield made
    made.provider.close()
    made.client.close()


class Attempt:
    """A delta of 1.8 MB, which takes several chunks, on top of the newest version.

    Args:
        size: Bytes of its rows.
    """

    def __init__(self, ledger: Ledger, *, size: int = 1_800_000) -> None:
        self.partition, head = ledger.partition(), ledger.manifest()
        self.parent = Pin(int(head[b"l"]), head[b"lu"].decode())
        run = register_run(ledger.client, ledger.gen, "attempt", by_driver=True)
        self.run = self.partition.acquire(run, self.parent)
        self.uid = uuid.uuid4().hex
        self.ident = f"d:{self.parent.version + 1}:{self.uid}"
        rows = {
            ordered.PREFIX + b"%04d" % number: ledger.dice.randbytes(1000)
            for number in range(size // 1000)
        }
        self.written = ordered.write(
            self.ident,
            list(rows),
            list(rows.values()),
            ref=self.parent.uid,
            live=len(rows),
            families=[family_of("raw")],
        )

    def commit(self) -> None:
        written = self.written
        self.partition.commit(self.run, self.parent, self.uid, written.entry, written.fields)


def here(ledger: Ledger) -> int:
    """Returns the bytes that the segments in Redis count as."""
    return sum(cost_of(one.entry) for one in segments_in(ledger.manifest()) if one.place is None)
