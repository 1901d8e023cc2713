"""A Python store with a time to live whose versions have the times that a test wants.

Before a version is opened, an attempt without rows at the next version is planted that has the
wanted time: `open` returns it, as for a batch that is run again.
"""

from __future__ import annotations

import uuid
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.config import parse
from redis_state.format.entry import Entry, Segment, segments_in
from redis_state.ids import PartitionId, StateStoreId, StateStoreProviderId
from redis_state.protocol import register_run
from redis_state.store.provider import StateStoreProvider
from tests.support.redis_server import RedisServer

_PLANTED = "f" * 32


@dataclass
class TimedScene:
    """One partition of a fresh store."""

    server: RedisServer
    raw: Any
    ttl: str | None = "100s"
    name: str = field(default_factory=lambda: f"timed {uuid.uuid4().hex}")
    opened: list[StateStoreProvider] = field(default_factory=list)

    def provider(self, *, run: str = "run-1", **options: Any) -> StateStoreProvider:
        """A provider as of a new process; `by_driver` registers its run, which may rewind."""
        id_ = StateStoreProviderId(StateStoreId(self.name, 0, 0), run)
        options = {"state_ttl": self.ttl, **options}
        if options.pop("by_driver", False):
            with closing(Client(parse({"url": self.server.url}))) as client:
                options["run"] = register_run(client, self.id.store.gen, run, by_driver=True)
        made = StateStoreProvider(id_, url=self.server.url, **options)
        self.opened.append(made)
        return made

    def close(self) -> None:
        for provider in self.opened:
            provider.close()

    @property
    def id(self) -> PartitionId:
        gen = self.raw.hget(keys.names(), keys.name_field(self.name))
        return StateStoreId(self.name, 0, 0).partition(gen.decode())

    @property
    def newest_opened(self) -> int:
        """The newest version that a task of the holding run opened."""
        return int(self.raw.hget(keys.meta(self.id), "o"))

    def set_time(self, version: int, time_s: int) -> None:
        """Makes the next version after this one get a time, unless that of this one is later."""
        meta = keys.meta(self.id)
        parent = self.segment(version).uid if version else "-"
        entry = Entry(parent, 0, 0, 0, 0, 1, 0, time=time_s)
        fields = {f"d:{version + 1}:{_PLANTED}": entry.text, "l": version + 1, "lu": _PLANTED}
        self.raw.hset(meta, mapping=fields)

    def segments(self) -> list[Segment]:
        return list(segments_in(self.raw.hgetall(keys.meta(self.id))))

    def segment(self, version: int, *, snapshot: bool = False) -> Segment:
        """The delta or snapshot of a version, of the attempt that is found by version."""
        latest = self.raw.hget(keys.meta(self.id), "lu").decode()
        found = [
            one
            for one in self.segments()
            if one.version == version and one.snapshot is snapshot and one.uid != _PLANTED
        ]
        return next((one for one in found if one.uid == latest), found[-1])

    def time(self, version: int) -> int:
        return self.segment(version).entry.time

    def write(
        self, provider: StateStoreProvider, version: int, rows: dict[Any, Any], time_s: int = 0
    ) -> int:
        """Commits the next version; `None` removes a key."""
        if time_s:
            self.set_time(version, time_s)
        store = provider.get_store(version)
        for key, value in rows.items():
            if value is None:
                store.remove(key)
            else:
                store.put(key, value)
        return store.commit()
