"""Within the day of a purge: who starts is refused by the purge's name, and renews nothing."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_state import config as options
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import script
from redis_state.batches.driver import Batch, begin_batch, verify_committed
from redis_state.batches.streams import StreamPlan, list_store, make_plan
from redis_state.config import Config
from redis_state.errors import StateError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.maintain.recall import expire, recall
from redis_state.protocol import NamedStore, confirm_checkpoint, register_run, renew_checkpoint
from redis_state.recovery.bringing_back import describe
from redis_state.rescaling.store import rescale_with
from redis_state.store.provider import StateStoreProvider
from tests.contract.query_scene import Batches, text_of
from tests.contract.stream_support import Driver
from tests.contract.vanishing import DAY_MS
from tests.support.redis_server import RedisServer, bytes_of

SCRIPTS = Path(__file__).parents[2] / "redis_state" / "backend" / "scripts"
LAYOUT = '"key k"'
BATCHES_LAYOUT = json.dumps("key k string; codec msgpack")


@pytest.fixture
def raw(redis_server: RedisServer) -> redis.Redis:
    return redis_server.client()


@pytest.fixture
def config(redis_server: RedisServer) -> Config:
    return options.parse({"url": redis_server.url})


@pytest.fixture
def client(config: Config) -> Iterator[Client]:
    made = Client(config)
    yield made
    made.close()


@pytest.fixture
def driver(client: Client, config: Config) -> Driver:
    made = Driver(client, config)
    plan = made.plan()
    for batch in range(2):
        made.task(plan, "r1", batch).run()
    return made


def _plan(driver: Driver) -> StreamPlan:
    return make_plan(
        driver.client,
        name=driver.name,
        tenant="",
        layout=LAYOUT,
        partitions=None,
        partitions_default=1,
        delay_ms=None,
    )


def _confirm(driver: Driver, gen: str, keep_ms: int) -> None:
    store = NamedStore(driver.name, 0, "default", 9)
    confirm_checkpoint(driver.client, gen, store, keep_ms=keep_ms)


def _begin(driver: Driver, number: int, name: str = "", layout: str = LAYOUT) -> Batch:
    return begin_batch(
        driver.client,
        driver.config,
        name=name or driver.name,
        number=number,
        first=0,
        partitions=None,
        partitions_default=1,
        layout=layout,
        codec_name="msgpack",
    )


def _put(driver: Driver, partition: int) -> None:
    id_ = StateStoreProviderId(StateStoreId(driver.name, 0, partition), uuid.uuid4().hex)
    StateStoreProvider(id_, config=driver.config, client=driver.client).get_store(0).put("k", 1)


Way = Callable[[Driver, StreamPlan], object]
# Every way that writes into the registry of a checkpoint.
WAYS: dict[str, Way] = {
    "the call on the driver": lambda driver, _: _plan(driver),
    "a task of the next batch": lambda driver, plan: driver.task(plan, "r2", 2).join(),
    "a task of the newest batch": lambda driver, plan: driver.task(plan, "r2", 1).join(),
    "a task of a batch that has begun": lambda driver, plan: driver.task(plan, "r1", 1).join(),
    "listing a processor's store": lambda driver, plan: list_store(driver.client, plan),
    "a batch of a driver": lambda driver, _: _begin(driver, 2),
    "a driver's run": lambda driver, plan: register_run(
        driver.client, plan.gen, uuid.uuid4().hex, by_driver=True
    ),
    "a run of a task": lambda driver, plan: register_run(
        driver.client, plan.gen, uuid.uuid4().hex, by_driver=False
    ),
    "a run that was registered before": lambda driver, plan: register_run(
        driver.client, plan.gen, "r1", by_driver=True
    ),
    "listing for ever": lambda driver, plan: _confirm(driver, plan.gen, 0),
    "listing for some days": lambda driver, plan: _confirm(driver, plan.gen, 9 * DAY_MS),
    "a partition that was written": lambda driver, _: _put(driver, 0),
    "a partition that was never written": lambda driver, _: _put(driver, 7),
    "a restore or an import": lambda driver, plan: describe(
        driver.client, plan.gen, {}, {(0, "default"): 1}, created_ms=1, tenant=""
    ),
    "another number of partitions": lambda driver, _: rescale_with(
        driver.config, driver.name, 3, group_of=lambda key: key, force=True
    ),
}


@pytest.mark.parametrize("cut", [False, True], ids=["purged", "purged in part"])
@pytest.mark.parametrize("way", WAYS)
def test_start_on_a_purged_checkpoint_is_refused_and_renews_nothing(
    driver: Driver, raw: redis.Redis, way: str, cut: bool
) -> None:
    plan = driver.plan()
    before = _state(raw)
    if cut:
        with pytest.raises(_CutError):
            expire(driver.client, plan.gen, progress=_cut)
        recalled = raw.hgetall(keys.query(plan.gen))
        # The purge ended behind the query, before the first partition.
        for key in raw.keys("*:m"):
            driver.client.script("calling back", script("recall"), [bytes_of(key).decode()], [])
        assert raw.hgetall(keys.query(plan.gen)) == recalled
    else:
        expire(driver.client, plan.gen)
    expiring = _state(raw)
    with pytest.raises(StateError, match=f"redis-state purge --gen {plan.gen} --recall"):
        WAYS[way](driver, plan)
    assert _state(raw) == expiring
    assert not any(plan.gen.encode() in field for field in raw.hkeys(keys.checkpoints()))
    assert 0 < raw.pttl(keys.query(plan.gen)) <= DAY_MS
    recall(driver.client, plan.gen)
    assert _state(raw) == before
    driver.task(driver.plan(), "r2", 2).run()


def test_a_process_that_still_runs_renews_nothing(driver: Driver, raw: redis.Redis) -> None:
    plan = driver.plan()
    expire(driver.client, plan.gen)
    expiring = _state(raw)
    renew_checkpoint(driver.client, plan.gen, keep_ms=9 * DAY_MS)
    query = [keys.query(plan.gen)]
    for args in (["r1"], ["r1", "2"]):
        assert driver.client.script("living", script("alive"), query, args) == ["PURGED"]
    for args in (["0"], [str(9 * DAY_MS)], ["", "marker", "1"]):
        assert driver.client.script("staying", script("stay"), query, args) == ["PURGED"]
    assert _state(raw) == expiring
    assert raw.pttl(keys.query(plan.gen)) <= DAY_MS


class _Interrupting(Client):
    """Carries something out right before or behind a write: by default the entry into the list."""

    key = keys.checkpoints()
    before: Callable[[], object] | None = None
    behind: Callable[[], object] | None = None

    def call(self, attempted: str, commands: Any, **given: Any) -> list[Any]:
        of_list = any(one[:2] == ("HSET", self.key) for one in commands)
        if of_list and self.before is not None:
            do, self.before = self.before, None
            do()
        replies = super().call(attempted, commands, **given)
        if of_list and self.behind is not None:
            do, self.behind = self.behind, None
            do()
        return replies


@pytest.mark.parametrize("place", ["before", "behind"])
@pytest.mark.parametrize("again", [False, True], ids=["purged", "purged and called back"])
def test_a_purge_beside_the_entry_into_the_list_leaves_none(
    driver: Driver, config: Config, raw: redis.Redis, place: str, again: bool
) -> None:
    plan = driver.plan()

    def purge() -> None:
        expire(driver.client, plan.gen)
        if again:
            recall(driver.client, plan.gen)

    late = _Interrupting(config)
    setattr(late, place, purge)
    try:
        if again:
            list_store(late, plan)
        else:
            with pytest.raises(StateError, match="was purged"):
                list_store(late, plan)
    finally:
        late.close()
    listed = {field for field in raw.hkeys(keys.checkpoints()) if plan.gen.encode() in field}
    assert len(listed) == (2 if again else 0)
    if not again:
        recall(driver.client, plan.gen)
    assert json.loads(raw.hget(keys.checkpoints(), plan.gen) or "")["name"] == driver.name


class _Purging(Client):
    """Purges a checkpoint right before the look at its partitions."""

    gen = ""

    def call(self, attempted: str, commands: Any, **given: Any) -> list[Any]:
        if self.gen and attempted == "looking for the committed partitions":
            gen, self.gen = self.gen, ""
            expire(self, gen)
        return super().call(attempted, commands, **given)


@pytest.mark.parametrize("who", ["a task", "a driver", "a driver that ends a batch"])
def test_a_purge_amid_a_batch_is_named_and_not_a_loss(config: Config, who: str) -> None:
    client = _Purging(config)
    driver = Driver(client, config)
    try:
        if who == "a task":
            plan = driver.plan()
            driver.task(plan, "r1", 0).run()
            client.gen = plan.gen
            with pytest.raises(StateError, match=f"--gen {plan.gen} --recall"):
                driver.task(plan, "r1", 1).join()
            return
        store = Batches(client, config, partitions=1)
        store.run(0, "", text_of)
        gen = client.gen = store.gen
        if who == "a driver":
            with pytest.raises(StateError, match=f"--gen {gen} --recall"):
                _begin(driver, 1, store.name, layout=BATCHES_LAYOUT)
            return
        client.gen = ""
        batch = _begin(driver, 1, store.name, layout=BATCHES_LAYOUT)
        client.gen = gen
        with pytest.raises(StateError, match=f"--gen {gen} --recall"):
            verify_committed(client, batch)
    finally:
        client.close()


def test_an_entry_that_a_purge_meets_before_its_mark_comes_back_with_a_recall(
    driver: Driver, config: Config, raw: redis.Redis
) -> None:
    plan = driver.plan()
    # As before the first batch of a query: who begins it is about to list it.
    entered = raw.hgetall(keys.checkpoints())
    raw.delete(keys.checkpoints())
    late = _Interrupting(config)
    late.key = keys.query(plan.gen)
    late.before = lambda: list_store(driver.client, plan)
    try:
        expire(late, plan.gen)
    finally:
        late.close()
    assert late.before is None
    assert not raw.hkeys(keys.checkpoints())
    recall(driver.client, plan.gen)
    assert set(raw.hkeys(keys.checkpoints())) == set(entered)


def test_each_script_that_writes_a_query_looks_for_a_purge() -> None:
    """A script of the registry that is new is found here."""
    found = set()
    for path in SCRIPTS.glob("*.lua"):
        text = path.read_text("utf-8")
        head = re.search(r"-- KEYS  1 \{T rs:<gen>\}:q\n", text)
        if head is None:
            continue
        found.add(path.stem)
        code = re.sub("--.*", "", text)
        check = code.index("'purged'")
        writes = re.search(r"'(HSET|HSETNX|HDEL|PERSIST|PEXPIRE)'", code)
        assert writes is not None
        assert check < writes.start(), path.stem
    assert found == {
        "alive", "batch", "begin", "describe", "forget", "join", "leave", "register", "rewind",
        "stay",
    }  # fmt: skip


class _CutError(Exception):
    """The process is killed here."""


def _cut(_what: str, _done: int, _total: int) -> None:
    raise _CutError


def _state(raw: redis.Redis) -> dict[Any, tuple[Any, bool]]:
    """All hashes, and whether they expire; not that the query was called back once."""
    found = {}
    for key in raw.keys("*"):
        fields = dict(raw.hgetall(key))
        fields.pop(b"recalled", None)
        found[key] = (fields, raw.pttl(key) != -1)
    return found
