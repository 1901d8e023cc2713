"""Two runs whose drivers both live: the one that goes on in its log is not harmed by the other.

The tests play the drivers and their log, as Spark's tasks find it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest import mock

import pytest

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.errors import ConflictError
from redis_state.ids import StateStoreId
from redis_state.protocol import checkpoint_gen, register_run
from redis_state.recovery.doctor import diagnose
from redis_state.store import checkpoint_link
from redis_state.store.provider import StateStoreProvider
from tests.contract.store_support import NewProvider, new_providers
from tests.faults.oracle.by_uid import asking, partition_client
from tests.support.redis_server import RedisServer

NAME = "started twice"


class Log:
    """The newest version of the commit log, and what happens while a task looks at it."""

    newest = 0
    meanwhile: Callable[[], None] | None = None

    def look(self) -> int:
        found, meanwhile = self.newest, self.meanwhile
        self.meanwhile = None
        if meanwhile is not None:
            meanwhile()
        return found


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def new_provider(redis_server: RedisServer, log: Log) -> Iterator[NewProvider]:
    with (
        mock.patch.object(checkpoint_link, "PartitionClient", partition_client),
        asking(1, None, log.look),
        new_providers(redis_server.url) as new,
    ):
        yield new


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Client]:
    client = Client(config.parse({"url": redis_server.url}))
    yield client
    client.close()


def registered(client: Client, new: NewProvider, run: str) -> StateStoreProvider:
    """Makes the provider of a task whose driver has just registered its run."""
    gen = checkpoint_gen(client, NAME, create=True)
    assert gen is not None
    by_driver = register_run(client, gen, run, by_driver=True)
    return new(run=run, name=NAME, registered=by_driver)


def add(provider: StateStoreProvider, version: int, value: int) -> None:
    store = provider.get_store(version)
    store.put("n", value)
    store.commit()


def read(provider: StateStoreProvider, version: int) -> object:
    return provider.get_read_store(version).get("n")


def test_late_start_raises_conflict(new_provider: NewProvider, client: Client, log: Log) -> None:
    first = registered(client, new_provider, "first")
    second = registered(client, new_provider, "second")
    for number in range(4):
        add(first, number, number)
        log.newest = number
    for version in (0, 2):  # below the opened version
        with pytest.raises(ConflictError, match=r"logged this batch \(first\)"):
            add(second, version, 70)
    log.newest = 4
    with pytest.raises(ConflictError, match=r"logged this batch \(first\)"):
        add(second, 3, 70)
    add(first, 4, 8)
    assert read(first, 5) == 8


def test_contenders_attempt_is_served_until_the_holder_writes(
    new_provider: NewProvider, client: Client
) -> None:
    first = registered(client, new_provider, "first")
    second = registered(client, new_provider, "second")
    add(first, 0, 0)
    one, other = first.get_store(1), second.get_store(1)
    one.put("n", 1)
    other.put("n", 1)
    assert one.commit() == 2
    other.abort()
    gen = checkpoint_gen(client, NAME, create=False)
    assert gen is not None
    (found,) = diagnose(client, gen).partitions
    assert found.loadable == {0, 1, 2}
    third = registered(client, new_provider, "third")
    add(third, 2, 2)
    (found,) = diagnose(client, gen).partitions
    assert found.loadable == {0, 1, 2, 3}


def test_log_poll_counts_only_for_the_version_opened_before_it(
    new_provider: NewProvider, client: Client, log: Log
) -> None:
    first = registered(client, new_provider, "first")
    for number in range(3):
        add(first, number, number)
    log.newest = 2
    second = registered(client, new_provider, "second")

    def goes_on() -> None:
        log.newest = 3
        add(first, 3, 3)

    log.meanwhile = goes_on
    with pytest.raises(ConflictError, match=r"logged this batch \(first\)"):
        add(second, 2, 70)
    add(first, 4, 4)
    assert read(first, 5) == 4


def test_rewound_query_leaves_the_later_batches(
    new_provider: NewProvider, client: Client, log: Log
) -> None:
    first = registered(client, new_provider, "first")
    for number in range(4):
        add(first, number, number)
    log.newest = 1
    add(registered(client, new_provider, "second"), 1, 70)
    with pytest.raises(ConflictError, match=r"\(second, epoch"):
        add(first, 1, 8)
    assert new_provider(name=NAME, run="reader").latest() == 2


@pytest.mark.parametrize("version", [0, 2])
def test_run_that_logs_the_next_batch_wins(
    new_provider: NewProvider, client: Client, log: Log, version: int
) -> None:
    first = registered(client, new_provider, "first")
    for number in range(version + 1):
        add(first, number, number)
    log.newest = version
    second = registered(client, new_provider, "second")
    add(second, version, 70)  # it repeats the batch of the first one
    log.newest = version + 1
    add(first, version + 1, 8)
    with pytest.raises(ConflictError, match=r"\(first, epoch"):
        add(second, version, 71)
    add(first, version + 2, 9)
    log.newest = version + 3
    third = registered(client, new_provider, "third")
    assert read(third, version + 1) == version
    assert read(third, version + 3) == 9
    add(third, version + 3, 10)
    assert read(third, version + 4) == 10


def test_second_start_wins_if_it_logs_the_next_batch(
    new_provider: NewProvider, client: Client, log: Log
) -> None:
    first = registered(client, new_provider, "first")
    for number in range(3):
        add(first, number, number)
    log.newest = 2
    second = registered(client, new_provider, "second")
    add(second, 2, 70)
    add(first, 2, 3)  # a retry of its batch, beside the other's attempt
    assert read(new_provider(name=NAME, run="reader"), 3) == 70
    log.newest = 3
    add(second, 3, 80)
    with pytest.raises(ConflictError, match=r"\(second, epoch"):
        add(first, 2, 4)
    assert read(new_provider(name=NAME, run="reader"), 4) == 80


def test_attempt_is_readable_after_a_later_start_acquired_the_partition(
    new_provider: NewProvider, client: Client, log: Log
) -> None:
    first = registered(client, new_provider, "first")
    for number in range(3):
        add(first, number, number)
    log.newest = 2
    store = registered(client, new_provider, "second").get_store(2)
    store.put("n", 70)
    store.abort()
    log.newest = 3
    third = registered(client, new_provider, "third")
    assert read(third, 3) == 2
    add(third, 3, 80)
    assert read(third, 4) == 80


def test_number_of_contenders_is_bounded(new_provider: NewProvider, client: Client) -> None:
    gen = checkpoint_gen(client, NAME, create=True)
    providers = [registered(client, new_provider, f"run-{number}") for number in range(8)]
    for number, provider in enumerate(providers):
        add(provider, 0, number)
    assert gen is not None
    meta = keys.meta(StateStoreId(NAME, 0, 0).partition(gen))
    (found,) = client.call("looking at the manifest", [("HGETALL", meta)])
    fields = found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))
    assert len(fields[b"k"].split()) == 4
    assert sum(field.startswith(b"d:1:") for field in fields) == 5


def test_attempt_replaced_by_a_contender_after_a_read_is_not_lost(
    new_provider: NewProvider, client: Client, log: Log
) -> None:
    """Seed 2637 of the oracle: the run that reads it is one that executors registered."""
    first = registered(client, new_provider, "first")
    attempts = [first.get_store(0) for _ in range(2)]
    attempts[0].put("n", 0)
    second = registered(client, new_provider, "second").get_store(0)
    second.put("n", 70)  # takes the partition
    attempts[0].commit()
    log.newest = 1
    third = new_provider(name=NAME, run="third").get_store(1)
    attempts[1].put("n", 1)
    attempts[1].commit()  # takes the place of the other one
    with pytest.raises(ConflictError, match="replaced"):
        third.put("n", 3)
