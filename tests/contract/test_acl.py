"""The rights that `redis-state acl` prints: enough for each role, and none of them too many."""

from __future__ import annotations

import logging
import os
import shlex
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from redis_state import acl, config, keys
from redis_state.acl import Role
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.config import Config
from redis_state.coordinator import StateStoreCoordinator
from redis_state.errors import ConfigError, ConflictError, Kind, RedisStateError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.live import Reader
from redis_state.maintain.files import bring_all_back, places_needed, sweep_files
from redis_state.maintain.history import move_history
from redis_state.maintain.orphans import sweep_orphans
from redis_state.maintain.partition import maintain_partition
from redis_state.maintain.purge import purge
from redis_state.maintain.report import Policy
from redis_state.places import Places
from redis_state.places.settings import set_places
from redis_state.places.writer import mark_folder
from redis_state.protocol import checkpoint_gen, register_run
from redis_state.store.provider import StateStoreProvider
from tests.support.redis_server import RedisServer

USER, PASSWORD = "worker", "rights-secret"
CHECKPOINT = "orders"

# What one server without Spark has no use for, and where it is needed.
NEEDED_ELSEWHERE = {
    "asking": "Cluster",
    "cluster|slots": "Cluster",
    "role": "Sentinel",
    "hrandfield": "Spark",
    "ping": "Spark",
    "pttl": "Spark",
}
# Commands that a job sends only if it waits for something.
DURABILITY_OF = {"wait": "replicas:1", "waitaof": "aof", "config|get": "aof"}
# Without these a job goes on: servers are not checked, and who serves what is not told.
ONLY_WARNED = ("info", "set", "get")


def allow(server: RedisServer, *rules: str) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", USER, *rules, f">{PASSWORD}")


def of_user(server: RedisServer, **options: str) -> Config:
    # A database other than 0, so that SELECT is needed.
    url = server.url.removesuffix("/0") + "/1"
    return config.parse(
        {"url": url, "username": USER, "password": PASSWORD, "deadline": "2s", **options}
    )


@pytest.fixture
def server(start_redis: Callable[..., RedisServer], tmp_path: Path) -> RedisServer:
    """One on which a job can wait for a file, with or without WAITAOF, and for a replica."""
    master = start_redis(folder=tmp_path, options={"repl-diskless-sync-delay": "0"})
    start_redis(options={"replicaof": f"127.0.0.1 {master.port}"})
    return master


def version_of(server: RedisServer) -> str:
    with server.client() as client:
        version: str = client.info("server")["redis_version"]
    return version


def rights(server: RedisServer, role: Role, *, key_prefix: str | None = None) -> list[str]:
    version = version_of(server)
    return acl.rules(role, version=version, durability="aof", key_prefix=key_prefix)


def work_as_job(wanted: Config) -> None:
    """Does all that a job does: register, write, abort, read, maintain, report its instances."""
    client = Client(wanted)
    tenant = keys.tenant_of(wanted.key_prefix)
    try:
        gen = checkpoint_gen(client, CHECKPOINT, tenant=tenant, create=True)
        assert gen is not None
        run = register_run(client, gen, uuid.uuid4().hex, by_driver=True, tenant=tenant)
        id_ = StateStoreProviderId(StateStoreId(CHECKPOINT, 0, 0), run.run_id)
        provider = StateStoreProvider(id_, config=wanted, client=client, run=run)
        first = provider.latest() or 0
        for version in range(first, first + 6):
            store = provider.get_store(version)
            store.put("k", version)
            if version == 0:
                # So large a segment is read in pieces.
                store.put("large", os.urandom(1 << 19))
            store.commit()
            provider.do_maintenance()
        # A snapshot, which would not be due yet.
        provider.do_maintenance(make_room=True)
        # Nothing is cached here: the snapshot and the deltas are read.
        cold = StateStoreProvider(id_, config=wanted, client=client)
        assert cold.get_read_store(first + 6).get("k") == first + 5
        # An attempt that comes too late is refused, and its blocks are dropped.
        late = provider.get_store(first + 6)
        late.put("k", 0)
        provider.get_store(first + 6).commit()
        provider.get_store(first + 7)
        with suppress(ConflictError):
            late.commit()
        coordinator = StateStoreCoordinator(client, tenant=tenant, threaded=False)
        reference = coordinator.reference(CHECKPOINT)
        reference.report_active_instance(id_, "localhost", "1")
        coordinator.heartbeat.tick()
        reference.get_location(id_)
        reference.withdraw_instance(id_)
        coordinator.heartbeat.tick()
    finally:
        client.close()


