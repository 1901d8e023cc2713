"""One exchange with the server at a time; a seed decides the order and what goes wrong."""

from __future__ import annotations

import hashlib
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import redis
from greenlet import greenlet  # type: ignore[import-untyped]  # the package ships no types

from redis_state.backend.script import Command
from redis_state.backend.transport import Transport
from tests.faults.oracle.dice import Dice

_HANG_S = 60
_REAL_FLUSH_EVERY = 16
_UNKNOWN_SHA = "0" * 40
_LATE_STEPS_MAX = 12
_KILLS_EVERY = 60
_SLOW_TURNS = 12
_CUT_OFF_EXCHANGES = 8

Watcher = Callable[[Sequence[Command], list[Any]], None]


class Killed(BaseException):
    """The actor was killed: nothing of it happens any more."""


class HangError(BaseException):
    """An actor neither talks to the server nor ends."""


@dataclass(eq=False)
class Actor:
    """Code on a stack of its own that stops before each exchange.

    A greenlet is that without a thread: a turn costs a jump and no hand-over between two threads.

    Attributes:
        name: What problems call it.
        writes: Whether it may change what other actors see.
        slow: Whether it is passed over most of the time, as a process that was stopped.
        alone: Whether no other writer did anything while it ran.
        cut_off: How many of its next exchanges get nowhere.
        failure: What it ended with; ``None`` if it ended well or was killed.
    """

    name: str
    writes: bool
    slow: bool = False
    alone: bool = True
    cut_off: int = 0
    killed: bool = False
    failure: BaseException | None = None
    stack: Any = field(default=None, repr=False)


class Network:
    """Actors, and what lies between them and the server.

    Args:
        server: Where commands really go.
        watch: Called after every delivery with its replies.
        late: Whether requests may arrive steps after their actor gave them up.

    Attributes:
        kills_every: One turn in so many is the last of its actor.
    """

    def __init__(
        self,
        dice: Dice,
        server: Transport,
        counters: Counter[str],
        watch: Watcher,
        *,
        late: bool = True,
    ) -> None:
        self.kills_every = _KILLS_EVERY
        self.watchdog = Watchdog()
        self._scripts = _Scripts()
        self.faults = True
        self.actors: list[Actor] = []
        self._dice = dice
        self._server = server
        self._counters = counters
        self._watch = watch
        self._may_be_late = late
        self._current: Actor | None = None
        self._late: list[tuple[int, Sequence[Command]]] = []
        self._step = 0

    @property
    def current(self) -> Actor | None:
        """Actor that uses the server; ``None`` for the test itself."""
        return self._current

    def connect(self, _config: object) -> Transport:
        """A way to the server for a client; who uses it is found out by itself."""
        return _Way(self)

    def start(self, name: str, body: Callable[[], None], *, writes: bool) -> Actor:
        """An actor that waits for its first turn."""
        actor = Actor(name, writes, slow=self._dice.one_in(5))
        if writes:
            actor.alone = not self._late and not any(other.writes for other in self.actors)
            self.disturb()
        self.actors.append(actor)
        actor.stack = greenlet(lambda: _live(actor, body))
        return actor

    def disturb(self) -> None:
        """No actor under way is alone any more."""
        for other in self.actors:
            other.alone = False

    def step(self) -> Actor | None:
        """Runs one exchange of one actor; returns the actor if it ended."""
        self._step += 1
        if self._late:
            self._arrive(lambda due: due <= self._step)
        if not self.actors:
            return None
        actor = self._choose()
        if self.faults and self._dice.one_in(self.kills_every):
            self._counters["killed"] += 1
            actor.killed = True
        self._resume(actor)
        if isinstance(actor.failure, HangError):
            raise HangError(actor.name)
        if isinstance(actor.failure, (KeyboardInterrupt, SystemExit)):
            raise actor.failure
        if not actor.stack.dead:
            return None
        self.actors.remove(actor)
        return actor

    def _resume(self, actor: Actor) -> None:
        self._current = actor
        self.watchdog.turns += 1
        actor.stack.switch()
        self._current = None

    def _choose(self) -> Actor:
        awake = [actor for actor in self.actors if not actor.slow]
        some = awake if awake and not self._dice.one_in(_SLOW_TURNS) else self.actors
        return self._dice.choice(some)

    def flush(self) -> None:
        """Delivers the commands that are still on their way."""
        self._arrive(lambda _due: True)

    def end(self) -> None:
        """Kill whoever still lives."""
        for actor in self.actors:
            actor.killed = True
            self._resume(actor)
        self.actors.clear()

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Exchanges commands as a client's transport, on the stack of an actor or of the test."""
        actor = self._current
        if not commands:
            return []
        if actor is None:
            return self._deliver(commands)
        actor.stack.parent.switch()
        if actor.killed:
            raise Killed
        return self._by_fate(actor, commands)

    def _by_fate(self, actor: Actor, commands: Sequence[Command]) -> list[Any]:
        fate = self._dice.below(24) if self.faults else -1
        if fate >= 0 and actor.cut_off > 0:
            actor.cut_off -= 1
        elif fate == 0:
            self._counters["request lost"] += 1
        elif fate == 1:
            self._counters["reply lost"] += 1
            self._deliver(commands)
            if self._dice.one_in(8):
                # Longer than its deadline: what came of the request stays unknown.
                actor.cut_off = _CUT_OFF_EXCHANGES
        elif fate == 2 and self._may_be_late:
            self._counters["request late"] += 1
            due = self._step + self._dice.between(1, _LATE_STEPS_MAX)
            self._late.append((due, commands))
            self.disturb()
        elif fate == 3 and len(commands) > 1:
            self._counters["pipeline cut"] += 1
            # Without its EXEC a transaction has no effect.
            if commands[0] != ("MULTI",):
                self._deliver(commands[: self._dice.between(1, len(commands) - 1)])
        else:
            if fate == 4:
                self._counters["scripts flushed"] += 1
                self._forget_scripts()
            return self._deliver(commands)
        raise redis.ConnectionError("the connection was cut")

    def _deliver(self, commands: Sequence[Command]) -> list[Any]:
        replies = self._server.exchange(self._scripts.known(commands))
        self._watch(commands, replies)
        return replies

    def _forget_scripts(self) -> None:
        self._scripts.forget()
        if self._dice.one_in(_REAL_FLUSH_EVERY):
            self._server.exchange([("SCRIPT", "FLUSH")])

    def _arrive(self, is_due: Callable[[int], bool]) -> None:
        due = [one for one in self._late if is_due(one[0])]
        self._late = [one for one in self._late if not is_due(one[0])]
        for _, commands in due:
            self.disturb()
            self._deliver(commands)


