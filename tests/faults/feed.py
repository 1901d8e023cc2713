"""Input of a kill run, and the expected output of each operator family, batch by batch.

The rows of a key are numbered without gaps. So a state that lost, doubled or forgot a row shows
with the next row of the key, and the whole result of every batch is known beforehand.

A batch is one file of the input, or several: a driver that dies after its source took a file and
before its offset log has it lets Spark add the next file to that batch. The two sides of a join are
sources of their own, and one of them may be ahead after such a death.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path

SCHEMA = "batch int, k string, seq long, ts timestamp, again boolean"
SESSION_ROWS = 4
SESSION_GAP = "10 minutes"
_KEYS = 13
_FRESH_MAX = 4  # rows of a key in a batch
_AGAIN = 6  # rows of earlier batches that a batch repeats, for the deduplication to drop
_FIRST_MTIME_S = 1_000_000_000
_FIRST = datetime(2024, 1, 1, tzinfo=timezone.utc)

Rows = list[list[object]]
Taken = tuple[int, ...]
"""How many files each source of a query has taken."""


class Feed:
    """The batches of one run, made from its seed."""

    def __init__(self, seed: int, batches: int) -> None:
        self.fresh: list[list[tuple[str, int]]] = []
        self.again: list[list[tuple[str, int]]] = []
        dice = random.Random(f"feed {seed}")
        count: dict[str, int] = {}
        for _ in range(batches):
            sent = [row for batch in self.fresh for row in batch]
            rows = []
            for key in (f"k{number:02d}" for number in range(_KEYS)):
                first = count.get(key, 0)
                count[key] = first + dice.randrange(_FRESH_MAX + 1)
                rows += [(key, seq) for seq in range(first, count[key])]
            self.fresh.append(rows)
            self.again.append(dice.sample(sent, min(_AGAIN, len(sent))))

    def write(self, folder: Path) -> None:
        """One file a batch, which a stream takes in order."""
        folder.mkdir()
        for number, (fresh, again) in enumerate(zip(self.fresh, self.again, strict=True)):
            rows = [_row(number, *row, again=False) for row in fresh]
            rows += [_row(number, *row, again=True) for row in again]
            path = folder / f"{number:05d}.json"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            os.utime(path, (_FIRST_MTIME_S + number,) * 2)

    def expected(self, family: str, before: Taken, after: Taken) -> Rows:
        """Expected output of a query, sorted, when its sources take these files in a batch."""
        return sorted(EXPECTED[family](self, before, after), key=str)

    def advances(self, family: str, begun: Iterable[Taken], rows: Rows) -> set[Taken]:
        """Possible positions of the sources after a batch with these rows; empty if there is none.

        Args:
            begun: How far they can have been before it.
        """
        return {
            after
            for before in begun
            for after in product(*(range(one, len(self.fresh) + 1) for one in before))
            if after != before and self.expected(family, before, after) == rows
        }

    def counts(self, last: int) -> dict[str, int]:
        """Number of rows that each key has had up to a file."""
        count: dict[str, int] = {}
        for key, seq in self.rows(0, last):
            count[key] = seq + 1
        return count

    def rows(self, first: int, last: int) -> list[tuple[str, int]]:
        """The rows of files that no earlier one had."""
        return [row for rows in self.fresh[first : last + 1] for row in rows]

    def touched(self, first: int, last: int) -> list[tuple[str, int]]:
        """The keys of files, each with the number of its rows so far."""
        keys = {key for key, _ in self.rows(first, last)}
        return [(key, count) for key, count in self.counts(last).items() if key in keys]


def _row(batch: int, key: str, seq: int, *, again: bool) -> dict[str, object]:
    session, place = divmod(seq, SESSION_ROWS)
    time = _FIRST + timedelta(hours=session, minutes=5 * place)
    return {"batch": batch, "k": key, "seq": seq, "ts": time.isoformat(), "again": again}


def _aggregated(feed: Feed, first: int, last: int) -> Rows:
    return [[key, n, n * (n - 1) // 2, n - 1] for key, n in feed.touched(first, last)]


def _deduplicated(feed: Feed, first: int, last: int) -> Rows:
    return [[key, seq] for key, seq in feed.rows(first, last)]


def _joined(feed: Feed, before: Taken, after: Taken) -> Rows:
    """Each row with the one before it, in the batch in which the second of the two came."""
    file = {row: number for number, rows in enumerate(feed.fresh) for row in rows}

    def met(key: str, seq: int, taken: Taken) -> bool:
        return file[key, seq] < taken[0] and file[key, seq - 1] < taken[1]

    return [
        [key, seq]
        for key, seq in file
        if seq > 0 and met(key, seq, after) and not met(key, seq, before)
    ]


def _sessions(feed: Feed, _first: int, last: int) -> Rows:
    """All sessions so far."""
    return [
        [key, min(SESSION_ROWS, n - begun), begun, min(begun + SESSION_ROWS, n) - 1]
        for key, n in feed.counts(last).items()
        for begun in range(0, n, SESSION_ROWS)
    ]


def _counted(feed: Feed, first: int, last: int) -> Rows:
    """Each key with the number that its next row has; a gap or a repeat would be named instead."""
    return [[key, n, "dense"] for key, n in feed.touched(first, last)]


def _of_one_source(
    given_out: Callable[[Feed, int, int], Rows],
) -> Callable[[Feed, Taken, Taken], Rows]:
    return lambda feed, before, after: given_out(feed, before[0], after[0] - 1)


EXPECTED: dict[str, Callable[[Feed, Taken, Taken], Rows]] = {
    "aggregation": _of_one_source(_aggregated),
    "deduplication": _of_one_source(_deduplicated),
    "join": _joined,
    "session windows": _of_one_source(_sessions),
    "applyInPandasWithState": _of_one_source(_counted),
    "transformWithStateInPandas": _of_one_source(_counted),
    "transform_with_state": _of_one_source(_counted),
    "map_partitions": _of_one_source(_counted),
}
FAMILIES = tuple(EXPECTED)


def sources(family: str) -> int:
    """Number of sources that a query reads."""
    return 2 if family == "join" else 1
