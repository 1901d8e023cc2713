"""Tasks of a streaming query whose steps are taken one by one, and their drivers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from redis_state.backend.client import Client
from redis_state.batches.event_time import NOTES_KEY, RAW_SCHEMA, Notes, declare_notes
from redis_state.batches.streams import (
    FRAME_LETTERS,
    JoinedBatch,
    StreamPlan,
    TaskPlace,
    join_batch,
    take_plan,
)
from redis_state.codec.ordered_key import encode_key
from redis_state.config import Config
from redis_state.ids import StateStoreProviderId
from redis_state.protocol import RegisteredRun, checkpoint_gen
from redis_state.store.family_store import FamilyStore
from redis_state.store.provider import StateStoreProvider

QUERY = "the-query"
TENANT = ""
DELAY_MS = 10


def call(client: Client, name: str, **given: Any) -> StreamPlan:
    """Registers a plan as a driver's call of `transform_with_state` does."""
    gen = checkpoint_gen(client, name, tenant=TENANT, create=True)
    assert gen is not None
    number = take_plan(client, gen, tenant=TENANT)
    made = StreamPlan(name, gen, TENANT, 0, 1, '"key k"', number, DELAY_MS)
    return replace(made, **given)


@dataclass
class Task:
    """One attempt of a task; its steps are taken one by one."""

    client: Client
    config: Config
    plan: StreamPlan
    place: TaskPlace
    text: str
    newest_ms: int = 0
    joined: JoinedBatch | None = None
    store: FamilyStore | None = None
    prefix: bytes = b""
    read: bytes | None = None

    @property
    def steps(self) -> list[Callable[[], object]]:
        return [self.join, self.open, self.change, self.commit]

    def join(self) -> None:
        self.joined = join_batch(self.client, self.plan, self.place)

    def open(self) -> None:
        assert self.joined is not None
        provider = StateStoreProvider(
            StateStoreProviderId(self.plan.store_id(self.place.partition), self.place.run_id),
            config=self.config,
            families=True,
            run=self.joined.run,
            client=self.client,
        )
        self.store = provider.get_family_store(self.joined.version)

    def take_initial(self, owner: RegisteredRun) -> None:
        """Commit version 1, as an initial state does."""
        provider = StateStoreProvider(
            StateStoreProviderId(self.plan.store_id(self.place.partition), owner.run_id),
            config=self.config,
            families=True,
            run=owner,
            client=self.client,
        )
        self.store = provider.get_family_store(0)
        self.joined = JoinedBatch(owner, 0, 0, 0)
        self.change()
        self.commit()

    def change(self) -> None:
        assert self.store is not None
        assert self.joined is not None
        declare_notes(self.store)
        self.prefix = self.store.declare("log", key_schema=RAW_SCHEMA, value_schema=RAW_SCHEMA)
        row = self.prefix + encode_key("log")
        self.read = self.store.get(row)
        self.store.put(row, (self.read or b"") + self.text.encode() + b" ")
        before = Notes.decode(self.store.get(NOTES_KEY))
        newest_ms = max(before.newest_ms, self.newest_ms)
        self.store.put(NOTES_KEY, Notes(newest_ms, self.joined.watermark_ms).encode())

    def commit(self) -> None:
        assert self.store is not None
        self.store.commit()

    def run(self) -> Task:
        for step in self.steps:
            step()
        return self


def frame_of(run: str, batch: int) -> str:
    """The frame that a run has of a batch."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{run}:{batch}").hex[:FRAME_LETTERS]


class Driver:
    """A driver: the numbers of its task attempts rise over all of its queries."""

    def __init__(self, client: Client, config: Config, **given: Any) -> None:
        self.client, self.config = client, config
        self.name = uuid.uuid4().hex
        self.given = given
        self.attempts = 0

    def plan(self) -> StreamPlan:
        return call(self.client, self.name, **self.given)

    def task(
        self, plan: StreamPlan, run: str, batch: int, *, partition: int = 0, **given: Any
    ) -> Task:
        planned = given.pop("planned", str(1000 + batch))
        frame = given.pop("frame", frame_of(run, batch))
        query = given.pop("query", QUERY)
        place = TaskPlace(query, run, batch, partition, self.attempts, planned, frame)
        self.attempts += 1
        text = given.pop("text", f"{run}:{batch}")
        return Task(self.client, self.config, plan, place, text, **given)
