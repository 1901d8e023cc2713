"""Commits under the option `durability`, with real replicas and real files."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.backend.transport import ServerTransport
from redis_state.config import Config
from redis_state.errors import CommitOutcomeUnknownError, ConfigError, Kind
from redis_state.ids import PartitionId, StateStoreId, StateStoreProviderId
from redis_state.protocol import checkpoint_gen
from redis_state.store.provider import StateStoreProvider
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinel import SentinelSet
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until
from tools import servers
from tools.debian import FetchError

Start = Callable[..., RedisServer]
NAME = "orders"


@pytest.fixture(params=["the server on PATH", "redis-8.0"])
def program(request: pytest.FixtureRequest) -> str | None:
    """Before 7.2 a connection waits for all that the server has, since then for its own writes."""
    if request.param == "redis-8.0":
        return newer_program()
    return None


def newer_program() -> str:
    wanted = next(one for one in servers.SERVERS if one.name == "redis-8.0")
    try:
        return str(servers.ensure(wanted, servers.cache_folder()))
    except FetchError as error:
        pytest.skip(str(error))


def followed(start: Start, count: int, **options: Any) -> list[RedisServer]:
    """A master, and replicas that have caught up."""
    master = start(**options, options={"repl-diskless-sync-delay": "0"})
    follow = {"replicaof": f"127.0.0.1 {master.port}"}
    replicas = [start(options=follow, program=options.get("program")) for _ in range(count)]

    def online() -> bool:
        with master.client() as client:
            found = client.info("replication")
        states = [found.get(f"slave{number}", {}).get("state") for number in range(count)]
        return states == ["online"] * count

    wait_until(online, "the replicas to follow")
    return [master, *replicas]


def patient(url: str, durability: str) -> Config:
    """Returns options for calls that have to succeed, however busy the machine is."""
    return config.parse({"url": url, "durability": durability, "deadline": "60s"})


def hasty(url: str, durability: str) -> Config:
    """Returns options for calls that wait in vain."""
    quick = {"deadline": "1s", "socketTimeout": "500ms"}
    return config.parse({"url": url, "durability": durability, **quick})


def commit_one(
    wanted: Config, version: int, value: int, *, name: str = NAME, **options: Any
) -> int:
    """A process of the one run, which has nothing cached."""
    id_ = StateStoreProviderId(StateStoreId(name, 0, 0), "run")
    provider = StateStoreProvider(id_, config=wanted, **options)
    try:
        store = provider.get_store(version)
        store.put("value", value)
        return store.commit()
    finally:
        provider.close()


def value_of(url: str, version: int) -> object:
    id_ = StateStoreProviderId(StateStoreId(NAME, 0, 0), uuid.uuid4().hex)
    provider = StateStoreProvider(id_, config=config.parse({"url": url, "deadline": "60s"}))
    try:
        return provider.get_read_store(version).get("value")
    finally:
        provider.close()


def partition(url: str) -> PartitionId:
    client = Client(config.parse({"url": url}))
    try:
        gen = checkpoint_gen(client, NAME)
    finally:
        client.close()
    assert gen is not None
    return StateStoreId(NAME, 0, 0).partition(gen)


def latest_in(server: RedisServer, id_: PartitionId) -> bytes | None:
    """Reads the newest version from this server alone."""
    with server.client() as client:
        found: bytes | None = client.hget(keys.meta(id_), "l")
    return found


def test_commit_returns_after_replicas_have_it(start_redis: Start) -> None:
    master, *replicas = followed(start_redis, 2)
    wanted = patient(master.url, "replicas:2")
    for version in range(3):
        assert commit_one(wanted, version, version) == version + 1
        id_ = partition(master.url)
        assert [latest_in(one, id_) for one in replicas] == [b"%d" % (version + 1)] * 2


def test_hanging_replica_raises_not_durable(start_redis: Start) -> None:
    master, _, still = followed(start_redis, 2)
    assert commit_one(patient(master.url, "replicas:2"), 0, 0) == 1
    still.pause()
    with pytest.raises(CommitOutcomeUnknownError) as caught:
        commit_one(hasty(master.url, "replicas:2"), 1, 1)
    assert (caught.value.kind, caught.value.retryable) == (Kind.NOT_DURABLE, True)
    assert "1 of 2 replicas have it" in str(caught.value)
    assert "durability=replicas:2" in str(caught.value)
    # Who asks for less is not kept waiting.
    assert commit_one(patient(master.url, "replicas:1"), 1, 1) == 2
    still.resume()
    assert commit_one(patient(master.url, "replicas:2"), 1, 2) == 2
    assert latest_in(still, partition(master.url)) == b"2"
    assert value_of(master.url, 2) == 2


class LosesAnswers(ServerTransport):
    """The answer to the first commit is lost with its connection; the rest goes over another."""

    def __init__(self, wanted: Config) -> None:
        super().__init__(wanted)
        self._wanted = wanted
        self.commits: list[list[Any]] = []

    def exchange(self, commands: Sequence[Command]) -> list[Any]:
        replies = super().exchange(commands)
        if commands[0] == ("MULTI",):
            self.commits.append(replies)
            if len(self.commits) == 1:
                super().close()
                super().__init__(self._wanted)
                raise redis.ConnectionError
        return replies


def test_retried_commit_waits_for_replicas_too(start_redis: Start, program: str | None) -> None:
    master, replica = followed(start_redis, 1, program=program)
    assert commit_one(patient(master.url, "replicas:1"), 0, 0) == 1
    replica.pause()
    transports: list[LosesAnswers] = []

    def connect(options: Config) -> LosesAnswers:
        transports.append(LosesAnswers(options))
        return transports[-1]

    wanted = hasty(master.url, "replicas:1")
    client = Client(wanted, connect=connect)
    with pytest.raises(CommitOutcomeUnknownError) as caught:
        commit_one(wanted, 1, 1, client=client)
    client.close()
    assert caught.value.kind is Kind.NOT_DURABLE
    assert "0 of 1 replicas have it" in str(caught.value)
    first, second, *_ = transports[0].commits
    assert (first[-2][-1], second[-2][-1]) == ([b"OK"], [b"ALREADY"])
    assert second[-1] == 0, "a wait behind a transaction that wrote nothing would say 1"
    replica.resume()
    assert commit_one(patient(master.url, "replicas:1"), 1, 1) == 2


def test_refused_commit_fails_without_waiting_for_replicas(start_redis: Start) -> None:
    master, replica = followed(start_redis, 1)
    wanted = patient(master.url, "replicas:1")
    assert commit_one(wanted, 0, 0) == 1
    id_ = StateStoreProviderId(StateStoreId(NAME, 0, 0), "run")
    late = StateStoreProvider(id_, config=wanted)
    store = late.get_store(0)
    store.put("value", 7)
    assert commit_one(wanted, 1, 1) == 2
    replica.pause()
    asked = late._client.round_trips
    with pytest.raises(Exception, match="REDIS_FENCED"):
        store.commit()
    assert late._client.round_trips == asked + 1
    late.close()


def test_unsynced_append_only_file_raises_not_durable(start_redis: Start, tmp_path: Path) -> None:
    server = start_redis(folder=tmp_path, program=newer_program())
    wanted = patient(server.url, "aof")
    assert commit_one(wanted, 0, 0) == 1
    with server.client() as client:
        client.config_set("appendfsync", "no")
    with pytest.raises(CommitOutcomeUnknownError, match="not on the server's disk") as caught:
        commit_one(hasty(server.url, "aof"), 1, 1)
    assert caught.value.kind is Kind.NOT_DURABLE
    with server.client() as client:
        client.config_set("appendfsync", "always")
    assert commit_one(wanted, 1, 1) == 2
    server.kill()
    server.restart()
    assert value_of(server.url, 2) == 1
    with server.client() as client:
        client.config_set("appendonly", "no")
    with pytest.raises(ConfigError, match="has appendonly no"):
        commit_one(wanted, 2, 2)


def test_replicas_without_append_only_file_raise_not_durable(
    start_redis: Start, tmp_path: Path
) -> None:
    program = newer_program()
    master, replica = followed(start_redis, 1, folder=tmp_path, program=program)
    with pytest.raises(CommitOutcomeUnknownError, match="0 of 1 replicas have it on disk"):
        commit_one(hasty(master.url, "aof+replicas:1"), 0, 0)
    with replica.client() as client:
        client.config_set("appendonly", "yes")
    wanted = patient(master.url, "aof+replicas:1")
    assert commit_one(wanted, 0, 0) == 1


def is_older(server: RedisServer) -> bool:
    with server.client() as client:
        version: str = client.info("server")["redis_version"]
    return tuple(map(int, version.split(".")[:2])) < (7, 2)


@pytest.fixture
def older(start_redis: Start, tmp_path: Path) -> RedisServer:
    """A server without WAITAOF that writes a file."""
    for wanted in (None, "redis-6.2"):
        found = next((one for one in servers.SERVERS if one.name == wanted), None)
        path = str(servers.ensure(found, servers.cache_folder())) if found else None
        folder = tmp_path / str(wanted)
        folder.mkdir()
        server = start_redis(folder=folder, program=path)
        if is_older(server):
            return server
    raise AssertionError("Redis 6.2 is older")


def test_durability_aof_on_an_older_server_needs_appendfsync_always(older: RedisServer) -> None:
    wanted = patient(older.url, "aof")
    with pytest.raises(ConfigError) as caught:
        commit_one(wanted, 0, 0)
    for words in ("'durability'", "runs version ", "appendfsync everysec", "appendfsync always"):
        assert words in str(caught.value)
    with older.client() as client:
        client.config_set("appendfsync", "always")
        assert commit_one(wanted, 0, 0) == 1
        client.config_set("appendfsync", "everysec")
        # It is looked at with each commit, for it may be changed at any time.
        id_ = StateStoreProviderId(StateStoreId(NAME, 0, 0), "run")
        provider = StateStoreProvider(id_, config=wanted)
        store = provider.get_store(1)
        client.config_set("appendfsync", "always")
        store.put("value", 1)
        client.config_set("appendfsync", "everysec")
        with pytest.raises(ConfigError, match=r"older than 7\.2, has appendfsync everysec"):
            store.commit()
        provider.close()


@pytest.fixture
def sentinels() -> Iterator[SentinelSet]:
    with SentinelSet() as started:
        yield started


def test_acknowledged_commit_survives_its_server(sentinels: SentinelSet) -> None:
    wanted = patient(sentinels.url, "replicas:1")
    for version in range(50):
        commit_one(wanted, version, version)
    sentinels.servers[0].kill()
    assert value_of(sentinels.url, 50) == 49
    # The last one left: nobody can confirm what it takes.
    with pytest.raises(CommitOutcomeUnknownError, match="0 of 1 replicas have it"):
        commit_one(hasty(sentinels.url, "replicas:1"), 50, 50)
    assert commit_one(patient(sentinels.url, "none"), 50, 50) == 51


def cut_off(server: RedisServer) -> None:
    """Closes a server to new connections, and disconnects its replicas and sentinels."""
    with server.client() as client:
        client.config_set("bind", "127.0.0.2")
        for one in client.client_list():
            if one["name"].startswith("sentinel") or "S" in one["flags"]:
                client.client_kill_filter(_id=one["id"])


def test_isolated_master_is_abandoned() -> None:
    with SentinelSet(replicas=2) as sentinels:
        id_ = StateStoreProviderId(StateStoreId(NAME, 0, 0), "run")
        provider = StateStoreProvider(id_, config=patient(sentinels.url, "replicas:1"))
        for version in range(2):
            store = provider.get_store(version)
            store.put("value", version)
            if version == 1:
                cut_off(sentinels.servers[0])
            assert store.commit() == version + 1
        provider.close()
        new = [one for one in sentinels.servers[1:] if latest_in(one, partition(sentinels.url))]
        assert len(new) == 2
        assert value_of(sentinels.url, 2) == 1


def test_durability_in_a_cluster_counts_the_replicas_of_the_slot() -> None:
    with RedisCluster(masters=2, replicas=1) as cluster:
        wanted = patient(cluster.url, "replicas:1")
        assert commit_one(wanted, 0, 0) == 1
        owner = cluster.owner_of(keys.meta(partition(cluster.url)))
        (others,) = cluster.replicas[1 - owner]
        (own,) = cluster.replicas[owner]
        others.pause()
        assert commit_one(wanted, 1, 1) == 2
        others.resume()
        own.pause()
        with pytest.raises(CommitOutcomeUnknownError, match="0 of 1 replicas have it"):
            commit_one(hasty(cluster.url, "replicas:1"), 2, 2)
        own.resume()
        assert commit_one(wanted, 2, 2) == 3
        # The name of a checkpoint may be on another master than its partitions.
        (named,) = cluster.replicas[cluster.owner_of(keys.names(tenant=""))]
        named.pause()
        with pytest.raises(CommitOutcomeUnknownError, match="naming a checkpoint"):
            commit_one(hasty(cluster.url, "replicas:1"), 0, 0, name="another")
        named.resume()


def test_risky_settings_are_warned_about_at_startup(
    start_redis: Start, caplog: pytest.LogCaptureFixture
) -> None:
    master, _ = followed(start_redis, 1)
    with caplog.at_level(logging.WARNING, "redis_state"):
        commit_one(patient(master.url, "none"), 0, 0)
        commit_one(patient(master.url, "none"), 1, 1)
    for words in ("has replicas, but commits do not wait", "keeps no append-only file"):
        assert caplog.text.count(words) == 1
