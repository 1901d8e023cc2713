"""Bad servers and bad options: a named error that says what to do, and nothing lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from pyspark.errors import StreamingQueryException

import redis_state
from redis_state.files import folder_at
from redis_state.recovery.marker import gen_of
from tests.spark.streams import Streams
from tests.spark.test_checkpoints import NAME, Job
from tests.support.redis_server import RedisServer, free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

CANARY = "canary-7f3a-password"


@pytest.fixture
def job(streams: Streams) -> Job:
    job = Job(streams)
    job.feed(1)
    return job


def failure(job: Job) -> str:
    with pytest.raises(StreamingQueryException) as caught:
        job.run()
    return str(caught.value)


def test_unreachable_server_raises_unavailable(job: Job, redis_conf: Callable[..., None]) -> None:
    redis_conf({"url": f"redis://127.0.0.1:{free_port()}/0", "deadline": "1s"})
    message = failure(job)
    assert "[REDIS_UNAVAILABLE]" in message
    assert "reachable" in message


def test_wrong_password_raises_permission(
    job: Job, redis_conf: Callable[..., None], start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis(password="right")
    redis_conf({"url": server.url, "password": CANARY})
    message = failure(job)
    assert "[REDIS_PERMISSION]" in message
    assert "password" in message
    assert CANARY not in message


def test_missing_password_raises_permission(
    job: Job, redis_conf: Callable[..., None], start_redis: Callable[..., RedisServer]
) -> None:
    redis_conf({"url": start_redis(password="right").url})
    message = failure(job)
    assert "[REDIS_PERMISSION]" in message
    assert "passwordFile" in message


def test_wrong_database_raises_config(
    job: Job, redis_conf: Callable[..., None], redis_server: RedisServer
) -> None:
    redis_conf({"url": redis_server.url[:-1] + "9999"})
    message = failure(job)
    assert "[REDIS_CONFIG]" in message
    assert "9999" in message


def test_tls_to_a_plain_port_is_named(
    job: Job, redis_conf: Callable[..., None], redis_server: RedisServer
) -> None:
    redis_conf(
        {
            "url": redis_server.url.replace("redis://", "rediss://"),
            "deadline": "1s",
            "socketTimeout": "1s",
        }
    )
    message = failure(job)
    assert "[REDIS_UNAVAILABLE]" in message
    assert "does that port speak TLS" in message


def test_query_runs_over_tls_with_a_password(
    job: Job, redis_conf: Callable[..., None], start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis(tls=True, password=CANARY)
    assert server.certificates is not None
    redis_conf(
        {
            "url": server.url,
            "password": CANARY,
            "tls.caFile": str(server.certificates.authority),
        }
    )
    job.run()
    job.check()


def test_evicting_server_is_refused(
    job: Job, redis_conf: Callable[..., None], start_redis: Callable[..., RedisServer]
) -> None:
    redis_conf({"url": start_redis(options={"maxmemory-policy": "allkeys-lru"}).url})
    message = failure(job)
    assert "[REDIS_CONFIG]" in message
    assert "noeviction" in message


def test_old_server_is_refused(
    job: Job, redis_conf: Callable[..., None], old_redis_server: RedisServer
) -> None:
    redis_conf({"url": old_redis_server.url})
    message = failure(job)
    assert "[REDIS_CONFIG]" in message
    assert "runs version 5." in message
    assert "Redis 6.2 or newer, or Valkey, is needed" in message


def test_unknown_option_names_the_nearest(job: Job, redis_conf: Callable[..., None]) -> None:
    redis_conf({"versionToRetain": "5"})
    assert "versionsToRetain" in failure(job)


def test_user_information_in_the_url_is_refused(job: Job, redis_conf: Callable[..., None]) -> None:
    redis_conf({"url": f"redis://user:{CANARY}@127.0.0.1:6379/0"})
    message = failure(job)
    assert "[REDIS_CONFIG]" in message
    assert CANARY not in message


def test_out_of_memory_fails_the_batch_and_loses_nothing(
    job: Job, redis_conf: Callable[..., None], redis_server: RedisServer
) -> None:
    redis_conf({"url": redis_server.url})
    job.feed(1)
    job.run()
    with redis_server.client() as client:
        client.config_set("maxmemory", "1mb")
        job.feed(1)
        message = failure(job)
        assert "[REDIS_FULL]" in message
        client.config_set("maxmemory", "0")
    job.run()
    job.check()


def test_a_full_disk_fails_the_batch_and_loses_nothing(
    job: Job,
    redis_conf: Callable[..., None],
    start_redis: Callable[..., RedisServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    server = start_redis(folder=tmp_path_factory.mktemp("redis"))
    redis_conf({"url": server.url})
    job.run()
    server.fill_disk()
    job.feed(1)
    assert "[REDIS_FULL]" in failure(job)
    server.clear_disk()
    with server.client() as client:
        wait_until(
            lambda: client.info("persistence")["aof_last_write_status"] == "ok",
            "the server to notice",
        )
    job.run()
    job.check()


def test_evicted_state_of_a_query_raises_state_lost(
    job: Job, redis_conf: Callable[..., None], redis_server: RedisServer
) -> None:
    redis_conf({"url": redis_server.url})
    job.run()
    with redis_server.client() as client:
        client.config_set("maxmemory-policy", "volatile-random")
        client.config_set("maxmemory", "1mb")
        job.feed(1)
        assert "[REDIS_FULL]" in failure(job)
        client.config_set("maxmemory-policy", "allkeys-random")
        with pytest.raises(redis.ResponseError):
            client.set("k", "v")
        assert client.dbsize() == 0
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "0")
    assert "[REDIS_STATE_LOST]" in failure(job)
    gen = gen_of(folder_at(str(job.streams.checkpoint(NAME))))
    with redis_state.connect(redis_server.url) as reader:
        lost = ("lost", 0, "default")
        wait_until(lambda: reader.errors([gen])[gen].get(lost, 0) > 0, "the loss to be counted")
