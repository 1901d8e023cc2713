"""Repetition of a call until it is answered, or until the deadline."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from redis_state.backend.script import Command
from redis_state.clock import Clock
from redis_state.config import Config

_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 2.0
_DOUBLINGS_MAX = 10
_WAITS_A_TRY = 6
"""Most socket timeouts in one try: connect, log in, select a database and read the replies."""

T = TypeVar("T")


class TransientError(Exception):
    """An error that may disappear if the same commands are sent again.

    Attributes:
        lasts: ``False`` if the write is applied, but a crash might undo it.
        is_answer: True if the server answered.
        hung_up: The commands that were being sent when the server closed the connection.
    """

    def __init__(
        self,
        found: str,
        hint: str = "",
        *,
        lasts: bool = True,
        is_answer: bool = False,
        hung_up: Sequence[Command] = (),
    ) -> None:
        super().__init__(found)
        self.hint = hint
        self.is_answer = is_answer
        self.hung_up = hung_up
        self.lasts = lasts


class Retries:
    """Repeats calls with growing, random pauses; thread-safe."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._deadline_s = config.deadline / 1000
        self._awake_s_max = max(self._deadline_s, _WAITS_A_TRY * config.socket_timeout / 1000)
        self._clock = clock

    def until_answered(
        self, once: Callable[[], T], too_late: Callable[[TransientError, int], Exception]
    ) -> T:
        """Returns the result of the first call that raises no `TransientError`.

        Args:
            too_late: Returns the error to raise after the deadline, from the last transient error
                and the number of tries.
        """
        end = self._clock.monotonic_s() + self._deadline_s
        tries, was_asleep = 0, False
        while True:
            tries += 1
            began = self._clock.monotonic_s()
            try:
                return once()
            except TransientError as error:
                now = self._clock.monotonic_s()
                if not was_asleep and now - began > self._awake_s_max:
                    # This process was suspended and lost its connection: restart the deadline,
                    # once.
                    was_asleep, end = True, now + self._deadline_s
                left = end - now
                if left <= 0:
                    raise too_late(error, tries) from error.__cause__
                ceiling = _BACKOFF_MIN_S * 2 ** min(tries - 1, _DOUBLINGS_MAX)
                wait = min(_BACKOFF_MAX_S, ceiling) * random.uniform(0.5, 1)
                self._clock.sleep_s(min(left, wait))
