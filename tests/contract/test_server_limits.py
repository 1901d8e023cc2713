"""A server that lacks a command, or has a limit, is named as such, and not as one that is down."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
import redis

from redis_state import config
from redis_state.backend import needs
from redis_state.backend.client import Client
from redis_state.backend.script import Command
from redis_state.backend.server import check_server
from redis_state.errors import (
    CommitOutcomeUnknownError,
    ConfigError,
    Kind,
    RedisStateError,
    UnavailableError,
)
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.protocol.runs import register_run
from redis_state.store.provider import StateStoreProvider
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer

Start = Callable[..., RedisServer]
MIB = 1 << 20
SECRET = "a-row-of-the-state"
FIVE_MIB = os.urandom(5 * MIB)


def client_of(server: RedisServer, **options: Any) -> Client:
    given = {"url": server.url, "deadline": "1s", "socket_timeout": "500ms", **options}
    clock = given.pop("clock", ManualClock())
    return Client(config.parse(given), clock=clock)


def error_of(client: Client, *commands: Command) -> RedisStateError:
    with closing(client), pytest.raises(RedisStateError) as caught:
        client.call("trying", commands)
    return caught.value


def allow(server: RedisServer, *rules: str) -> dict[str, str]:
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "joe", "on", ">pw", "~*", "+@all", *rules)
    return {"username": "joe", "password": "pw"}


@contextmanager
def full_of_clients(server: RedisServer) -> Iterator[list[redis.Redis]]:
    """Opens as many connections as the server accepts."""
    held: list[redis.Redis] = []
    try:
        with suppress(redis.RedisError):
            while True:
                held.append(server.client(single_connection_client=True))
        yield held
    finally:
        for one in held:
            one.close()


# ---- maxclients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("login", [{}, {"username": "joe", "password": "pw"}])
def test_no_more_connections_raises_unavailable_at_the_deadline(
    start_redis: Start, login: dict[str, str]
) -> None:
    server, clock = start_redis(options={"maxclients": "3"}), ManualClock()
    allow(server)
    with full_of_clients(server):
        error = error_of(client_of(server, clock=clock, **login), ("PING",))
    assert isinstance(error, UnavailableError)
    assert "Raise maxclients on the server" in str(error)
    assert "Check that the server runs" not in str(error)
    assert sum(clock.slept_s) >= 1


def test_freed_connection_is_used(start_redis: Start) -> None:
    server, clock = start_redis(options={"maxclients": "3"}), ManualClock()
    with full_of_clients(server) as held:
        clock.sleeps_are = lambda: held.pop().close() if held else None
        with closing(client_of(server, clock=clock, deadline="60s")) as client:
            assert client.call("greeting the server", [("PING",)]) == [True]
    assert clock.slept_s


def test_commit_without_a_connection_has_an_unknown_outcome(start_redis: Start) -> None:
    server = start_redis(options={"maxclients": "3"})
    with (
        full_of_clients(server),
        closing(client_of(server)) as client,
        pytest.raises(CommitOutcomeUnknownError, match="maxclients"),
    ):
        client.transaction("committing", [("SET", "name", "1")])


# ---- commands -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", needs.COMMANDS)
def test_a_lacking_command_is_named_before_anything_is_written(
    start_redis: Start, name: str
) -> None:
    server = start_redis(lacks=[name])
    with closing(client_of(server)) as client, pytest.raises(ConfigError) as caught:
        register_run(client, uuid.uuid4().hex, "run-1", by_driver=True)
    assert caught.value.kind is Kind.CONFIG
    assert f"{server.url} lacks the command {name}:" in str(caught.value)
    assert "rename-command" in str(caught.value)
    with server.client() as raw:
        assert raw.dbsize() == 0


def test_check_needs_no_right_and_leaves_nothing(start_redis: Start) -> None:
    server = start_redis()
    login = allow(server, "-@all", "+info")
    with closing(client_of(server, **login)) as client:
        check_server(client)
    with server.client() as raw:
        assert raw.execute_command("ACL", "LOG") == []
        assert raw.dbsize() == 0


@pytest.mark.parametrize("name", ["INFO", "CONFIG", "COMMAND", "ROLE"])
def test_lack_of_an_optional_command_is_accepted(
    start_redis: Start, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_redis(lacks=[name])
    with caplog.at_level(logging.WARNING, "redis_state"), closing(client_of(server)) as client:
        check_server(client)
    assert ("could not be checked" in caplog.text) is (name == "INFO")


@pytest.mark.parametrize("name", ["HSET", "MULTI", "EXEC", "EVAL", "EVALSHA"])
def test_command_removed_later_is_named_without_arguments(start_redis: Start, name: str) -> None:
    server = start_redis(lacks=[name])
    sent: dict[str, list[Command]] = {
        "HSET": [("HSET", "{x}", SECRET, SECRET)],
        "EVAL": [("EVAL", f"return '{SECRET}'", "0")],
        "EVALSHA": [("EVALSHA", "0" * 40, "0", SECRET)],
    }
    with closing(client_of(server)) as client:
        ask = client.call if name in sent else client.transaction
        with pytest.raises(ConfigError) as caught:
            ask("trying", sent.get(name, [("SET", "name", SECRET)]))
    assert f"lacks the command {name}:" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_lacking_command_of_a_script_is_named(start_redis: Start) -> None:
    server = start_redis(lacks=["HSETNX", "HSET"])
    error = error_of(
        client_of(server), ("EVAL", "return redis.call('HSET', KEYS[1], 'a', 'b')", "1", "{x}")
    )
    assert isinstance(error, ConfigError)
    assert "lacks commands (HSET, HSETNX):" in str(error)


def test_lacking_connection_command_is_named(start_redis: Start) -> None:
    server = start_redis(lacks=["SELECT", "AUTH"])
    login = allow(server)
    error = error_of(client_of(server, **login), ("PING",))
    assert isinstance(error, ConfigError)
    assert "lacks the command AUTH:" in str(error)
    other = config.parse({"url": server.url.removesuffix("/0") + "/1", "deadline": "1s"})
    error = error_of(Client(other), ("PING",))
    assert isinstance(error, ConfigError)
    assert "lacks the command SELECT:" in str(error)


@pytest.mark.parametrize("refused", [{"lacks": ["EXEC"]}, {"rules": "-exec"}])
def test_a_refused_exec_leaves_no_connection_inside_a_transaction(
    start_redis: Start, refused: dict[str, Any]
) -> None:
    server = start_redis(lacks=refused.get("lacks", ()))
    login = allow(server, *refused.get("rules", "").split())
    with closing(client_of(server, connections_max=2, **login)) as client:
        with pytest.raises(ConfigError):
            client.transaction("trying", [("SET", "name", "1")])
        assert client.call("reading", [("GET", "name")]) == [None]


def test_large_request_without_a_password_raises_permission(start_redis: Start) -> None:
    server = start_redis(password="right")
    for command in (("EVALSHA", *["x"] * 20), ("EVAL", "x" * 20_000, "0")):
        error = error_of(client_of(server), command)
        assert error.kind is Kind.PERMISSION
        assert "requires a password" in str(error)


def test_password_for_a_server_without_one_raises_permission(redis_server: RedisServer) -> None:
    error = error_of(client_of(redis_server, password="geheim"), ("PING",))
    assert error.kind is Kind.PERMISSION
    assert "the server has no password, and one was given" in str(error)
    assert "geheim" not in str(error)


# ---- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["proto-max-bulk-len", "client-query-buffer-limit"])
@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_block_above_a_limit_of_the_server_names_the_limit(
    start_redis: Start, limit: str, in_transaction: bool
) -> None:
    server = start_redis(options={limit: "1mb"})
    command = ("HSET", "{x}", "field", FIVE_MIB)
    with closing(client_of(server)) as client:
        ask = client.transaction if in_transaction else client.call
        with pytest.raises(ConfigError) as caught:
            ask("staging", [("SET", "{x}1", "1"), command])
    assert limit in str(caught.value)
    assert "make the rows smaller" in str(caught.value)


@pytest.mark.parametrize("limit", ["proto-max-bulk-len", "client-query-buffer-limit"])
def test_a_row_above_a_limit_fails_its_commit_alone(start_redis: Start, limit: str) -> None:
    server = start_redis(options={limit: "1mb"})
    provider = StateStoreProvider(
        StateStoreProviderId(StateStoreId("orders", 0, 3)), url=server.url, deadline="10s"
    )
    with closing(provider):
        store = provider.get_store(0)
        store.put("o-1", FIVE_MIB)
        with pytest.raises(ConfigError, match=limit):
            store.commit()
        store = provider.get_store(0)
        store.put("o-1", b"small")
        assert store.commit() == 1


@pytest.mark.parametrize("limit", ["proto-max-bulk-len", "client-query-buffer-limit"])
def test_user_without_config_rights_gets_the_names_of_limits(
    start_redis: Start, limit: str
) -> None:
    server = start_redis(options={limit: "1mb"})
    login = allow(server, "-config")
    error = error_of(client_of(server, **login), ("PING",), ("SET", "x", FIVE_MIB))
    assert isinstance(error, (ConfigError, UnavailableError))
    assert limit in str(error)


@pytest.mark.parametrize("may_ask", [True, False])
def test_an_answer_above_a_limit_names_the_limit(start_redis: Start, may_ask: bool) -> None:
    server = start_redis(options={"client-output-buffer-limit": "normal 1mb 1mb 1"})
    login = allow(server, *([] if may_ask else ["-config"]))
    with server.client() as raw:
        raw.set("x", FIVE_MIB)
    client = client_of(server, **login)
    client.call("greeting the server", [("PING",)])
    error = error_of(client, ("GET", "x"))
    assert isinstance(error, UnavailableError)
    assert "client-output-buffer-limit" in str(error)
    assert "Check that the server runs" not in str(error)
    assert "TLS" not in str(error)


def test_low_limits_are_warned_about_at_startup(
    start_redis: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_redis(
        options={
            "proto-max-bulk-len": "1mb",
            "client-query-buffer-limit": "2mb",
            "client-output-buffer-limit": "normal 1mb 1mb 1",
        }
    )
    with caplog.at_level(logging.WARNING, "redis_state"), closing(client_of(server)) as client:
        check_server(client)
    for found in (
        "proto-max-bulk-len 1048576",
        "client-query-buffer-limit 2097152",
        "client-output-buffer-limit normal 1048576 1048576",
    ):
        assert found in caplog.text


def test_default_limits_cause_no_warning(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "redis_state"),
        closing(client_of(redis_server)) as client,
    ):
        check_server(client)
    assert "limit" not in caplog.text
