"""Kept versions in schedules of a query with contending drivers, attempts and lost data."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.errors import RedisStateError
from redis_state.ids import PartitionId
from redis_state.protocol import PartitionClient, SegmentGoneError
from redis_state.protocol.pins import KEEP, held_commands, pin_all, read_held, unpin_all
from redis_state.store.local.loading import Loader
from redis_state.store.partition_store import PartitionReadStore
from tests.faults.oracle.dice import Dice
from tests.faults.oracle.timeline import Task

if TYPE_CHECKING:
    from tests.faults.oracle.schedule import Schedule

EVERY = 4
"""One schedule in so many has kept versions."""

_OWNERS = 3


class KeepsBeside:
    """Versions that are kept by name while the query goes on.

    Args:
        schedule: The schedule of the query.
    """

    def __init__(self, schedule: Schedule, dice: Dice) -> None:
        self._schedule = schedule
        self._dice = dice
        self._ended = 0

    def start(self) -> None:
        """Starts an actor that keeps a version, reads one, or drops it."""
        owner = f"keep.{self._dice.below(_OWNERS)}"
        version = max(1, self._schedule.timeline.logged + self._dice.choice([-1, 0, 0, 1]))
        deed = self._dice.choice(["make", "make", "read", "read", "drop"])

        def body() -> None:
            # A version that is gone, or another one of that name, is refused.
            with suppress(RedisStateError):
                if deed == "make":
                    pin_all(self._client(), [self._id], owner, version, kind=KEEP)
                elif deed == "drop":
                    self._ended += 1
                    unpin_all(self._client(), [self._id], owner)
                else:
                    self._read(owner)

        run = self._schedule.timeline.run
        task = Task(f"{deed} {owner}", -1, None, run, counted_on=False)
        self._schedule.start(task, body, run.format, writes=False)

    def end(self) -> None:
        """Drops all of them, past all faults."""
        fields = self._schedule.keyspace.fields(keys.meta(self._id))
        for owner in sorted(name[2:] for name in fields if name[:2] == "x:"):
            unpin_all(self._client(), [self._id], owner)

    def _read(self, owner: str) -> None:
        timeline, ended = self._schedule.timeline, self._ended
        client = self._client()
        (reply,) = client.call("reading", held_commands([self._id], owner))
        try:
            opened = read_held(self._id, reply)
            if opened is None:
                return
            partition = PartitionClient(client, self._id, versions_to_retain=1)
            local = Loader(partition, where=owner)._load(opened, None)
        except (RedisStateError, SegmentGoneError) as error:
            unknown = isinstance(error, RedisStateError) and error.retryable
            if not (unknown or timeline.destroyed) and ended == self._ended:
                self._schedule.counters["false lost"] += 1
                timeline.problem(f"{owner} cannot be read: {error}")
            return
        provider = self._schedule.providers.stranger()
        codec = provider._codec.with_lists()
        rows = dict(PartitionReadStore(provider._partition, codec, local).iterator())
        self._schedule.counters["kept versions read"] += 1
        timeline.loaded(owner, opened.pin, rows, asked=None, logged_in=None)

    @property
    def _id(self) -> PartitionId:
        return self._schedule.partition

    def _client(self) -> Client:
        return self._schedule.client()
