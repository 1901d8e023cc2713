"""Checkpoint format 2 over the Python store: what the JVM adapter sends where Spark gives a uid.

Python's own checkpoints are of format 1, so nothing outside of the protocol layer takes a uid. Here
it comes along with whoever asks: an actor has a context of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar

from redis_state.errors import ConflictError
from redis_state.ids import Pin
from redis_state.protocol import PartitionClient
from tests.faults.oracle.timed import SERVER_CLOCK


@dataclass(frozen=True)
class Asked:
    """Settings that a driver sends to its tasks.

    Attributes:
        format: Checkpoint format of the run, 1 or 2.
        pin: The attempt to open; ``None`` if the driver knows no uid.
        whole: Whether a delta is sent in one piece: two that mix their pieces damage each other.
        newest: The newest version of Spark's commit log; ``None`` if there is no log.
    """

    format: int = 1
    pin: Pin | None = None
    whole: bool = False
    newest: Callable[[], int] | None = None


_NOTHING = Asked()
_asked: ContextVar[Asked] = ContextVar("asked", default=_NOTHING)


@contextmanager
def asking(
    format_: int,
    pin: Pin | None,
    newest: Callable[[], int] | None = None,
    *,
    whole: bool = False,
) -> Iterator[None]:
    """Opens this attempt inside the context, for a run of this format."""
    token = _asked.set(Asked(format_, pin, whole, newest))
    try:
        yield
    finally:
        _asked.reset(token)


def pieces(fields: Mapping[str, bytes], **_bounds: int) -> Iterator[dict[str, bytes]]:
    """A delta of a few rows is sent in several pieces, as a large one is."""
    each = [dict(fields)] if _asked.get().whole else [dict([field]) for field in fields.items()]
    return filter(None, each)


def pieces_but_last(
    fields: Mapping[str, bytes], **_blocks: int
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The pieces that come ahead of a commit, and the one that goes along."""
    *early, last = list(pieces(fields)) or [{}]
    return {name: block for piece in early for name, block in piece.items()}, last


class UidClient(PartitionClient):
    """Names the attempt that it opens, and asks the log before it goes back."""

    def _script(
        self, what: str, name: str, idents: Sequence[str], args: Sequence[str | bytes]
    ) -> list[str]:
        pin = _asked.get().pin
        if name == "open" and pin is not None and args[1] == str(pin.version):
            args = [*args[:2], pin.uid, *args[3:]]
        newest = _asked.get().newest
        if name == "open":
            return SERVER_CLOCK.exchanged(super()._script(what, name, idents, args))
        if name != "acquire" or newest is None:
            return super()._script(what, name, idents, args)
        seen = ""
        while True:
            reply = super()._script(what, name, idents, [*args[:9], seen, *args[10:]])
            if reply[0] != "UNSURE":
                return reply
            if newest() > int(args[3]):
                raise ConflictError(what, found=f"another run has logged this batch ({reply[2]})")
            seen = f"{reply[1]} {reply[2]}"


class FormatTwo(UidClient):
    """Attempts of a version stay side by side."""

    _format: ClassVar[str] = "2"


def partition_client(*args: Any, **kwargs: Any) -> PartitionClient:
    """The client of a partition for the run that asks."""
    kind = FormatTwo if _asked.get().format == 2 else UidClient
    return kind(*args, **kwargs)
