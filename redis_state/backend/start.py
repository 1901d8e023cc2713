"""The checks at the start of a job: the server, its settings, and the rights of the user."""

from __future__ import annotations

import uuid
from dataclasses import replace

from redis_state import keys
from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.backend.server import check_server
from redis_state.config import Config
from redis_state.ids import PartitionId, StoreId

LIMIT_MS = 10_000
"""Nobody listens at a wrong address, however long one asks."""

_KEEP_MS = "60000"


def check_start(conf: Config) -> None:
    """Ask the server for its address, version and settings, and for the login and its rights.

    Leaves nothing behind: the commands of a transaction are judged before the first one is done,
    and the last one removes what the others made.

    Raises:
        ConfigError: What is wrong, and what to do.
        UnavailableError: It gave no answer within `LIMIT_MS`, or the deadline if that is shorter.
    """
    client = Client(replace(conf, deadline=min(conf.deadline, LIMIT_MS)))
    try:
        check_server(client)
        client.transaction("checking the server", _commands(conf.key_prefix))
    finally:
        client.close()


def _commands(key_prefix: str | None) -> list[Command]:
    tenant = keys.tenant_of(key_prefix)
    gen = uuid.uuid4().hex
    text = keys.instance(PartitionId(StoreId(gen, 0, tenant=tenant), 0))
    return asked_of(keys.query(gen, tenant=tenant), text)


def asked_of(record: str, text: str) -> list[Command]:
    """The commands of a job, as `redis-state acl` lists them: the JVM asks the same.

    Args:
        record: A key that is to hold a hash.
        text: One that is to hold a string.
    """
    return [
        ("HSET", record, "a", "1"),
        ("PEXPIRE", record, _KEEP_MS),
        ("SET", text, "1", "PX", _KEEP_MS),
        ("HSETNX", record, "b", "1"),
        ("HGET", record, "a"),
        ("HMGET", record, "a"),
        ("HGETALL", record),
        ("HEXISTS", record, "a"),
        ("HLEN", record),
        ("HRANDFIELD", record, "1"),
        ("PTTL", record),
        ("PERSIST", record),
        ("GET", text),
        ("MGET", text),
        ("EXISTS", text),
        ("EVAL", "return 1", "1", record),
        ("HDEL", record, "a"),
        ("UNLINK", record, text),
    ]
