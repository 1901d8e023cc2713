"""Versions whose rows have a time to live, by the letter of docs/format.md, section 15.

The server's clock is the machine's: the client of a schedule exchanges its times, which nobody else
has, for those of a clock that the schedule turns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

FIRST_S = 1000
"""Time of the server when a schedule begins."""

TTLS_S = (None, 2, 5, 5, 30)
NEVER = 1 << 32
_REAL_S = 1_000_000_000
"""Times from here on are the server's own."""


@dataclass
class ServerClock:
    """Clock of the server as a schedule wants it.

    Attributes:
        times: All times that it has shown, in seconds.
    """

    times: list[int] = field(default_factory=lambda: [FIRST_S])

    def turn(self, seconds: int) -> None:
        """Time passes, or a server takes over whose clock is behind."""
        self.times.append(self.times[-1] + seconds)

    def exchanged(self, reply: Sequence[str]) -> list[str]:
        """The reply of `open` with this clock's time instead of the server's."""
        at = {"OK": 8, "EMPTY": 1}.get(reply[0], 3)
        words = list(reply)
        if len(words) > at and words[at].isdigit() and int(words[at]) > _REAL_S:
            words[at] = str(self.times[-1])
        return words


SERVER_CLOCK = ServerClock()
"""That of the schedule that runs: one at a time in each process."""


@dataclass(frozen=True)
class TimedRows:
    """A version: values and expiries by key; time 0 if no row has a time to live."""

    time_s: int = 0
    rows: Mapping[str, tuple[list[int], int]] = field(default_factory=dict)

    def at(self, now_s: int) -> dict[str, list[int]]:
        """The rows that are not expired at a time."""
        return {key: value for key, (value, expiry) in self.rows.items() if expiry > now_s}

    def next(
        self, now_s: int, ttl_s: int | None, rows: Mapping[str, list[int]], put: Collection[str]
    ) -> TimedRows:
        """The next version, in which exactly these rows are there.

        Args:
            now_s: Its time.
            ttl_s: `None` if its rows have no time to live.
            put: The keys that are put; the others are there already.
        """
        if ttl_s is None:
            return TimedRows(0, {key: (value, NEVER) for key, value in rows.items()})
        new = now_s + ttl_s
        if not self.time_s:
            return TimedRows(now_s, {key: (value, new) for key, value in rows.items()})
        found = {
            key: (value, new) if key in put else (value, self.rows[key][1])
            for key, value in rows.items()
        }
        return TimedRows(now_s, found)


@dataclass
class TimedModel:
    """Attempts of a schedule with a time to live.

    Attributes:
        ttl_s: That of tasks that start now; `None` if rows do not expire.
        contents: What each attempt wrote.
        made: Times of the attempts on top of each attempt.
        acknowledged: Those that were told to be committed, with their parents, in this order.
        rewound: For each attempt that a run went back to, how many were acknowledged before.
        rewound_by: Number of that run.
    """

    ttl_s: int | None = 5
    contents: dict[str, TimedRows] = field(default_factory=dict)
    made: dict[str, set[int]] = field(default_factory=dict)
    acknowledged: list[str] = field(default_factory=list)
    rewound: dict[str, int] = field(default_factory=dict)
    rewound_by: dict[str, int] = field(default_factory=dict)

    def rewind(self, uid: str, run: int) -> None:
        """A run goes back to an attempt: what was made on top of it no longer counts.

        The first of the run's attempts goes back; others may begin before it has done so.
        """
        if self.rewound_by.get(uid) != run:
            self.rewound_by[uid], self.rewound[uid] = run, len(self.acknowledged)
            self.made.pop(uid, None)

    def content(self, uid: str) -> TimedRows | None:
        """Content of an attempt; no rows for version 0, `None` for an unknown attempt."""
        return TimedRows() if uid == "-" else self.contents.get(uid)
