"""Lives of a streaming query whose state expires: batches, with time in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from pyspark.sql import DataFrame
from redis import Redis

from redis_state.format.entry import parse_entry
from tests.spark.streams import REDIS, Input, Output, Streams

EVENTS = "k string, v long, ts timestamp"


def shift(server: Redis, seconds: int, *, below: int = 0) -> None:
    """Moves the time of the newest version of each partition, or of one below it."""
    for meta in server.scan_iter(match="*:m"):
        manifest = manifest_of(server, meta)
        wanted = int(manifest[b"l"]) - below
        for field, text in manifest.items():
            if field[:2] not in (b"d:", b"s:") or int(field.split(b":")[1]) != wanted:
                continue
            entry = parse_entry(text.decode())
            words = text.decode().split(" ")
            assert entry.time, "a version of a store with a time to live has no time"
            words[-2] = str(entry.time + seconds)
            server.hset(meta, field, " ".join(words))


def manifest_of(server: Redis, key: bytes) -> Mapping[bytes, bytes]:
    """Returns the manifest of a partition."""
    return cast("Mapping[bytes, bytes]", server.hgetall(key))


class Lives:
    """Runs batches of one query, with time in between."""

    def __init__(self, streams: Streams, server: Redis, build: Callable[[DataFrame], DataFrame]):
        self._streams, self._server, self._build = streams, server, build
        self.name, self.provider = "query", REDIS
        self._input: Input = streams.input("in", EVENTS)
        self.output: Output = {}
        self._batches = 0

    def batch(self, seconds: int, keys: str, *, mode: str = "update") -> list[str]:
        """Returns the output of the next batch, which runs so many seconds later."""
        if seconds:
            shift(self._server, seconds)
        self.add(keys)
        self.again(mode=mode)
        return self.output[self._batches - 1]

    def add(self, keys: str) -> None:
        """Adds the rows of the next batch."""
        time = f"2024-01-01T10:{self._batches:02d}:00.000Z"
        self._input.add([{"k": key, "v": self._batches, "ts": time} for key in keys])
        self._batches += 1

    def frame(self) -> DataFrame:
        """The query."""
        return self._build(self._input.stream(self._streams.spark))

    def again(self, *, mode: str = "update") -> None:
        """Starts the query until nothing is left to do."""
        self._streams.run(
            self.frame(), self.name, mode=mode, provider=self.provider, output=self.output
        )
