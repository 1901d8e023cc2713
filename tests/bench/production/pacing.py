"""Queue of chunks that leave a proxy in order, after a latency, at a bandwidth."""

from __future__ import annotations

from collections import Counter, deque

_BUCKET_S = 2e-5


class Flow:
    """Chunks of one direction of one connection.

    A chunk is due after its latency and never before the chunks that came earlier. Waiting chunks
    do not delay each other, except by the bandwidth.

    Args:
        bytes_per_s: `None` for no limit.
    """

    def __init__(self, bytes_per_s: float | None = None) -> None:
        self._bytes_per_s = bytes_per_s
        self._chunks: deque[tuple[float, bytes]] = deque()
        self._last_due = 0.0
        self.waiting_bytes = 0

    @property
    def next_due(self) -> float | None:
        """Time at which the first waiting chunk may leave; `None` if no chunk waits."""
        return self._chunks[0][0] if self._chunks else None

    def put(self, chunk: bytes, now: float, latency_s: float) -> None:
        """Adds a chunk that arrived at `now`."""
        due = max(now + latency_s, self._last_due)
        if self._bytes_per_s is not None:
            due += len(chunk) / self._bytes_per_s
        self._last_due = due
        self._chunks.append((due, chunk))
        self.waiting_bytes += len(chunk)

    def pop(self, now: float) -> tuple[float, bytes] | None:
        """Removes the first chunk, with the time it was due at; `None` if it is not yet due."""
        if not self._chunks or self._chunks[0][0] > now:
            return None
        due, chunk = self._chunks.popleft()
        self.waiting_bytes -= len(chunk)
        return due, chunk


class Lateness:
    """Histogram of the delay beyond the time a chunk was due, in buckets of 20 µs."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        self._buckets[int(seconds / _BUCKET_S)] += 1

    def quantile_ms(self, share: float) -> float:
        """Upper bound of the bucket in which the quantile lies; 0 without chunks."""
        left = share * self._buckets.total()
        for bucket, count in sorted(self._buckets.items()):
            left -= count
            if left <= 0:
                return (bucket + 1) * _BUCKET_S * 1e3
        return 0.0
