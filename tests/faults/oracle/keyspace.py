"""Keys on the server of a schedule, and the damage that accidents do to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_state import keys
from redis_state.backend.transport import Transport
from redis_state.format.entry import parse_segment
from redis_state.ids import PartitionId
from tests.faults.oracle.dice import Dice

_YEAR_MS = 365 * 86_400_000

Copy = Sequence[tuple[bytes, bytes]]


class Keyspace:
    """The keys of one schedule, seen from outside of the protocol."""

    def __init__(self, server: Transport, dice: Dice) -> None:
        self._server = server
        self._dice = dice

    def names(self) -> list[bytes]:
        """All keys."""
        (found,) = self._server.exchange([("KEYS", "*")])
        return sorted(found)

    def mortal(self) -> list[bytes]:
        """Keys of partitions that expire soon; what is set aside stays for years."""
        names = [name for name in self.names() if not name.endswith(b"}:q")]
        expiries = self._server.exchange([("PTTL", name) for name in names]) if names else []
        return [name for name, ms in zip(names, expiries, strict=True) if 0 < ms < _YEAR_MS]

    def holds(self, name: str) -> bool:
        """Returns whether the key exists."""
        return bool(self._server.exchange([("EXISTS", name)])[0])

    def count(self, name: str) -> int:
        """Returns the number of fields of a hash."""
        return int(self._server.exchange([("HLEN", name)])[0])

    def expires(self, name: str) -> bool:
        """Returns whether a key exists and has an expiry."""
        return bool(self._server.exchange([("PTTL", name)])[0] > 0)

    def field(self, name: str, field: str) -> bytes | None:
        """A field of a hash; ``None`` if it is not there."""
        found: bytes | None = self._server.exchange([("HGET", name, field)])[0]
        return found

    def fields(self, name: str) -> dict[str, str]:
        """All fields of a hash."""
        return dict(_pairs(self._server.exchange([("HGETALL", name)])[0]))

    def opened(self, partition: PartitionId) -> tuple[int, str]:
        """The opened version of a partition, and the run that holds it."""
        (found,) = self._server.exchange([("HMGET", keys.meta(partition), "o", "r")])
        return int(found[0] or 0), (found[1] or b"").decode()

    def names_blocks(self, meta: str, field: str) -> bool:
        """Returns whether a manifest names a segment that has blocks."""
        (raw,) = self._server.exchange([("HGET", meta, field)])
        return raw is not None and parse_segment(field, raw.decode()).entry.blocks > 0

    def remove(self, names: Sequence[bytes]) -> None:
        """Keys reach their expiry, or are destroyed."""
        if names:
            self._server.exchange([("UNLINK", *names)])

    def remove_one(self, names: Sequence[bytes]) -> bool:
        """Removes one of these keys; returns false if there are none."""
        self.remove([self._dice.choice(names)] if names else [])
        return bool(names)

    def copy(self) -> Copy:
        """Copies all keys, as a replica has received them by now."""
        names = self.names()
        return list(zip(names, self._server.exchange([("DUMP", n) for n in names]), strict=True))

    def restore(self, copy: Copy, tag: str = "") -> None:
        """A replica that was behind takes over; what had an expiry has none any more.

        Args:
            tag: What the keys begin with that it has; empty for all.
        """
        head = tag.encode()
        self.remove([name for name in self.names() if name.startswith(head)])
        had = [("RESTORE", name, "0", raw) for name, raw in copy if name.startswith(head)]
        if had:
            self._server.exchange(had)

    def segments(self, partition: PartitionId) -> tuple[set[str], set[str]]:
        """Keys of segments that are there or staged, and those that the manifest says are there."""
        found = self._server.exchange([("HGETALL", keys.meta(partition))])[0]
        fields = _pairs(found)
        aside = [text.split(" ", 1) for name, text in fields if name[:2] == "z:"]
        fields += [(name, text) for name, text in aside]
        parsed = [parse_segment(name, text) for name, text in fields if name[:2] in ("d:", "s:")]
        named = {keys.segment(partition, one.ident) for one in parsed if one.entry.blocks}
        heads = tuple(keys.segment(partition, kind) for kind in ("d:", "s:", "u:", "n:"))
        there = {name.decode() for name in self.names()}
        return {name for name in there if name.startswith(heads)}, named


def _pairs(found: Any) -> list[tuple[str, str]]:
    if isinstance(found, dict):
        return [(field.decode(), entry.decode()) for field, entry in found.items()]
    words = [word.decode() for word in found]
    return list(zip(words[::2], words[1::2], strict=True))
