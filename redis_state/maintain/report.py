"""Policy of a maintenance pass, and the report of its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from redis_state.errors import ConfigError, RedisStateError, UnavailableError
from redis_state.progress import Progress, silent

PROBLEMS_MAX = 1000
_COUNTS = (
    "checkpoints",
    "partitions",
    "unchanged",
    "left_to_others",
    "snapshots",
    "snapshot_bytes",
    "snapshots_missed",
    "dropped",
    "dropped_bytes",
    "named",
    "verified",
    "mended",
    "deactivated",
    "orphans",
    "purged",
    "unpinned",
    "pinned",
    "moved",
    "moved_bytes",
    "condemned",
)


@dataclass(frozen=True, slots=True)
class Policy:
    """Options of a pass besides snapshots and retention.

    Attributes:
        worker: Name of the worker in the claims by which several workers share the partitions.
        claim_ms: Expiry of the claim of a killed worker.
        done_ms: Time for which other workers skip a maintained partition; 0 for no time.
        again: Also maintains partitions that another worker has just done.
        deep: Also reads every block of every segment.
        unsigned_too: With a secret: also maintains partitions with unsigned blocks, without signing
            them. Otherwise such partitions are a problem.
        changes_max: Versions with more rows in the deltas above their snapshot are left to the
            process that has loaded them: these rows are held in memory, up to 1 kB each.
    """

    worker: str
    claim_ms: int = 600_000
    done_ms: int = 0
    again: bool = True
    deep: bool = False
    unsigned_too: bool = False
    changes_max: int = 2_000_000


def never() -> bool:
    """Returns false: the pass runs to its end."""
    return False


@dataclass(frozen=True, slots=True)
class PassControl:
    """Callbacks that follow a pass, and end it early.

    Attributes:
        progress: Called with the progress of a pass.
        stopped: Called before each partition; true ends the pass.
        step: Called with the progress inside of a partition.
    """

    progress: Progress = silent
    stopped: Callable[[], bool] = never
    step: Progress = silent


@dataclass(slots=True)
class MaintenanceReport:
    """Counts and problems of a pass.

    Attributes:
        unchanged: Partitions, of those counted, that have not changed since this worker verified
            them, and whose turn has not come.
        left_to_others: Partitions that another worker had claimed or done.
        snapshot_bytes: Size of the added snapshots.
        snapshots_missed: Snapshots that were due, and that a concurrent change prevented.
        dropped: Segments that retention removed from manifests.
        dropped_bytes: Their size; freed ten minutes later, for the sake of current readers.
        named: Segments with a key that the manifests of the counted partitions name.
        verified: Segments that this pass found whole.
        mended: Published segments that would have expired.
        deactivated: Instances of runs that lost their partition to a newer run.
        orphans: Segments that no manifest names, which expire now.
        purged: Checkpoints that expire now.
        unpinned: Pins that were ended, in single partitions: they expired, or the fork is
            gone or has all of its segments itself.
        pinned: Unused checkpoints that were not purged, since forks or kept versions need them.
        moved: Segments that left Redis for files.
        moved_bytes: Their size.
        condemned: Files that nothing needs, which may be deleted after the grace.
        lag_versions: Number of deltas that an open of the slowest partition applies.
        lag_bytes: Bytes of these deltas over all partitions.
        problems: Problems that need a person; at most 1,000.
    """

    checkpoints: int = 0
    partitions: int = 0
    unchanged: int = 0
    left_to_others: int = 0
    snapshots: int = 0
    snapshot_bytes: int = 0
    snapshots_missed: int = 0
    dropped: int = 0
    dropped_bytes: int = 0
    named: int = 0
    verified: int = 0
    mended: int = 0
    deactivated: int = 0
    orphans: int = 0
    purged: int = 0
    unpinned: int = 0
    pinned: int = 0
    moved: int = 0
    moved_bytes: int = 0
    condemned: int = 0
    lag_versions: int = 0
    lag_bytes: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, other: MaintenanceReport) -> None:
        """Adds the counts of a part."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.lag_versions = max(self.lag_versions, other.lag_versions)
        self.lag_bytes += other.lag_bytes
        self.problems += other.problems[: PROBLEMS_MAX - len(self.problems)]

    def problem(self, text: str) -> None:
        """Notes a problem that needs a person."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)

    @contextmanager
    def noting(self, where: str) -> Iterator[None]:
        """Notes an error as a problem, so that one bad place does not stop the pass.

        Raises:
            UnavailableError: The server does not answer, which would affect every other place, too.
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
            f"{self.unchanged} of them unchanged, "
            f"{self.left_to_others} left to other workers; "
            f"{self.snapshots} snapshots added ({self.snapshot_bytes:,} bytes); "
            f"{self.dropped} segments dropped ({self.dropped_bytes:,} bytes freed); "
            f"{self.verified} of {self.named} segments verified, {self.mended} mended, "
            f"{self.orphans} orphans; "
            f"{self.deactivated} instances deactivated; {self.purged} checkpoints purged; "
            f"{self.unpinned} pins ended, {self.pinned} unused checkpoints kept for pins; "
            f"{self.moved} segments moved into files ({self.moved_bytes:,} bytes), "
            f"{self.condemned} files condemned; "
            f"lag {self.lag_versions} versions ({self.lag_bytes:,} bytes); "
            f"{len(self.problems)} problems"
        )
