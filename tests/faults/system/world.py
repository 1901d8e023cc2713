"""Reference history: the checkpoint's logs, and the rows that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce

from tests.faults.oracle.dice import Dice

PARTITIONS = 2
KEYS = 3
RETAINED = 4
"""Versions that the query's stores retain."""

Rows = dict[str, int]


def changed(rows: Rows, token: int, partition: int) -> Rows:
    """Applies a batch to a partition's rows. Each row depends on all earlier batches."""
    key = f"k{(token + partition) % KEYS}"
    gone = f"k{(token + partition + 1) % KEYS}" if token % 4 == 0 else None
    made = {name: value for name, value in rows.items() if name != gone}
    return made | {key: (rows.get(key, 7) * 31 + token) & 0x3FFFFFFF}


def rows_of(tokens: list[int], partition: int) -> Rows:
    """The rows behind the batches of these tokens."""
    start: Rows = {}
    return reduce(lambda rows, token: changed(rows, token, partition), tokens, start)


@dataclass(eq=False)
class Job:
    """A run of the query.

    Attributes:
        process: Where its driver is.
        tokens: Of the batches that its offset log has.
        uids: Of the version that it goes on from.
        disputed: Another run of the query was alive beside it at some time.
        done: Uid that each partition has committed in this batch.
    """

    name: str
    process: str
    format: int
    run_id: str = ""
    query_id: str = ""
    phase: str = "start"
    alive: bool = True
    disputed: bool = False
    tokens: list[int] = field(default_factory=list)
    uids: list[str] = field(default_factory=lambda: ["-"] * PARTITIONS)
    batch: int = 0
    failures: int = 0
    batches_done: int = 0
    done: dict[int, str] = field(default_factory=dict)

    @property
    def rows(self) -> list[Rows]:
        """Rows that the batch's tasks have to load."""
        return [rows_of(self.tokens[: self.batch], number) for number in range(PARTITIONS)]


@dataclass(eq=False)
class Task:
    """An attempt at one partition of a batch."""

    name: str
    job: Job
    partition: int
    process: str
    batch: int
    tokens: list[int]
    uid: str
    phase: str = "init"
    changes: list[tuple[object, ...]] = field(default_factory=list)

    @property
    def slot(self) -> str:
        """The provider that Spark takes."""
        return f"{self.job.name}/{self.partition}"

    @property
    def is_wanted(self) -> bool:
        """Returns whether the driver still waits for the batch."""
        job = self.job
        return job.alive and job.batch == self.batch and job.phase == "run"


class World:
    """The checkpoint.

    Attributes:
        tokens: Of the batches of the offset log.
        logged: Uids of each batch of the commit log.
        timelines: Tokens that the offset log had each time before it was taken back.
        problems: Rules that were broken.
        unwritten: Partitions that nobody wrote since the logs were taken back. What was confirmed
            before is read live until then.
    """

    def __init__(self, dice: Dice) -> None:
        self.tokens: list[int] = []
        self.logged: list[list[str]] = []
        self.timelines: list[list[int]] = []
        self.problems: list[str] = []
        self.unwritten: set[int] = set()
        self._dice = dice
        self._restored = 0
        self._newest_ever = 0

    def begins(self, tokens: list[int], logged: list[list[str]]) -> None:
        """Begins with the logs of another query, and with its newest version alone."""
        self.tokens, self.logged = list(tokens), list(logged)
        self._restored = self._newest_ever = len(logged)

    def next_token(self) -> int:
        """Returns the token of the batch that is planned now; no two are equal."""
        return self._dice.between(1, 1 << 28)

    def rows(self, version: int, partition: int) -> Rows:
        """Expected rows of a version that the logs name."""
        return rows_of(self.tokens[:version], partition)

    def versions(self) -> list[list[Rows]]:
        """Rows of both partitions in each version that the query has ever written."""
        return [
            [rows_of(tokens[:version], number) for number in range(PARTITIONS)]
            for tokens in (*self.timelines, self.tokens)
            for version in range(len(tokens) + 1)
        ]

    def uid(self, version: int, partition: int) -> str:
        """Returns the uid of the attempt that the commit log names."""
        return self.logged[version - 1][partition] if version else "-"

    @property
    def oldest(self) -> int:
        """The oldest version that has to be there."""
        self._newest_ever = max(self._newest_ever, len(self.logged))
        promised = max(1, self._restored, self._newest_ever - RETAINED)
        # A fork was set back below its beginning, since that was there.
        return min(promised, max(1, len(self.logged)))

    def only_newest(self) -> None:
        """Older versions may be gone."""
        self._restored = max(self._restored, len(self.logged))

    def go_back(self, batch: int) -> None:
        """Spark's logs end with this batch now."""
        self._newest_ever = max(self._newest_ever, len(self.logged))
        self.timelines.append(list(self.tokens))
        del self.tokens[batch + 1 :], self.logged[batch + 1 :]
        self.unwritten = set(range(PARTITIONS))

    def restored(self, batch: int) -> None:
        """And there is no other version than the one behind it."""
        self.go_back(batch)
        self._restored = self._newest_ever = batch + 1

    def problem(self, text: str) -> None:
        """A rule was broken."""
        self.problems.append(text)


def parsed(rows: str | None) -> Rows:
    """Rows as the JVM tells them."""
    pairs = (pair.split("=") for pair in (rows or "").split(",") if pair)
    return {key: int(value) for key, value in pairs}
