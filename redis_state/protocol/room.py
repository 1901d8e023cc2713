"""Answers `ROOM` of the scripts: segments leave for files until the refused blocks fit."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import ConfigError, FullError, Kind, UnavailableError
from redis_state.ids import PartitionId
from redis_state.places.room import drop_hot_runs, drop_staged, make_room

ROOM = "ROOM"
"""First word of a refusal."""
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.5, 8.0
_WASTED_MAX = 5
_OTHERS_MAX_S, _OTHERS_PAUSE_S = 72.0, 4.0
"""The minute after which blocks of another attempt give way, and some pauses."""
_STAGED = re.compile(rb"s ([0-9]{1,18})")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RoomWaits:
    """Calls of a partition that waited until segments had left, and the time for it."""

    count: int = 0
    ms: int = 0


class RoomError(Exception):
    """A partition's share has no room for blocks that may go to a file instead."""


class RoomMaker:
    """Makes room for one call; a folder that takes nothing has until the deadline.

    Args:
        ident: Whose blocks these are.
        waits: Counts the waits.
        where: Name of the partition in errors.
        give_up: Called before `NO_ROOM` is raised: what can never fit leaves no blocks.
    """

    def __init__(
        self,
        client: Client,
        id_: PartitionId,
        ident: str,
        waits: RoomWaits,
        *,
        where: str,
        give_up: Callable[[], None],
    ) -> None:
        self._client, self._id, self._ident, self._where = client, id_, ident, where
        self._waits, self._give_up = waits, give_up
        self._is_empty = False
        self._wasted = 0
        self._waits_to_s: float | None = None

    @staticmethod
    def refused(replies: Iterable[Sequence[str]]) -> Sequence[str] | None:
        """Returns the first refusal among replies; ``None`` without one."""
        return next((one for one in replies if one[0] == ROOM), None)

    def make(self, attempted: str, reply: Sequence[str]) -> None:
        """Makes room after a refusal; the caller sends the same call again.

        Args:
            reply: ``ROOM``, the bytes that have to leave, and the share.

        Raises:
            FullError: Nothing is left that could leave, of kind `NO_ROOM`.
            UnavailableError: The folder took nothing until the deadline.
        """
        lacking, share = int(reply[1]), int(reply[2])
        log.info("%s: %s: %d bytes more than the share", self._id, attempted, lacking)
        began_s = self._client.clock.monotonic_s()
        self._waits.count += 1
        try:
            moved = self._moved(attempted, lacking, share)
            if moved is None:
                moved = drop_staged(self._client, self._id) or None
            # Another process may have moved the last segment meanwhile: then the next try fits.
            is_over = moved is None and self._is_empty and not self._waited(attempted, lacking)
        finally:
            self._waits.ms += round(1000 * (self._client.clock.monotonic_s() - began_s))
        if is_over:
            raise self._no_room(attempted, lacking, share)
        if moved is None:
            self._is_empty = True
            return
        self._is_empty = False
        self._wasted = 0 if moved else self._wasted + 1
        if self._wasted >= _WASTED_MAX:
            raise self._no_room(attempted, lacking, share)

    def _moved(self, attempted: str, lacking: int, share: int) -> int | None:
        """Moves segments out; returns their number, or ``None`` if none is left that could.

        Where the folder takes nothing, what no version needs leaves Redis instead. Each try
        announces a file, which has a row in Redis for a day: later tries are rarer.
        """
        clock = self._client.clock
        late_s, pause_s = clock.monotonic_s() + self._client.deadline_s, _PAUSE_MIN_S
        while True:
            try:
                return make_room(self._client, self._id, lacking)
            except (ConfigError, UnavailableError) as error:
                if dropped := self._without_files():
                    return dropped
                if error.kind is Kind.PERMISSION or clock.monotonic_s() >= late_s:
                    raise self._no_folder(attempted, share, error) from error
                clock.sleep_s(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _without_files(self) -> int:
        """Drops hot runs, or else staged blocks; returns the number of what was dropped."""
        runs = drop_hot_runs(self._client, self._id)
        return runs or drop_staged(self._client, self._id)

    def _waited(self, attempted: str, lacking: int) -> bool:
        """Waits a while where blocks that other attempts have staged take the room.

        Those of a killed attempt give way a minute after the last of them came.

        Returns:
            False if they take less than what is lacking, or have not given way in time.
        """
        clock = self._client.clock
        (manifest,) = self._client.call(attempted, [("HGETALL", keys.meta(self._id))])
        own = f"h:{self._ident}".encode()
        rows = [
            _STAGED.fullmatch(value)
            for name, value in manifest.items()
            if name[:2] == b"h:" and name != own
        ]
        if self._waits_to_s is None:
            self._waits_to_s = clock.monotonic_s() + _OTHERS_MAX_S
        waits = sum(int(row[1]) for row in rows if row) >= lacking
        waits = waits and clock.monotonic_s() < self._waits_to_s
        if waits:
            clock.sleep_s(_OTHERS_PAUSE_S)
        return waits

    def _no_folder(self, attempted: str, share: int, error: Exception) -> UnavailableError:
        return UnavailableError(
            attempted,
            found=f"the partition has its share of {share} bytes in Redis, and nothing could "
            f"leave for its folder: {error}",
            advice="Nothing was changed. See that the folder answers, then try again; or start "
            "with a larger 'redisMemory'.",
            where=self._where,
        )

    def _no_room(self, attempted: str, lacking: int, share: int) -> FullError:
        self._give_up()
        return FullError(
            attempted,
            found=f"it needs {lacking} bytes more than the partition's share of {share} bytes in "
            "Redis, although all that could leave is in files",
            advice="Nothing was changed. Start with a larger 'redisMemory', or with more "
            "partitions, or with smaller batches.",
            kind=Kind.NO_ROOM,
            where=self._where,
        )
