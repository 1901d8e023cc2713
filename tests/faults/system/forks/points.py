"""Points of a command at which it is killed, cut off from the server, or held."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.errors import UnavailableError
from redis_state.files import Folder

_FILES = ("create", "write", "make", "move")


class CutError(Exception):
    """A command is killed here."""


@dataclass
class Point:
    """A point of a command.

    Attributes:
        left: Number of points before it; there is one before and one behind each step.
        act: What happens there.
        lasts: It happens at all later points, too.
    """

    left: int
    act: Callable[[], None]
    lasts: bool = False
    reached: bool = False
    _acting: bool = False

    def passed(self) -> None:
        """The command is at a point; steps of `act` itself do not count."""
        if self._acting:
            return
        if self.left > 0:
            self.left -= 1
            return
        if self.reached and not self.lasts:
            return
        self.reached = self._acting = True
        try:
            self.act()
        finally:
            self._acting = False


def kill() -> None:
    """Ends the command, whatever it does."""
    raise CutError


def cut_off() -> None:
    """Ends the connections of the command: no request is answered any more."""
    raise UnavailableError("asking a server that is cut off", found="it gives no answer")


@contextmanager
def before(attempted: str, act: Callable[[], None], *, about: str = "") -> Iterator[Point]:
    """Acts before the first round trip that attempts this.

    Args:
        about: A text in one of its commands.
    """
    point, exchange, wanted = Point(0, act), Client._exchange, about.encode()

    def step(self: Client, what: str, commands: Sequence[Command]) -> list[Any]:
        if what == attempted and any(wanted in _raw(word) for one in commands for word in one):
            point.passed()
        return exchange(self, what, commands)

    with mock.patch.object(Client, "_exchange", step):
        yield point


def _raw(word: str | bytes) -> bytes:
    return word.encode() if isinstance(word, str) else word


@contextmanager
def at(number: int, act: Callable[[], None], *, lasts: bool = False) -> Iterator[Point]:
    """Acts before or behind a step of any command: a round trip, or a change of a file."""
    point = Point(number, act, lasts)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **given: Any) -> Any:
            point.passed()
            done = real(*args, **given)
            point.passed()
            return done

        return step

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Client, "_exchange", counted(Client._exchange)))
        for name in _FILES:
            real = getattr(Folder, name)
            stack.enter_context(mock.patch.object(Folder, name, counted(real)))
        yield point
