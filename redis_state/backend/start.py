"""Checks at the start of a job: the server, its settings, and the rights of the user."""

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
"""Limit of the start check, because a longer wait does not help with a wrong address."""

_KEEP_MS = "60000"


def check_start(conf: Config) -> None:
    """Checks address, version and settings of the server, and login and rights of the user.

    Leaves no key behind. The server checks the rights of a whole transaction before it runs a
    command, and the last command removes all keys.

    Raises:
        ConfigError: A check failed; the message has the advice.
        UnavailableError: No answer came within `LIMIT_MS`, or the deadline if that is shorter.
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
    """Returns the commands of a job, as `redis-state acl` lists them. The JVM sends the same.

    Args:
        record: A key for a hash.
        text: A key for a string.
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
        ("RENAME", record, record),
        ("UNLINK", record, text),
    ]
