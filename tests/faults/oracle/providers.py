"""Providers of a schedule: those of two executors, and those of processes with nothing cached."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from redis_state import config as options
from redis_state.backend.client import Client
from redis_state.config import Config
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.protocol import RegisteredRun
from redis_state.store.provider import StateStoreProvider
from tests.faults.oracle.dice import Dice
from tests.faults.oracle.runs import Run
from tests.faults.oracle.timeline import RETAINED

NAME = "oracle"


class Providers:
    """Makes providers of one partition.

    Args:
        client: Makes a client.
        registered: Runs by their ids that a driver registered.
        lists: Whether the values are lists, which cannot have a time to live.
    """

    def __init__(
        self,
        dice: Dice,
        url: str,
        client: Callable[[], Client],
        registered: Mapping[str, RegisteredRun],
        *,
        lists: bool,
    ) -> None:
        self._dice = dice
        self._url = url
        self._client = client
        self._shared = client()
        self._registered = registered
        self._lists = lists
        self._known: dict[tuple[int, str], tuple[StateStoreProvider, int | None]] = {}

    def of_executor(self, executor: int, run: Run, ttl_s: int | None) -> StateStoreProvider:
        """The executor's own, whose cache may have outlived earlier runs."""
        known, ttl_before = self._known.get((executor, run.run_id), (None, None))
        if known is None or ttl_before != ttl_s or self._dice.one_in(6):
            earlier = [one for (at, _), (one, _) in self._known.items() if at == executor]
            after = earlier[-1] if earlier and self._dice.one_in(2) else None
            known = StateStoreProvider(
                StateStoreProviderId(StateStoreId(NAME, 0, 0), run.run_id),
                config=config_of(self._url, ttl_s),
                lists=self._lists,
                run=self._registered.get(run.run_id),
                client=self._shared,
                after=after,
            )
            self._known[executor, run.run_id] = known, ttl_s
        return known

    def stranger(self) -> StateStoreProvider:
        """Returns a provider of an unknown run, with nothing cached."""
        id_ = StateStoreProviderId(StateStoreId(NAME, 0, 0), uuid.uuid4().hex)
        return StateStoreProvider(
            id_, config=config_of(self._url), lists=self._lists, client=self._client()
        )


def config_of(url: str, ttl_s: int | None = None) -> Config:
    """Options of a process."""
    ttl = {} if ttl_s is None else {"stateTtl": f"{ttl_s}s"}
    kept = {"versionsToRetain": RETAINED, "deadline": "1s", "connectionsMax": 2}
    return options.parse({"url": url, **kept, **ttl})
