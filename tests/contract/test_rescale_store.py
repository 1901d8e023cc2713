"""Another number of partitions for a store of Python batches: interrupted, raced, refused."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from redis_state import config as options
from redis_state import keys, rescale_store
from redis_state.backend.client import Client
from redis_state.batches.driver import Batch, begin_batch, superseded
from redis_state.cli.main import main
from redis_state.errors import (
    ConflictError,
    FullError,
    NotFoundError,
    RedisStateError,
    StateError,
    UnavailableError,
    UsageError,
)
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.live import Reader
from redis_state.rescaling import checkpoints, rows, switch
from redis_state.rescaling import store as under_test
from redis_state.rescaling.checkpoints import RescaledCheckpoint
from redis_state.rows.murmur3 import partition_of
from redis_state.spark.worker import Worker
from redis_state.store.provider import StateStoreProvider
from redis_state.types.schema import parse_schema
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer

LAYOUT = '"key k string; codec msgpack"'
SCHEMA = parse_schema('{"type":"struct","fields":[{"name":"k","type":"string"}]}')


class Query:
    """A query whose batches set the keys that they are given."""

    def __init__(self, client: Client, url: str) -> None:
        self.client, self.url = client, url
        self.config = options.parse({"url": url})
        self.name = uuid.uuid4().hex

    def begin(self, number: int, partitions: int | None = None) -> Batch:
        return begin_batch(
            self.client,
            self.config,
            name=self.name,
            number=number,
            first=0,
            partitions=partitions,
            partitions_default=3,
            layout=LAYOUT,
            codec_name="msgpack",
        )

    def store(self, batch: Batch, partition: int) -> Any:
        provider = StateStoreProvider(
            StateStoreProviderId(batch.store_id(partition), batch.run.run_id),
            config=self.config,
            run=batch.run,
            client=self.client,
        )
        return provider.get_store(batch.version)

    def commit(self, batch: Batch, rows: dict[str, Any], *, only: int | None = None) -> None:
        for partition in range(batch.partitions):
            if only is not None and partition != only:
                continue
            store = self.store(batch, partition)
            for key, value in rows.items():
                if partition_of(SCHEMA, [key], partitions=batch.partitions) == partition:
                    store.put(key, value)
            store.commit()

    def run(self, number: int, rows: dict[str, Any], partitions: int | None = None) -> None:
        self.commit(self.begin(number, partitions), rows)

    def read(self, batch: Batch) -> dict[str, Any]:
        """All that a batch starts from; each key is where a task looks for it."""
        found: dict[str, Any] = {}
        for partition in range(batch.partitions):
            store = self.store(batch, partition)
            own = dict(store.iterator())
            store.abort()
            for key in own:
                assert partition_of(SCHEMA, [key], partitions=batch.partitions) == partition
            found |= own
        return found

    def rescale(self, partitions: int, **given: Any) -> Any:
        defaults: dict[str, Any] = {"group_of": lambda key: key, "force": True}
        return rescale_store(self.name, partitions, url=self.url, **(defaults | given))


ROWS = {f"k{number}": number for number in range(300)}


@pytest.fixture
def query(redis_server: RedisServer) -> Iterator[Query]:
    config = options.parse({"url": redis_server.url})
    with closing(Client(config)) as client:
        made = Query(client, redis_server.url)
        made.run(0, ROWS)
        made.run(1, {"k7": 70})
        yield made


AFTER = ROWS | {"k7": 70}


@pytest.mark.parametrize("partitions", [1, 2, 8])
def test_newest_batch_may_run_again_and_the_next_one_continues(
    query: Query, partitions: int
) -> None:
    query.rescale(partitions)
    # Spark may not have logged batch 1: it starts from what was before it.
    again = query.begin(1)
    assert (again.partitions, query.read(again)) == (partitions, ROWS)
    query.commit(again, {"k7": 71})
    following = query.begin(2)
    assert query.read(following) == ROWS | {"k7": 71}
    query.commit(following, {"new": 1})
    query.rescale(3)
    assert query.read(query.begin(3)) == ROWS | {"k7": 71, "new": 1}


def test_the_first_batch_may_run_again(redis_server: RedisServer) -> None:
    config = options.parse({"url": redis_server.url})
    with closing(Client(config)) as client:
        query = Query(client, redis_server.url)
        query.run(0, ROWS)
        query.rescale(5)
        assert query.read(query.begin(0)) == {}


def test_a_batch_that_did_not_end_everywhere_is_named(query: Query) -> None:
    query.commit(query.begin(2), {"k1": 1}, only=1)
    with pytest.raises(StateError, match="partition 0, 2 does not hold version 3: batch 2 never"):
        query.rescale(2)
    query.run(2, {"k1": 1})
    assert query.rescale(2).batch == 2


def test_running_query_is_fenced_by_a_rescale(query: Query) -> None:
    batch = query.begin(2)
    query.commit(batch, {})
    late = query.store(batch, 0)
    late.put("late", 1)
    query.rescale(2)
    with pytest.raises(ConflictError):
        late.commit()
    assert "late" not in query.read(query.begin(3))


def test_a_query_that_starts_meanwhile_wins(query: Query) -> None:
    passes = []

    def start_once(key: str) -> str:
        # The second pass has begun to write.
        passes.append(key)
        if len(passes) == len(ROWS) + 10:
            query.run(2, {"k1": 100})
        return key

    with pytest.raises(ConflictError, match="the query was started meanwhile"):
        query.rescale(2, group_of=start_once)
    following = query.begin(3)
    assert (following.partitions, query.read(following)) == (3, AFTER | {"k1": 100})
    expire_by_themselves(query)


def test_rows_of_a_killed_call_expire(query: Query) -> None:
    passes = []

    def killed(key: str) -> str:
        passes.append(key)
        if len(passes) == 2 * len(ROWS) + 250:
            raise KeyboardInterrupt
        return key

    with pytest.raises(KeyboardInterrupt):
        query.rescale(2, group_of=killed)
    expire_by_themselves(query)
    assert query.read(query.begin(2)) == AFTER


def expire_by_themselves(query: Query) -> None:
    """Whatever is not of the query's own checkpoint has an expiry."""
    gen = _gen(query)
    (found,) = query.client.call("looking for keys", [("SCAN", "0", "COUNT", "10000")])
    others = [key for key in found[1] if b":" in key and gen.encode() not in key]
    kept = [key for key in others if b"rs}:" not in key]
    assert kept
    ttls = query.client.call("looking for expiries", [("PTTL", key) for key in kept])
    assert min(ttls) > 0


