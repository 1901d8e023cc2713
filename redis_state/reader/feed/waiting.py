"""Waiting until a query has gone on from a version, with one small command a look."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from redis_state.backend.client import Client
from redis_state.reader.feed.deltas import PartitionHead, read_heads, with_state

LOOK_S = 10
"""After so long it is looked whether a store that can move to another checkpoint has done so."""


class NewerVersion:
    """Partitions that stood at a version when they were looked at.

    Args:
        heads: Of all partitions that a store has.
        look: Called every ten seconds: where nobody writes any more, heads stay as they are.

    Attributes:
        heads: The same, as they were seen last.
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
        """Look once whether each partition has gone on, or one of them went back.

        One command while nothing happens, and for each partition about one more when it does: a
        partition that has gone on is not asked again.

        Raises:
            RedisStateError: As `read_heads`, and what the look finds.
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
