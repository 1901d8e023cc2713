"""Samples the memory that one key prefix has in Redis, by the server's own count."""

from __future__ import annotations

import threading

import redis

EVERY_S = 0.1


class MemorySampler:
    """Samples blocks and manifests every 100 ms while it is entered.

    Registry and lists of files are left out: no bound is about them.

    Args:
        prefix: The option `keyPrefix` of the queries.

    Attributes:
        peak: Most bytes of a sample.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._url, self._prefix = url, prefix
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peak = self.samples = 0

    def __enter__(self) -> MemorySampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with redis.Redis.from_url(self._url) as client:
            while not self._stopped.wait(EVERY_S):
                used = 0
                for key in client.scan_iter(f"{{{self._prefix}:rs:*", count=1000):
                    if key.decode().partition("}:")[2][:1] in ("d", "s", "n", "m"):
                        used += client.memory_usage(key, samples=0) or 0
                self.peak, self.samples = max(self.peak, used), self.samples + 1