def _gen(query: Query) -> str:
    field = keys.name_field(query.name)
    (found,) = query.client.call("looking for a name", [("HGET", keys.names(), field)])
    return str(found.decode())


def test_next_rescale_finishes_a_call_killed_at_its_last_step(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    before = query.begin(2)
    query.commit(before, {})
    with monkeypatch.context() as patched:
        patched.setattr(under_test, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            query.rescale(2)
    with pytest.raises(ConflictError, match=r"run the same `redis-state rescale NAME"):
        query.begin(3)
    assert query.rescale(2).partitions == 2
    assert query.read(query.begin(3)) == AFTER
    with pytest.raises(UsageError, match="it already has 2 partitions"):
        query.rescale(2)


REFUSED: list[tuple[str, type[RedisStateError], Callable[[Query], Any], str]] = [
    ("same", UsageError, lambda q: q.rescale(3), "it already has 3 partitions"),
    ("none", UsageError, lambda q: q.rescale(0), "0 partitions were requested"),
    ("in use", UsageError, lambda q: q.rescale(2, force=False), "may be in use"),
    ("unknown", NotFoundError, lambda q: rescale_store("?", 2, url=q.url), "no store of this name"),
    ("misplaced", UsageError, lambda q: q.rescale(2, group_of=lambda key: key + "?"), "lies in"),
    ("mistyped", UsageError, lambda q: q.rescale(2, group_of=lambda _: 5), "does not fit"),
    ("width", UsageError, lambda q: q.rescale(2, group_of=lambda k: (k, k)), "2 values for 1 key"),
]


@pytest.mark.parametrize(("kind", "found", "text"), [one[1:] for one in REFUSED],
                         ids=[one[0] for one in REFUSED])  # fmt: skip
def test_refused_rescale_changes_nothing(
    query: Query, kind: type[RedisStateError], found: Callable[[Query], Any], text: str
) -> None:
    with pytest.raises(kind, match=text):
        found(query)
    assert query.read(query.begin(2)) == AFTER


def test_single_store_is_refused_by_name(redis_server: RedisServer) -> None:
    id_ = StateStoreProviderId(StateStoreId("alone", 0, 0), "r")
    with closing(StateStoreProvider(id_, url=redis_server.url)) as provider:
        store = provider.get_store(0)
        store.put("a", 1)
        store.commit()
    with pytest.raises(UsageError, match="it is a single store, whose program itself assigns"):
        rescale_store("alone", 2, url=redis_server.url)


def test_too_little_memory_is_found_before_anything_is_written(
    query: Query, redis_server: RedisServer
) -> None:
    admin = redis_server.client()
    used = admin.info("memory")["used_memory"]
    admin.config_set("maxmemory", used + 1000)
    try:
        with pytest.raises(FullError, match=r"bytes of memory in Redis, and .* are free"):
            query.rescale(2)
    finally:
        admin.config_set("maxmemory", 0)
    assert query.read(query.begin(2)) == AFTER


def test_the_command_looks_first(query: Query, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["rescale", query.name, "--url", query.url, "--partitions", "2"]
    assert main(command) == 0
    assert "300 rows after batch 1 would go from 3 partitions to 2" in capsys.readouterr().out
    assert query.begin(1).partitions == 3
    query.commit(query.begin(1), {"k7": 70})
    assert main([*command, "--yes", "--force"]) == 0
    assert "300 rows after batch 1 are in 2 partitions now" in capsys.readouterr().out
    assert query.read(query.begin(2)) == AFTER


def test_evaluation_of_an_old_frame_after_a_rescale_is_fenced(query: Query) -> None:
    old = query.begin(2)
    query.commit(old, {"k1": 1})
    done = query.rescale(2)
    late = superseded(query.client, old, "evaluating a batch")
    assert late is not None
    assert "was given another number of partitions" in str(late)
    with pytest.raises(ConflictError):
        query.commit(old, {"k1": 2, "k9": 9}, only=0)
    # A worker knows for which checkpoint the batch began.
    worker = Worker()
    with (
        closing(worker),
        pytest.raises(ConflictError, match="the name has another checkpoint than when"),
    ):
        worker.serve(
            (query.config, old.partition(0)),
            StateStoreProviderId(old.store_id(0), old.run.run_id),
            old.run,
        ).get_store(old.version)
    assert sum(done.rows) == len(ROWS)
    assert query.read(query.begin(3)) == AFTER | {"k1": 1}


def test_as_many_versions_stay_as_before(query: Query) -> None:
    old = query.begin(1)
    query.commit(old, {"k7": 70})
    new = query.rescale(2).new_gen
    ids = old.ids() + [replace(old, gen=new).partition(number) for number in range(2)]
    found = query.client.call("looking", [("HGET", keys.meta(id_), "n") for id_ in ids])
    assert set(found) == {b"100"}


def test_rows_lost_before_the_last_step_raise_unavailable(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = switch.leave

    def late(store: Any, copy: Any, *given: Any) -> None:
        (found,) = query.client.call("looking for keys", [("SCAN", "0", "COUNT", "10000")])
        gone = [key for key in found[1] if copy.gen.encode() in key]
        assert min(query.client.call("when", [("PTTL", key) for key in gone])) > 0
        # As after a day of sleep.
        query.client.call("letting expire", [("DEL", key) for key in gone])
        leave(store, copy, *given)

    with monkeypatch.context() as patched:
        patched.setattr(under_test, "leave", late)
        with pytest.raises(UnavailableError, match=r"expired or was lost .* Try again"):
            query.rescale(2)
    assert query.read(query.begin(2)) == AFTER


def test_a_copy_that_a_killed_call_kept_expires_with_the_next(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[RescaledCheckpoint] = []
    is_whole = RescaledCheckpoint.is_whole

    def killed(copy: RescaledCheckpoint, pins: Any) -> bool:
        kept.append(copy)
        assert is_whole(copy, pins)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RescaledCheckpoint, "is_whole", killed)
        with pytest.raises(KeyboardInterrupt):
            query.rescale(2)
    (copy,) = kept
    names = [keys.query(copy.gen), *map(keys.meta, copy.ids)]
    assert set(query.client.call("when", [("PTTL", name) for name in names])) == {-1}
    assert query.rescale(4).partitions == 4
    assert min(query.client.call("when", [("PTTL", name) for name in names])) > 0
    assert query.read(query.begin(2)) == AFTER


def test_an_interrupted_call_is_finished_and_the_other_number_asked_for_again(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(switch, "confirm_checkpoint", _killed)
        with pytest.raises(KeyboardInterrupt):
            query.rescale(2)
    with pytest.raises(
        UsageError, match=r"for 2 partitions was finished first.*if 5 partitions are still"
    ):
        query.rescale(5)
    assert query.rescale(5).partitions == 5
    assert query.read(query.begin(2)) == AFTER


def _killed(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_the_copy_is_not_counted_as_changes_of_keys(query: Query) -> None:
    query.run(2, {"k1": 1})
    query.commit(query.begin(3), {})
    query.rescale(2)
    with Reader(query.config) as reader:
        found = reader.query(query.name).operator(0).hot(batches=2)
    assert found.updates == 0


def test_reader_of_the_old_checkpoint_raises_state_lost(query: Query) -> None:
    clock = ManualClock()
    config = options.parse({"url": query.url})
    batch = query.begin(2)
    query.commit(batch, {})
    query.begin(3)
    query.commit(query.begin(3), {})
    with Reader(config, clock=clock) as reader:
        state = reader.query(query.name).operator(0)
        assert state.get("k7") == 70
        feed = state.changes(since=1, follow=True)
        assert next(feed).number == 2
        clock.sleeps_are = lambda: query.rescale(2) if len(clock.slept_s) == 1 else None
        with pytest.raises(
            StateError,
            match=r"the store was changed.* Open the store again by its name",
        ):
            next(feed)
        clock.now_s += 10
        with pytest.raises(StateError, match="Open the store again by its name"):
            state.get("k7")
        # What is named is there as long as the old checkpoint is.
        assert state.get("k7", at=1) == 70
        assert reader.query(query.name).operator(0).get("k7") == 70


def test_a_partition_that_was_just_made_expires(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    for module in (rows, checkpoints):
        monkeypatch.setattr(module, "renew", killed)
    with pytest.raises(KeyboardInterrupt):
        query.rescale(2)
    expire_by_themselves(query)