def _live(actor: Actor, body: Callable[[], None]) -> None:
    try:
        if not actor.killed:
            body()
    except Killed:
        pass
    except BaseException as error:  # noqa: BLE001  # judged by whoever started the actor
        actor.failure = error


class Watchdog:
    """Ends who neither talks to the server nor ends: looks now and then whether turns were taken.

    Attributes:
        turns: How many there were.
    """

    def __init__(self) -> None:
        self.turns = 0
        self._seen = -1

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, _HANG_S, _HANG_S)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _look(self, _signal: int, _frame: object) -> None:
        if self.turns == self._seen:
            raise HangError
        self._seen = self.turns


class _Scripts:
    """Scripts that the server of a schedule knows.

    Compiling all of them again after each flush was most of the server's work. So a script that
    counts as forgotten is called by a hash that no server knows: the reply is a real one.
    """

    def __init__(self) -> None:
        self._known: set[str | bytes] = set()

    def forget(self) -> None:
        self._known.clear()

    def known(self, commands: Sequence[Command]) -> list[Command]:
        """Returns the commands to send instead of the given ones."""
        return [self._known_one(command) for command in commands]

    def _known_one(self, command: Command) -> Command:
        if len(command) == 1:
            # The look at what a server has.
            return command
        if command[0] == "EVAL":
            self._known.add(_sha(command[1]))
        elif command[0] == "EVALSHA" and command[1] not in self._known:
            return (command[0], _UNKNOWN_SHA, *command[2:])
        return command


@cache
def _sha(text: str | bytes) -> str:
    raw = text if isinstance(text, bytes) else text.encode()
    return hashlib.sha1(raw, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class _Way:
    network: Network

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        return self.network.exchange(commands)

    def parts(self) -> Sequence[Transport]:
        return [self]

    def owner_known(self, _slot: int | None) -> None:
        """Implements `Transport.owner_known`."""
        return

    def close(self) -> None:
        return None
