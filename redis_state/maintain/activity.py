"""Last use of a checkpoint, as far as Redis knows, and signs of current use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.replies import time_ms
from redis_state.errors import FormatError, UsageError
from redis_state.ids import PartitionId
from redis_state.maintain.checkpoint import PARTITIONS_AT_ONCE
from redis_state.maintain.recall import RECALLED
from redis_state.protocol.instances import LATELY_MS, find
from redis_state.protocol.registry import (
    counted_partitions,
    parse_operators,
    served_partitions,
)
from redis_state.protocol.texts import number_or_zero

_WHAT = "looking for users of a checkpoint"
# Every use of a partition changes one of these fields.
_FIELDS = ("f", "e", "r", "o", "ou", "l", "lu", "b", "t")
_WRITTEN = _FIELDS.index("t")


@dataclass(frozen=True, slots=True)
class Activity:
    """Last use of a checkpoint; times are milliseconds since 1970 by the server's clock.

    Attributes:
        now_ms: Time of this observation.
        instances: Number of stores that reported within the last minute.
        partitions: Number of partitions that were ever written.
        written_ms: Newest write of any partition; 0 if unknown.
        driver_ms: Last report of a driver that its run is alive; 0 without any.
        registered_ms: Registration of the newest run.
        recalled_ms: Last recall after a purge; 0 without any.
        mark: Two observations with the same mark found no use in between.
    """

    now_ms: int
    instances: int
    partitions: int
    written_ms: int
    driver_ms: int
    registered_ms: int
    recalled_ms: int
    mark: str

    @property
    def last_ms(self) -> int:
        """Returns the time of the last use; 0 if unknown."""
        return max(self.written_ms, self.driver_ms, self.recalled_ms)

    def signs_of_life(self) -> Iterator[str]:
        """Yields signs that the checkpoint may be in use."""
        if self.instances:
            yield f"{self.instances} stores reported within the last minute"
        times = (
            ("a partition was written", self.written_ms),
            ("the driver of its run reported", self.driver_ms),
            ("its newest run was registered", self.registered_ms),
        )
        for what, at_ms in times:
            if at_ms > self.now_ms:
                yield f"{what} at a time in the future"
            elif self.now_ms - at_ms < LATELY_MS:
                yield f"{what} {(self.now_ms - at_ms) // 1000} seconds ago"


def look(
    client: Client, gen: str, *, tenant: str = "", listed: Iterable[PartitionId] | None = None
) -> Activity:
    """Reads the activity of a checkpoint; changes nothing.

    Args:
        listed: Partitions by the list of checkpoints; ``None`` reads that list.

    Raises:
        FormatError: The registry or an instance is damaged.
        UnavailableError: The server does not answer.
    """
    time, raw = client.call(_WHAT, [("TIME",), ("HGETALL", keys.query(gen, tenant=tenant))])
    now_ms = time_ms(time)
    ids = set(served_partitions(client, gen, tenant=tenant) if listed is None else listed)
    ids.update(counted_partitions(client, gen, parse_operators(raw).values(), tenant=tenant))
    ordered = sorted(ids, key=str)
    metas = _metas(client, ordered)
    digest = hashlib.sha256(repr(sorted(raw.items())).encode())
    digest.update(repr(metas).encode())
    return Activity(
        now_ms,
        len(find(client, ordered)),
        sum(found[0] is not None for found in metas),
        max((number_or_zero(found[_WRITTEN]) for found in metas), default=0),
        number_or_zero(raw.get(b"seen")),
        number_or_zero(raw.get(b"epoch")),
        number_or_zero(raw.get(RECALLED.encode())),
        digest.hexdigest(),
    )


def signs_of_life(client: Client, gen: str, *, tenant: str = "") -> list[str]:
    """Returns signs that a checkpoint may be in use; empty without any.

    Raises:
        UnavailableError: The server does not answer.
    """
    try:
        return list(look(client, gen, tenant=tenant).signs_of_life())
    except FormatError as error:
        return [f"its users are unknown: {error}"]


def refuse_if_used(
    client: Client, gen: str, *, tenant: str = "", attempted: str, force: bool = False
) -> None:
    """Refuses to change a checkpoint that may be in use.

    Args:
        attempted: Attempted operation, for the error.
        force: Skips the check: the caller knows that nothing runs.

    Raises:
        UsageError: The checkpoint seems to be in use, or its use cannot be determined.
    """
    signs = [] if force else signs_of_life(client, gen, tenant=tenant)
    if signs:
        raise UsageError(
            attempted,
            found=f"checkpoint {gen} may be in use: {'; '.join(signs)}",
            advice=f"Stop the query first, and wait {LATELY_MS // 60_000} minutes; or add --force "
            "if it has ended. Nothing was changed.",
        )


def _metas(client: Client, ids: Sequence[PartitionId]) -> list[list[bytes | None]]:
    found: list[list[bytes | None]] = []
    for start in range(0, len(ids), PARTITIONS_AT_ONCE):
        chunk = ids[start : start + PARTITIONS_AT_ONCE]
        found += client.call(_WHAT, [("HMGET", keys.meta(id_), *_FIELDS) for id_ in chunk])
    return found
