"""Reads of one version of a partition, while maintenance may replace its segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from redis_state.backend.client import Client
from redis_state.errors import FormatError, UnavailableError
from redis_state.ids import PartitionId
from redis_state.protocol.hot_runs import leave_out
from redis_state.protocol.opening import Opened, reopen
from redis_state.protocol.segments import SegmentGoneError

REOPENS_MAX = 5
"""Attempts of one read; maintenance replaces a segment once in many commits."""

T = TypeVar("T")


class Reopening:
    """A version of a partition that is opened again where a segment of it was replaced.

    Attributes:
        opened: The segments that make up the version now.
    """

    def __init__(self, client: Client, opened: Opened, *, attempted: str) -> None:
        self.opened = opened
        self._client = client
        self._attempted = attempted

    def read(self, read: Callable[[Opened], T]) -> T:
        """Returns what a function reads from the segments of the version.

        Raises:
            StateError: A published segment was destroyed.
            UnavailableError: Maintenance replaces segments again and again.
        """
        for _ in range(REOPENS_MAX):
            try:
                return read(self.opened)
            except SegmentGoneError:
                self._open_again()
            except FormatError as error:
                self._open_without_run(error)
        raise replaced_again_and_again(self._attempted, self.opened.id)

    def rows(self, read: Callable[[Opened], Iterator[T]]) -> Iterator[T]:
        """Yields what a function reads piece by piece; starts again only before the first piece.

        Raises:
            StateError: A published segment was destroyed.
            UnavailableError: A segment was dropped after the first piece, or again and again.
        """
        for _ in range(REOPENS_MAX):
            given = False
            try:
                for piece in read(self.opened):
                    given = True
                    yield piece
                return
            except SegmentGoneError:
                # A second start would return rows twice.
                if given:
                    raise UnavailableError(
                        self._attempted,
                        found="the version was dropped while it was read",
                        advice="Start again, and read the rows faster or keep more versions.",
                        where=str(self.opened.id),
                    ) from None
                self._open_again()
            except FormatError as error:
                # All of a hot run is read before the first piece.
                if given:
                    raise
                self._open_without_run(error)
        raise replaced_again_and_again(self._attempted, self.opened.id)

    def _open_without_run(self, error: FormatError) -> None:
        """Opens the version again without its hot run, which may be the damaged segment."""
        if leave_out(self.opened.segments, error, where=self.opened.id) is None:
            raise error
        self._open_again()

    def _open_again(self) -> None:
        self.opened = reopen(self._client, [self.opened])[0]


def replaced_again_and_again(attempted: str, id_: PartitionId | None = None) -> UnavailableError:
    """Returns the error of a read that found replaced segments at each of its attempts."""
    return UnavailableError(
        attempted,
        found="its segments were replaced repeatedly",
        where=str(id_ or ""),
    )