def work_as_reader(wanted: Config) -> None:
    id_ = StateStoreProviderId(StateStoreId(CHECKPOINT, 0, 0), uuid.uuid4().hex)
    provider = StateStoreProvider(id_, config=wanted)
    try:
        latest = provider.latest()
        assert latest is not None
        assert provider.get_read_store(latest).get("k") is not None
    finally:
        provider.close()
    with Reader(wanted) as reader:
        (status,) = reader.status()
        assert (status.name, status.rows) == (CHECKPOINT, 2)
        assert [query.name for query in reader.queries()] == [CHECKPOINT]
        query = reader.query(CHECKPOINT)
        state = query.operator(0)
        assert state.get_many(["k", "none"], max_age=3600)[1] is None
        assert state.count(at="latest") == len(list(query.view(at="latest").operator(0).scan()))
        confirmed = [list(batch) for batch in state.changes(since="start")]
        assert len(confirmed) == 1
        assert len(list(state.diff(-1))) == len(confirmed[0])
        assert state.history("k")


def work_as_maintainer(wanted: Config) -> None:
    client = Client(wanted)
    try:
        tenant = keys.tenant_of(wanted.key_prefix)
        gen = checkpoint_gen(client, CHECKPOINT, tenant=tenant)
        assert gen is not None
        id_ = StateStoreId(CHECKPOINT, 0, 0).partition(gen, tenant=tenant)
        report = maintain_partition(client, id_, None, Policy("w", deep=True), name=CHECKPOINT)
        assert (report.partitions, report.problems) == (1, [])
        sweep_orphans(client, tenant=tenant)
        assert purge(client, gen, tenant=tenant, dry_run=False).keys > 0
    finally:
        client.close()


WORK: dict[Role, Callable[[Config], None]] = {
    Role.JOB: work_as_job,
    Role.READER: work_as_reader,
    Role.MAINTAINER: work_as_maintainer,
}


@pytest.mark.parametrize("role", Role)
def test_each_role_works_with_its_printed_rights(server: RedisServer, role: Role) -> None:
    allow(server, *rights(server, Role.JOB))
    with server.client() as client:
        client.config_set("appendfsync", "always")
    for durability in ("none", "replicas:1", "aof"):
        work_as_job(of_user(server, durability=durability))
    allow(server, *rights(server, role))
    WORK[role](of_user(server))
    with server.client() as client:
        assert client.execute_command("ACL", "LOG") == []


def test_maintainer_moves_history_with_its_printed_rights(
    server: RedisServer, tmp_path: Path
) -> None:
    allow(server, *rights(server, Role.JOB))
    wanted = of_user(server)
    id_of_store = StateStoreProviderId(StateStoreId(CHECKPOINT, 0, 0))
    provider = StateStoreProvider(id_of_store, config=wanted)
    for version in range(8):
        store = provider.get_store(version)
        store.put("k", version)
        store.commit()
    provider.do_maintenance(make_room=True)
    provider.close()
    allow(server, *rights(server, Role.MAINTAINER))
    client = Client(wanted)
    gen = checkpoint_gen(client, CHECKPOINT)
    assert gen is not None
    id_ = StateStoreId(CHECKPOINT, 0, 0).partition(gen)
    places = Places(f"file:{tmp_path}/segments", deletes=True)
    set_places(client, gen, places)
    assert mark_folder(places, gen)
    assert move_history(client, id_).segments > 0
    sweep_files(
        client, id_, places_needed(client, gen), guard=lambda _: "", delete=True, unknown_too=False
    )
    assert bring_all_back(client, gen, [id_]) > 0
    client.close()
    with server.client() as direct:
        assert direct.execute_command("ACL", "LOG") == []


def failure_of(work: Callable[[Config], None], wanted: Config) -> RedisStateError | None:
    try:
        work(wanted)
    except RedisStateError as error:
        return error
    return None


def names(text: str, command: str) -> bool:
    """True if the error names the right; servers before 7.2 do not name what a script lacks."""
    return f"'{command}'" in text.lower() or "user executing the script can't run" in text


@pytest.mark.parametrize("role", [Role.JOB, Role.READER])
def test_each_right_is_needed_and_named_when_it_is_missing(
    server: RedisServer, role: Role, caplog: pytest.LogCaptureFixture
) -> None:
    unneeded = set()
    wanted = acl.commands(role, version=version_of(server), durability="aof")
    for command in sorted(set(wanted) - set(NEEDED_ELSEWHERE)):
        allow(server, *rights(server, Role.JOB))
        work_as_job(of_user(server))
        with server.client() as client:
            client.script_flush()
        allow(server, *(one for one in rights(server, role) if one != f"+{command}"))
        caplog.clear()
        with caplog.at_level(logging.WARNING, "redis_state"):
            durability = DURABILITY_OF.get(command, "none")
            error = failure_of(WORK[role], of_user(server, durability=durability))
        if error is None:
            unneeded.add(command)
            assert command not in ONLY_WARNED or names(caplog.text, command)
            continue
        assert error.kind is Kind.PERMISSION, command
        assert names(str(error), command)
        assert PASSWORD not in str(error)
    assert sorted(unneeded - set(ONLY_WARNED)) == []


