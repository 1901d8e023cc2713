"""A query with no more rights than `redis-state acl` prints for a job."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import functions as sf

import redis_state
from redis_state import acl
from tests.spark.streams import Streams
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

USER, PASSWORD, TENANT = "job", "rights-secret", "team-a"


def test_query_runs_with_the_printed_rights(
    streams: Streams, redis_server: RedisServer, redis_conf: Callable[..., None]
) -> None:
    rules = acl.rules(acl.Role.JOB, version="7.0", key_prefix=TENANT)
    with redis_server.client() as admin:
        admin.execute_command("ACL", "SETUSER", USER, *rules, f">{PASSWORD}")
    redis_conf(
        {"url": redis_server.url, "username": USER, "password": PASSWORD, "keyPrefix": TENANT}
    )
    source = streams.input("events", "k string")
    counts = source.stream(streams.spark).groupBy("k").agg(sf.count("*").alias("n"))
    for _ in range(2):
        source.add([{"k": "a"}, {"k": "b"}])
        source.add([{"k": "a"}])
        query = streams.run(counts, "counted")
    with redis_server.client() as admin:

        def opened() -> set[bytes]:
            return {bytes(admin.hget(name, "o") or b"") for name in admin.scan_iter("*}:m")}

        # The driver confirms the last batch a moment later.
        wait_until(lambda: opened() == {b"4"}, "the last batch")
        assert admin.execute_command("ACL", "LOG") == []
        reader = acl.rules(acl.Role.READER, version="7.0", key_prefix=TENANT)
        admin.execute_command("ACL", "SETUSER", USER, *reader, f">{PASSWORD}")
    with redis_state.connect(
        redis_server.url, username=USER, password=PASSWORD, key_prefix=TENANT
    ) as read:
        found = read.query(str(query.id)).operator(0).get({"k": "a"}, version=4)
        assert found == {"count": 4}
    with redis_server.client() as admin:
        assert admin.execute_command("ACL", "LOG") == []
