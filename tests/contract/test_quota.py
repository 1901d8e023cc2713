"""Limits on the bytes of a state: who warns, who stops, who goes on, and what it costs."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import cast

import pytest

from redis_state import config, keys
from redis_state.acl import Role, rules
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.errors import Kind, QuotaError, UnavailableError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.live import Reader
from redis_state.protocol import checkpoint_gen
from redis_state.protocol.quota import Quota, Size, parse_sizes
from redis_state.reader import CauseKind
from redis_state.store.provider import StateStoreProvider
from tests.support.manual_clock import ManualClock
from tests.support.redis_server import RedisServer

NewProvider = Callable[..., StateStoreProvider]
NAME = "job"


@pytest.fixture
def new(redis_server: RedisServer) -> Iterator[NewProvider]:
    made: list[StateStoreProvider] = []

    def provider(
        name: str = NAME, partition: int = 0, run: str = "run", **options: object
    ) -> StateStoreProvider:
        clock = options.pop("clock", None)
        given: dict[str, object] = {"url": redis_server.url, **options}
        id_ = StateStoreProviderId(StateStoreId(name, 0, partition), run)
        parsed = config.parse(given)
        with_clock = {} if clock is None else {"clock": clock}
        made.append(StateStoreProvider(id_, config=parsed, **with_clock))  # type: ignore[arg-type]  # of a test
        return made[-1]

    yield provider
    for one in made:
        one.close()


def commit(provider: StateStoreProvider, version: int, size: int = 1000) -> int:
    store = provider.get_store(version)
    store.put(version, os.urandom(size))
    return store.commit()


def age(server: RedisServer, tenant: str = "") -> None:
    """As if the entries of the list had been measured long ago."""
    client, name = server.client(), keys.sizes(tenant=tenant)
    for gen, text in client.hgetall(name).items():
        client.hset(name, gen, json.dumps({**json.loads(text), "at": 0}))


def sizes(server: RedisServer, tenant: str = "") -> dict[str, Size]:
    raw = server.client().hgetall(keys.sizes(tenant=tenant))
    return parse_sizes(cast("dict[bytes, bytes]", raw))


def size_of(reader: Reader, name: str = NAME) -> int:
    return reader.query(name).status().bytes


def test_query_stops_at_the_limit_and_continues_after_a_raise(
    redis_server: RedisServer, reader: Reader, new: NewProvider
) -> None:
    clock = ManualClock()
    provider = new(state_bytes_max="4k", clock=clock)
    other = new("other", state_bytes_max="4k")
    for version in range(4):
        commit(provider, version)
        age(redis_server)
        clock.sleep_s(60)
    version = 4
    with pytest.raises(QuotaError) as refused:
        provider.get_store(version)
    size = size_of(reader)
    assert refused.value.kind is Kind.QUOTA
    assert not refused.value.retryable
    assert f"{size} bytes" in str(refused.value)
    assert "allows 4096" in str(refused.value)
    assert f"operator 0 partition 0 store default: {size} bytes" in str(refused.value)
    assert 4096 <= size < 4096 + 2500
    # No other query is concerned, readers read on, and what was committed is there.
    assert commit(other, 0) == 1
    assert provider.get_read_store(version).get(version - 1)
    # A process that starts again is refused at once.
    with pytest.raises(QuotaError, match="QUOTA"):
        new(run="run-2", state_bytes_max="4k").get_store(version)
    raised = new(run="run-3", state_bytes_max="8k")
    assert commit(raised, version) == version + 1


def test_stale_size_is_measured_again_before_a_refusal(
    redis_server: RedisServer, new: NewProvider
) -> None:
    provider = new(state_bytes_max="100k")
    assert commit(provider, 0) == 1
    client, name = redis_server.client(), keys.sizes()
    ((gen, text),) = client.hgetall(name).items()
    client.hset(name, gen, json.dumps({**json.loads(text), "at": 1, "bytes": 1 << 40}))
    assert commit(new(run="run-2", state_bytes_max="100k"), 1) == 2


def test_size_with_a_future_time_is_measured_again(
    redis_server: RedisServer, new: NewProvider
) -> None:
    """The clock of the server before a fail-over was ahead."""
    commit(new("other", key_prefix="team"), 0)
    commit(new(key_prefix="team", prefix_bytes_max="100k"), 0)
    client, name = redis_server.client(), keys.sizes(tenant="team:")
    ahead = (client.time()[0] + 3600) * 1000
    for gen, text in client.hgetall(name).items():
        client.hset(name, gen, json.dumps({**json.loads(text), "at": ahead, "bytes": 1 << 40}))
    assert commit(new(run="run-2", key_prefix="team", prefix_bytes_max="100k"), 1) == 2
    measured = sizes(redis_server, "team:").values()
    assert len(measured) == 2
    assert all(one.at_ms < ahead and one.bytes < 100_000 for one in measured)


def test_damaged_checkpoint_is_not_read_in_every_poll(
    redis_server: RedisServer, new: NewProvider, caplog: pytest.LogCaptureFixture
) -> None:
    commit(new("damaged"), 0)
    client = redis_server.client()
    with closing(Client(config.parse({"url": redis_server.url}))) as looking:
        gen = str(checkpoint_gen(looking, "damaged"))
    assert client.hexists(keys.query(gen), "op:0:default")
    client.hset(keys.query(gen), "op:0:default", "x")
    clock = ManualClock()
    limited = new(prefix_bytes_max="100k", clock=clock)
    with caplog.at_level(logging.WARNING, logger="redis_state.quota"):
        for version in range(4):
            commit(limited, version)
            clock.sleep_s(60)
    assert caplog.text.count("is not counted") == 1


def test_slow_poll_waits_a_hundred_times_its_duration(new: NewProvider) -> None:
    class Slow(ManualClock):
        """A second passes whenever somebody looks."""

        def monotonic_s(self) -> float:
            self.sleep_s(step)
            return super().monotonic_s()

    step, clock = 0.0, Slow()
    limited = new(prefix_bytes_max="1g", clock=clock)
    commit(limited, 0)
    clock.sleep_s(60)
    step = 1.0
    commit(limited, 1)
    step = 0.0
    clock.sleep_s(60)
    before = limited.custom_metrics["round_trips"]
    commit(limited, 2)
    rested = limited.custom_metrics["round_trips"] - before
    clock.sleep_s(3600)
    before = limited.custom_metrics["round_trips"]
    commit(limited, 3)
    assert limited.custom_metrics["round_trips"] - before > rested


@pytest.mark.parametrize("text", ["", "x", "[]", '{"at": 1}', '{"at": -1, "bytes": "x"}'])
def test_damaged_size_is_measured_again(
    redis_server: RedisServer, reader: Reader, new: NewProvider, text: str
) -> None:
    commit(new(state_bytes_max="100k"), 0)
    client, name = redis_server.client(), keys.sizes()
    ((gen, _),) = client.hgetall(name).items()
    client.hset(name, gen, text)
    new(run="run-2", state_bytes_max="100k").get_store(1)
    (measured,) = sizes(redis_server).values()
    assert measured.bytes == size_of(reader)


def test_a_key_prefix_counts_all_of_its_queries(
    redis_server: RedisServer, new: NewProvider
) -> None:
    commit(new("without", key_prefix="team"), 0, 3000)
    commit(new("elsewhere"), 0, 100_000)
    limited = new(key_prefix="team", prefix_bytes_max="4k")
    version = commit(limited, 0)
    age(redis_server, "team:")
    again = new(run="again", key_prefix="team", prefix_bytes_max="4k")
    with pytest.raises(QuotaError) as refused:
        again.get_store(version)
    assert "prefixBytesMax" in str(refused.value)
    # What is purged makes room at once.
    client = Client(config.parse({"url": redis_server.url}))
    gen = checkpoint_gen(client, "without", tenant="team:")
    client.close()
    command = ["purge", "--gen", str(gen), "--yes", "--force", "--key-prefix", "team"]
    assert main([*command, "--url", redis_server.url]) == 0
    assert commit(new(run="run-2", key_prefix="team", prefix_bytes_max="4k"), version)
    assert gen not in sizes(redis_server, "team:")


def test_warning_is_logged_once_before_the_limit(
    redis_server: RedisServer, new: NewProvider, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    provider = new(state_bytes_max="10k", clock=clock)
    with caplog.at_level(logging.WARNING, logger="redis_state.quota"):
        commit(provider, 0, 5000)
        caplog.clear()
        for version in (1, 2, 3):
            age(redis_server)
            clock.sleep_s(60)
            commit(provider, version, 3500 if version == 1 else 10)
    (record,) = caplog.records
    assert "stateBytesMax allows 10240" in record.getMessage()
    assert "operator 0 partition 0" in record.getMessage()


def test_status_show_and_why_growing_report_the_limit(
    redis_server: RedisServer,
    reader: Reader,
    new: NewProvider,
    capsys: pytest.CaptureFixture[str],
) -> None:
    commit(new(state_bytes_max="3000b"), 0, 2500)
    age(redis_server)
    commit(new(run="run-2", state_bytes_max="3000b"), 1, 1)
    (status,) = reader.status()
    assert (status.bytes_max, status.prefix_bytes_max) == (3000, 0)
    assert status.limit_share == status.bytes / 3000 > 0.8
    assert CauseKind.NEAR_LIMIT in [one.kind for one in reader.query(NAME).why_growing()]
    assert main(["show", NAME, "--format", "table", "--url", redis_server.url]) == 0
    assert " % of 3.00 kB" in capsys.readouterr().out


def test_batches_do_not_wait_for_a_poll_of_few_commands(
    new: NewProvider,
) -> None:
    clock = ManualClock()
    plain, limited = new("plain", clock=clock), new(state_bytes_max="1g", clock=clock)
    for provider in (plain, limited):
        commit(provider, 0)

    def trips(provider: StateStoreProvider, version: int) -> int:
        before = provider.custom_metrics["round_trips"]
        commit(provider, version)
        return provider.custom_metrics["round_trips"] - before

    trips(limited, 1), trips(plain, 1)
    assert trips(limited, 2) == trips(plain, 2)
    clock.sleep_s(60)
    # One to read the list; its own entry is young.
    assert trips(limited, 3) == trips(plain, 3) + 1


def test_refused_list_of_checkpoints_fails_no_batch(
    redis_server: RedisServer, new: NewProvider, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    provider = new(state_bytes_max="1g", clock=clock)
    version = commit(provider, 0)
    client = redis_server.client()
    client.delete(keys.sizes())
    client.set(keys.sizes(), "not a hash")
    clock.sleep_s(60)
    with caplog.at_level(logging.WARNING, logger="redis_state.quota"):
        assert commit(provider, version) == version + 1
    assert "could not be measured" in caplog.text


def test_quota_needs_only_the_rights_of_a_job(redis_server: RedisServer, new: NewProvider) -> None:
    admin = redis_server.client()
    version = str(admin.info()["redis_version"]).rsplit(".", 1)[0]
    allowed = rules(Role.JOB, version=version, key_prefix="team")
    admin.execute_command("ACL", "SETUSER", "job", *allowed, ">secret")  # type: ignore[no-untyped-call]  # of redis-py
    options = {"key_prefix": "team", "username": "job", "password": "secret"}
    commit(new("other", **options), 0)
    assert commit(new(prefix_bytes_max="1g", state_bytes_max="1g", **options), 0) == 1


@pytest.mark.parametrize("answers", [False, True])
def test_interrupted_poll_does_not_delay_the_next_for_long(
    redis_server: RedisServer, new: NewProvider, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """The process was stopped meanwhile, or the server was away."""
    clock = ManualClock()
    limited = new(state_bytes_max="100k", clock=clock)
    commit(limited, 0)
    clock.sleep_s(60)
    read = Quota._read

    def slow(self: Quota, client: Client) -> tuple[Sequence[bytes], Mapping[bytes, bytes]]:
        clock.sleep_s(60)
        if not answers:
            raise UnavailableError("looking", found="nobody is there")
        return read(self, client)

    with monkeypatch.context() as patch:
        patch.setattr(Quota, "_read", slow)
        commit(limited, 1)
    grown = commit(limited, 2, 200_000)
    clock.sleep_s(301 if answers else 21)
    age(redis_server)
    commit(limited, grown)
    with pytest.raises(QuotaError):
        commit(limited, grown + 1)
