"""Each class of error replies, from servers in the state that makes them say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot

from redis_state.backend.script import script
from redis_state.backend.transport import error_word
from redis_state.errors import FullError
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_server import RedisServer, free_port
from tests.support.waiting import wait_until
from tests.topologies.conftest import ActsOnSleep, Connect

WRITE = ("SET", "k", "written")
SCRIPT = ("EVAL", "return redis.call('SET', KEYS[1], 'written')", "1", "k")
Start = Callable[..., RedisServer]


def cured(cure: Callable[[], object]) -> ActsOnSleep:
    """A clock on which the third wait brings the cure."""
    return ActsOnSleep(lambda sleeps: cure() if sleeps == 3 else None)


@pytest.mark.parametrize(
    ("command", "options", "word"),
    [
        (WRITE, {}, "READONLY"),
        (SCRIPT, {}, "READONLY"),
        (("GET", "k"), {"replica-serve-stale-data": "no"}, "MASTERDOWN"),
    ],
)
def test_readonly_is_retried_until_the_replica_is_promoted(
    start_redis: Start,
    connect: Connect,
    command: tuple[str, ...],
    options: dict[str, str],
    word: str,
) -> None:
    server = start_redis(options=options)
    with server.client() as direct:
        direct.replicaof("127.0.0.1", free_port())
        with pytest.raises(redis.RedisError) as refused:
            direct.execute_command(*command)
        assert error_word(refused.value) == word
        clock = cured(lambda: direct.replicaof("NO", "ONE"))
        connect(url=server.url, clock=clock).call("asking", [command])
    assert clock.sleeps == 3


def test_noreplicas_is_retried(redis_server: RedisServer, connect: Connect) -> None:
    with redis_server.client() as direct:
        direct.config_set("min-replicas-to-write", 1)
        clock = cured(lambda: direct.config_set("min-replicas-to-write", 0))
        connect(url=redis_server.url, clock=clock).transaction("writing", [WRITE])
        assert clock.sleeps == 3
        assert direct.get("k") == b"written"


def is_busy(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return "BUSY" in str(error)
    return False


@contextmanager
def endless_script(server: RedisServer) -> Iterator[None]:
    with server.client() as client:
        client.config_set("lua-time-limit", 5)
        connection = client.connection_pool.get_connection()
        connection.send_command("EVAL", "while true do end", "0")
        wait_until(lambda: is_busy(client), "the script to be noticed")
        yield
        connection.disconnect()


def test_busy_is_retried(redis_server: RedisServer, connect: Connect) -> None:
    with endless_script(redis_server), redis_server.client() as direct:

        def kill() -> None:
            direct.script_kill()
            wait_until(lambda: not is_busy(direct), "the script to end")

        clock = cured(kill)
        connect(url=redis_server.url, clock=clock).transaction("writing", [WRITE])
        assert clock.sleeps == 3
        assert direct.get("k") == b"written"


def test_clusterdown_is_retried(cluster: RedisCluster, connect: Connect) -> None:
    slot = key_slot(b"k")
    with cluster.masters[cluster.owner_of("k")].client() as direct:
        clock = cured(lambda: direct.execute_command("CLUSTER", "ADDSLOTS", slot))
        client = connect(url=cluster.url, clock=clock)
        client.call("reading", [("GET", "k")])
        direct.execute_command("CLUSTER", "DELSLOTS", slot)
        client.transaction("writing", [WRITE])
        assert clock.sleeps >= 3
        assert direct.get("k") == b"written"


def test_noscript_sends_the_script_again(redis_server: RedisServer, connect: Connect) -> None:
    client = connect(url=redis_server.url, clock=ActsOnSleep())
    step = script("open")
    arguments = (["{p}:m"], ["-", "-1", ""])
    first = client.script("opening", step, *arguments)
    with redis_server.client() as direct:
        direct.script_flush()
    assert client.script("opening", step, *arguments) == first
    assert client.round_trips == 4


def test_oom_fails_at_once(start_redis: Start, connect: Connect) -> None:
    server = start_redis(maxmemory=1)
    client = connect(url=server.url, clock=ActsOnSleep())
    with server.client() as direct:
        with pytest.raises(FullError, match="OOM"):
            client.transaction("writing", [WRITE, ("SET", "k2", "written")])
        assert direct.exists("k", "k2") == 0


def test_misconf_fails_at_once(start_redis: Start, connect: Connect, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    server = start_redis(options={"dir": str(folder), "save": "3600 1"})
    folder.rmdir()
    with server.client() as direct:
        direct.set("there", "1")
        direct.bgsave()
        wait_until(
            lambda: direct.info("persistence")["rdb_last_bgsave_status"] == "err",
            "the save to fail",
        )
        client = connect(url=server.url, clock=ActsOnSleep())
        with pytest.raises(FullError, match="MISCONF"):
            client.transaction("writing", [WRITE])
        assert direct.exists("k") == 0