def test_a_reader_cannot_change_anything(redis_server: RedisServer) -> None:
    allow(redis_server, *rights(redis_server, Role.JOB))
    work_as_job(of_user(redis_server))
    allow(redis_server, *rights(redis_server, Role.READER))
    with redis_server.client() as client:
        client.select(1)
        before = client.execute_command("DBSIZE")
    with pytest.raises(RedisStateError) as caught:
        work_as_job(of_user(redis_server))
    assert caught.value.kind is Kind.PERMISSION
    with redis_server.client() as client:
        client.select(1)
        assert client.execute_command("DBSIZE") == before


NEIGHBOURS = ("rs", "rsx", "rs.", "rs-1", "rs_rs", "a", "ab", "a.rs", "r")
"""Key prefixes that begin as the keys of others do, or as each other."""


def keys_of(tenant: str) -> dict[str, str]:
    """A key of each kind, and keys that differ by the first digit of their checkpoint."""
    made: dict[str, str] = {
        one.__name__: one(tenant=tenant)
        for one in (keys.checkpoints, keys.names, keys.looks, keys.sizes)
    }
    made["looked_up"] = keys.looked_up("query", "ab", tenant=tenant)
    made["claimed"] = f"{{{tenant}rs}}:g:{'0' * 64}"
    for digit in "0123456789abcdef":
        gen = digit * 32
        id_ = StateStoreId(CHECKPOINT, 0, 0).partition(gen, tenant=tenant)
        made |= {
            f"{one.__name__} {digit}": one(gen, tenant=tenant)
            for one in (keys.query, keys.places, keys.totals)
        }
        made |= {
            f"{one.__name__} {digit}": one(id_) for one in (keys.meta, keys.claim, keys.instance)
        }
        made[f"segment {digit}"] = keys.segment(id_, "d:1:uid")
    return made


@pytest.mark.parametrize("key_prefix", [None, *NEIGHBOURS])
@pytest.mark.parametrize("role", Role)
def test_each_tenant_reaches_all_its_keys_and_no_key_of_another(
    redis_server: RedisServer, role: Role, key_prefix: str | None
) -> None:
    allow(redis_server, *rights(redis_server, role, key_prefix=key_prefix))
    own = keys.tenant_of(key_prefix)
    with redis_server.client(username=USER, password=PASSWORD) as client:
        for key in keys_of(own).values():
            assert client.hlen(key) == 0
        for other in (None, *NEIGHBOURS):
            if other == key_prefix:
                continue
            for key in keys_of(keys.tenant_of(other)).values():
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.hlen(key)


@pytest.mark.parametrize("key_prefix", [None, "rs", "a"])
def test_tenants_cannot_touch_each_other(server: RedisServer, key_prefix: str | None) -> None:
    def of(prefix: str | None) -> Config:
        return of_user(server, **({} if prefix is None else {"keyPrefix": prefix}))

    for role in Role:
        allow(server, *rights(server, Role.JOB, key_prefix=key_prefix))
        work_as_job(of(key_prefix))
        with server.client() as client:
            client.execute_command("ACL", "LOG", "RESET")
        allow(server, *rights(server, role, key_prefix=key_prefix))
        WORK[role](of(key_prefix))
        with server.client() as client:
            assert client.execute_command("ACL", "LOG") == []
    allow(server, *rights(server, Role.JOB, key_prefix=key_prefix))
    for other in {None, *NEIGHBOURS} - {key_prefix}:
        with pytest.raises(ConfigError) as caught:
            work_as_job(of(other))
        assert caught.value.kind is Kind.PERMISSION


def test_printed_acl_command_is_accepted_by_the_server(
    redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    version = version_of(redis_server)
    arguments = ["acl", "--version", version, "--user", USER, "--password-file", str(file)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert PASSWORD not in printed
    with redis_server.client() as client:
        client.execute_command(*shlex.split(printed))
    work_as_job(of_user(redis_server))


@pytest.mark.parametrize("version", ["5.0", "6.0.9", "seven", ""])
def test_malformed_or_old_server_version_is_refused(
    version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["acl", "--version", version]) == 1
    assert "6.2 is the oldest" in capsys.readouterr().err
