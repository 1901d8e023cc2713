"""A server that begins to evict behind a running job: state is whole, or its loss has a name.

A server that may evict state is refused at the start of a run, but its policy can be changed later.
State has no expiry, and only `allkeys-*` touches that.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from contextlib import closing

import pytest
import redis

from redis_state import config
from redis_state.backend.client import Client
from redis_state.codec import RAW
from redis_state.errors import ConfigError, FullError, Kind, RedisStateError, StateError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.protocol.runs import register_run
from redis_state.store.provider import StateStoreProvider
from tests.support.redis_server import RedisServer

Start = Callable[..., RedisServer]
Rows = dict[bytes, bytes]
VOLATILE = ["volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"]
ALL_KEYS = ["allkeys-lru", "allkeys-lfu", "allkeys-random"]
BATCHES_BEFORE = 8
BATCHES_MAX = 80
CHANGED = 100
PASSING_KEYS = 300


class Job:
    """One run of one partition, and what each of its versions holds."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._writer = self._provider("run")
        self._random = random.Random(7)
        self.versions: list[Rows] = [{}]

    def _provider(self, run: str) -> StateStoreProvider:
        id_ = StateStoreProviderId(StateStoreId("orders", 0, 0), run)
        return StateStoreProvider(id_, config=self._server.url, codec=RAW)

    def commit(self) -> None:
        changed = self._changed()
        self._attempt(self._writer, changed)
        self.versions.append(self.versions[-1] | changed)

    def commit_twice(self) -> None:
        """The second attempt takes the place of the first, which then has an expiry."""
        with closing(self._provider("run")) as first:
            self._attempt(first, self._changed())
        self.commit()

    def _changed(self) -> Rows:
        keys = [b"%06d" % self._random.randrange(1000) for _ in range(CHANGED)]
        return {key: self._random.randbytes(300) for key in keys}

    def _attempt(self, provider: StateStoreProvider, changed: Rows) -> None:
        store = provider.get_store(len(self.versions) - 1)
        store.put_many(changed)
        store.commit()

    def read(self, version: int) -> bool:
        """Returns whether a cold process can read the version; any error must be STATE_LOST."""
        with closing(self._provider(uuid.uuid4().hex)) as reader:
            try:
                found = dict(reader.get_read_store(version).iterator())
            except StateError as error:
                if error.kind is not Kind.STATE_LOST:
                    raise
                return False
        assert found == self.versions[version]
        return True

    def read_all(self) -> list[bool]:
        return [self.read(version) for version in range(1, len(self.versions))]

    def close(self) -> None:
        self._writer.close()


def begin_to_evict(direct: redis.Redis, policy: str) -> None:
    """Leaves room for a few batches, beside keys of others that pass."""
    pipeline = direct.pipeline(transaction=False)
    for number in range(PASSING_KEYS):
        pipeline.set(f"passing {number}", random.Random(number).randbytes(1000), px=3_600_000)
    pipeline.execute()
    direct.config_set("maxmemory-policy", policy)
    direct.config_set("maxmemory", direct.info("memory")["used_memory"] + 100_000)


def commit_until_refused(job: Job) -> RedisStateError | None:
    for _ in range(BATCHES_MAX):
        try:
            job.commit()
        except RedisStateError as error:
            return error
    return None


@pytest.mark.parametrize("policy", ["noeviction", *VOLATILE])
def test_volatile_eviction_keeps_all_state(redis_server: RedisServer, policy: str) -> None:
    with closing(Job(redis_server)) as job, redis_server.client() as direct:
        for _ in range(BATCHES_BEFORE):
            job.commit_twice()
        begin_to_evict(direct, policy)
        error = commit_until_refused(job)
        assert isinstance(error, FullError)
        assert "OOM" in str(error)
        evicted = direct.info("stats")["evicted_keys"]
        assert evicted == 0 if policy == "noeviction" else evicted > PASSING_KEYS
        assert len(job.versions) > BATCHES_BEFORE + 1
        assert all(job.read_all())
        direct.config_set("maxmemory", 0)
        job.commit()
        assert all(job.read_all())


@pytest.mark.parametrize("policy", ALL_KEYS)
def test_evicted_state_raises_state_lost(redis_server: RedisServer, policy: str) -> None:
    with closing(Job(redis_server)) as job, redis_server.client() as direct:
        for _ in range(BATCHES_BEFORE):
            job.commit()
        begin_to_evict(direct, policy)
        error = commit_until_refused(job)
        assert error is None or isinstance(error, StateError)
        assert direct.info("stats")["evicted_keys"] > 0
        assert not all(job.read_all())
        # Nothing is left at last: neither is that taken for a new checkpoint.
        direct.flushall()
        with pytest.raises(StateError) as caught:
            job.commit()
        assert caught.value.kind is Kind.STATE_LOST
        assert not any(job.read_all())


@pytest.mark.parametrize("policy", ALL_KEYS)
def test_next_run_on_an_evicting_server_is_refused(start_redis: Start, policy: str) -> None:
    server = start_redis(options={"maxmemory-policy": policy})
    client = Client(config.parse({"url": server.url}))
    with closing(client), pytest.raises(ConfigError, match=policy):
        register_run(client, uuid.uuid4().hex, "run-2", by_driver=True)
