"""Result types of `Query.why_growing`: causes of growing state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class CauseKind(str, Enum):
    """The name of a cause; docs/commands.md has a row for each."""

    NEAR_LIMIT = "near-limit"
    NOTHING_REMOVED = "nothing-removed"
    REMOVALS_STOPPED = "removals-stopped"
    NO_WATERMARK = "no-watermark"
    WATERMARK_BEHIND = "watermark-behind"
    OLD_KEYS = "old-keys"
    FAT_KEY = "fat-key"
    UNEVEN_PARTITIONS = "uneven-partitions"
    INTERNAL_KEYS = "internal-keys"
    KEPT_VERSIONS = "kept-versions"
    NO_SNAPSHOT = "no-snapshot"
    LATE_MAINTENANCE = "late-maintenance"
    PINNED = "pinned"
    WAITING_HISTORY = "waiting-history"
    FULL_SHARE = "full-share"
    SMALL_SHARE = "small-share"
    FILES_STAY = "files-stay"
    OLDER_CHECKPOINT = "older-checkpoint"
    UNTOUCHED_ROWS = "untouched-rows"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Cause:
    """Reason why a state grows, or stays large.

    Attributes:
        operator: ``None`` if the cause is of the whole query; so is `store`.
        partitions: Partitions that show the cause; empty for all.
        found: The evidence, as a sentence.
        advice: What to do or where to look next.
    """

    kind: CauseKind
    found: str
    advice: str
    operator: int | None = None
    store: str | None = None
    partitions: tuple[int, ...] = ()
