"""Fixtures and rules for every suite."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.docker_engine import NoDockerError
from tests.support.redis_container import RedisContainer, running_redis_container
from tests.support.redis_server import NoTlsError, RedisServer
from tools import servers
from tools.debian import FetchError

pytest_plugins = ["tests.support.compatibility", "tests.support.hangs"]
# Whether inputs come slowly is up to the machine.
settings.register_profile(
    "shared machine", suppress_health_check=[HealthCheck.too_slow], deadline=None
)
settings.load_profile("shared machine")
IN_CI = os.environ.get("CI") == "true"
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell ignores it in what it runs in the background, and so would all that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails skipped tests in CI, where nothing may be missing."""
    report = yield
    if not hasattr(report, "wasxfail"):
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fails skipped modules in CI, too."""
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if IN_CI and report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow: {reason}"


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker whose clock is not that of UTC."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def _require_server() -> str:
    program = servers.of_this_machine()
    if program is None:
        pytest.skip("neither valkey-server nor redis-server is on PATH: run `make redis`")
    return program


@pytest.fixture(scope="session")
def server_path() -> str:
    """The program of the servers that tests start."""
    return _require_server()


@pytest.fixture
def start_redis() -> Iterator[Callable[..., RedisServer]]:
    """Starts servers with the options of `RedisServer`; all are stopped after the test."""
    _require_server()
    servers: list[RedisServer] = []

    def start(**options: Any) -> RedisServer:
        server = RedisServer(**options)
        servers.append(server)
        try:
            return server.start()
        except NoTlsError as error:
            pytest.skip(str(error))

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def redis_server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    """A private server with nothing in it, for one test."""
    return start_redis()


@pytest.fixture(scope="session")
def shared_redis_server() -> Iterator[RedisServer]:
    """One server for tests that only touch keys of their own."""
    _require_server()
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def old_redis_server() -> Iterator[RedisServer]:
    """A server below the oldest supported version."""
    try:
        program = servers.ensure(servers.TOO_OLD, servers.cache_folder())
    except FetchError as error:
        pytest.skip(str(error))
    with RedisServer(old_program=str(program)) as server:
        yield server


@pytest.fixture(scope="session")
def redis_container() -> Iterator[RedisContainer]:
    """A real Redis container, published on loopback only."""
    try:
        with running_redis_container() as container:
            yield container
    except NoDockerError as error:
        pytest.skip(str(error))
