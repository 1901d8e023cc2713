"""Result types of `Query.why_slow`: times of batches, causes of long ones, and what is unknown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SlowCauseKind(str, Enum):
    """The name of a cause; docs/commands.md has a row for each."""

    RETRIES = "retries"
    SERVER_BUSY = "server-busy"
    SLOW_NETWORK = "slow-network"
    EXECUTORS_BUSY = "executors-busy"
    SLOW_ROUND_TRIPS = "slow-round-trips"
    WAITING_FOR_DURABILITY = "waiting-for-durability"
    LOST_EXECUTORS = "lost-executors"
    MOVING_PARTITIONS = "moving-partitions"
    COLD_LOADS = "cold-loads"
    LONG_LOADS = "long-loads"
    WAITING_FOR_ROOM = "waiting-for-room"
    SLOW_FOLDER = "slow-folder"
    READING_FILES = "reading-files"
    SMALL_MEMORY = "small-memory"
    MAINTENANCE_BEHIND = "maintenance-behind"
    BACKGROUND_BUSY = "background-busy"
    LARGE_VALUES = "large-values"
    LARGE_COMMITS = "large-commits"
    MANY_PARTITIONS = "many-partitions"
    UNEVEN_PARTITIONS = "uneven-partitions"
    OUTSIDE_THE_STORE = "outside-the-store"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class SlowCause:
    """Reason why batches are slow.

    Attributes:
        found: The evidence, as a sentence.
        advice: What to do or where to look next.
        operator: ``None`` if the cause is of the whole query; so is `store`.
        partitions: Partitions that show the cause; empty for all.
    """

    kind: SlowCauseKind
    found: str
    advice: str
    operator: int | None = None
    store: str | None = None
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TimeSpent:
    """Time of one part of the batches of a store.

    Attributes:
        part: A name in `PARTS`; ``background`` for work that no batch waits for.
        ms: Mean milliseconds for a batch and partition.
        share: Fraction of the time of all parts; of the background 0.
    """

    operator: int
    store: str
    part: str
    ms: float
    share: float


@dataclass(frozen=True, slots=True)
class Slowness:
    """Times of a query's batches, and the causes for long ones.

    Attributes:
        times: The parts of each store that reported, the background last.
        causes: Whatever is out of the ordinary, the most telling first.
        unknown: Sentences about what could not be seen.
    """

    times: tuple[TimeSpent, ...]
    causes: tuple[SlowCause, ...]
    unknown: tuple[str, ...]
