"""What a maintenance pass should do, and its report of what it did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from redis_state.errors import ConfigError, RedisStateError, UnavailableError

PROBLEMS_MAX = 1000
_COUNTS = (
    "checkpoints",
    "partitions",
    "left_to_others",
    "snapshots",
    "snapshot_bytes",
    "dropped",
    "dropped_bytes",
    "verified",
    "mended",
    "deactivated",
    "orphans",
    "purged",
)


@dataclass(frozen=True, slots=True)
class Policy:
    """What a pass does beside snapshots and retention.

    Attributes:
        worker: Name of the worker in the claims by which several share the work.
        claim_ms: A partition whose worker was killed is free again after this time.
        done_ms: For so long other workers leave a maintained partition alone; 0: not at all.
        again: Maintain partitions that another worker has just done.
        deep: Read every block of every segment, too.
        unsigned_too: With a secret: also maintain partitions whose blocks nobody has signed, which
            are not signed then either. Otherwise they are a problem.
        changes_max: Versions with more rows in the deltas over their snapshot are left to the
            process that has them loaded: those rows are held in memory, up to 1 kB each.
    """

    worker: str
    claim_ms: int = 600_000
    done_ms: int = 0
    again: bool = True
    deep: bool = False
    unsigned_too: bool = False
    changes_max: int = 2_000_000


@dataclass(slots=True)
class MaintenanceReport:
    """Counts of a pass, and what it found wrong.

    Attributes:
        left_to_others: Partitions that another worker had at work or done.
        snapshot_bytes: What the added snapshots take.
        dropped: Segments that retention took out of manifests.
        dropped_bytes: What they took; it is free when their last readers had their ten minutes.
        verified: Segments that were found whole.
        mended: Segments that were published and would have expired.
        deactivated: Instances of runs that lost their partition to a newer one.
        orphans: Segments that no manifest names, which expire now.
        purged: Checkpoints that expire now.
        lag_versions: Versions that the slowest partition applies over its snapshot to be opened.
        lag_bytes: What all partitions read for that, beside their snapshots.
        problems: What needs a person; at most 1,000.
    """

    checkpoints: int = 0
    partitions: int = 0
    left_to_others: int = 0
    snapshots: int = 0
    snapshot_bytes: int = 0
    dropped: int = 0
    dropped_bytes: int = 0
    verified: int = 0
    mended: int = 0
    deactivated: int = 0
    orphans: int = 0
    purged: int = 0
    lag_versions: int = 0
    lag_bytes: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, other: MaintenanceReport) -> None:
        """Take the counts of a part in."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.lag_versions = max(self.lag_versions, other.lag_versions)
        self.lag_bytes += other.lag_bytes
        self.problems += other.problems[: PROBLEMS_MAX - len(self.problems)]

    def problem(self, text: str) -> None:
        """Note what needs a person."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)

    @contextmanager
    def noting(self, where: str) -> Iterator[None]:
        """Note an error as a problem, so that one place keeps nobody from the others.

        Raises:
            UnavailableError: The server gives no answer, which every other place would meet, too.
            ConfigError: The server refuses the user.
        """
        try:
            yield
        except (UnavailableError, ConfigError):
            raise
        except RedisStateError as error:
            self.problem(f"{where}: {error}")

    def __str__(self) -> str:
        return (
            f"{self.partitions} partitions of {self.checkpoints} checkpoints maintained, "
            f"{self.left_to_others} left to other workers; "
            f"{self.snapshots} snapshots added ({self.snapshot_bytes:,} bytes); "
            f"{self.dropped} segments dropped ({self.dropped_bytes:,} bytes freed); "
            f"{self.verified} segments verified, {self.mended} mended, {self.orphans} orphans; "
            f"{self.deactivated} instances deactivated; {self.purged} checkpoints purged; "
            f"lag {self.lag_versions} versions ({self.lag_bytes:,} bytes); "
            f"{len(self.problems)} problems"
        )
