"""Waits until a query has passed a version, with one small command a poll."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from redis_state.backend.client import Client
from redis_state.reader.feed.deltas import PartitionHead, read_heads, with_state

LOOK_S = 10
"""Seconds between checks whether a store has moved to another checkpoint."""


class NewerVersion:
    """Waits for partitions to pass a version.

    Args:
        heads: Heads of all partitions of a store.
        look: Called every ten seconds, to notice a store that has moved: its heads never change.

    Attributes:
        heads: The latest heads of the partitions.
    """

    def __init__(
        self, heads: Sequence[PartitionHead], version: int, *, look: Callable[[], object]
    ) -> None:
        self.heads = list(heads)
        self._version = version
        self._look = look
        self._looked_s: float | None = None
        self._left = [head for head in heads if head.opened.version == version]

    def is_over(self, client: Client) -> bool:
        """Polls once; returns whether all partitions have passed the version, or one went back.

        Sends one command while nothing happens, and about one more for each partition when it does.
        A partition that has passed is not polled again.

        Raises:
            RedisStateError: See `read_heads`; also errors of `look`.
        """
        if not self._left:
            return True
        now_s = client.clock.monotonic_s()
        if self._looked_s is None or now_s - self._looked_s >= LOOK_S:
            if self._looked_s is not None:
                self._look()
            self._looked_s = now_s
        (first,) = read_heads(client, [self._left[0].id])
        if first == self._left[0]:
            return False
        before, now = self._left, read_heads(client, [head.id for head in self._left])
        known = {head.id: head for head in now}
        self.heads = [known.get(head.id, head) for head in self.heads]
        if any(
            new.epoch != old.epoch or new.opened.version < self._version
            for new, old in zip(now, before, strict=True)
        ):
            return True
        there = with_state(self.heads)
        self._left = [head for head in there if head.opened.version == self._version]
        return not self._left
