"""The image of the redis-state command: each role without root, on a read-only file system."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.contract.planting import Planted
from tests.support.docker_engine import NoDockerError, docker_engine
from tests.support.redis_server import RedisServer, free_port
from tests.support.waiting import wait_until
from tools import image
from tools.debian import FetchError

# The first test also waits for packages and the build.
pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

TAG = "redis-state:test"
HEALTH = ("/usr/bin/python3", "/usr/local/lib/redis-state/health.py")
BYTES_MAX = 120_000_000
STOP_S = 15
# What a cluster that forbids everything gives to a container.
LOCKED = (
    "--read-only",
    "--tmpfs=/tmp",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--network=host",
)
Engine = Mapping[str, str]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """An engine with the image."""
    with ExitStack() as stack:
        try:
            settings = stack.enter_context(docker_engine())
            with pytest.MonkeyPatch.context() as patch:
                for name, value in settings.items():
                    patch.setenv(name, value)
                image.build(TAG)
        except (NoDockerError, FetchError) as error:
            pytest.skip(str(error))
        yield settings


def docker(engine: Engine, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *arguments],
        env={**os.environ, **engine},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def answer(engine: Engine, *arguments: str) -> str:
    done = docker(engine, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def running(engine: Engine, *arguments: str, more: tuple[str, ...] = ()) -> Iterator[str]:
    """Id of a container of the image that runs a role."""
    id_ = answer(engine, "run", "--detach", *LOCKED, *more, TAG, *arguments)
    try:
        yield id_
    finally:
        docker(engine, "rm", "--force", id_)


def is_healthy(engine: Engine, id_: str) -> bool:
    return docker(engine, "exec", id_, *HEALTH).returncode == 0


def assert_unprivileged_and_stops(engine: Engine, id_: str) -> None:
    """The role runs as the user of the image, cannot write, and ends by itself on SIGTERM."""
    wait_until(lambda: is_healthy(engine, id_), "the health check to pass")
    status = answer(engine, "exec", id_, HEALTH[0], "-c", "print(open('/proc/1/status').read())")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert set(fields["Uid"].split()) == set(fields["Gid"].split()) == {str(image.USER)}
    assert int(fields["CapEff"], 16) == 0
    write = docker(engine, "exec", id_, HEALTH[0], "-c", "open('/usr/x', 'w')")
    assert "Read-only file system" in write.stderr
    answer(engine, "stop", f"--time={STOP_S}", id_)
    state = json.loads(answer(engine, "inspect", "--format={{json .State}}", id_))
    assert state["ExitCode"] == 0, answer(engine, "logs", id_)


@pytest.fixture
def planted(redis_server: RedisServer) -> Planted:
    found = Planted(redis_server.client(), partitions=2)
    found.register()
    for version in range(1, 7):
        found.commit(version, [({"carrier": f"{version}"}, {"count": 1, "total": 0.5})])
    return found


def test_image_is_small_and_has_no_shell(engine: Engine) -> None:
    assert int(answer(engine, "inspect", "--format={{.Size}}", TAG)) < BYTES_MAX
    shell = docker(engine, "run", "--rm", "--entrypoint=/bin/sh", TAG, "-c", "true")
    assert shell.returncode == 127
    config = json.loads(answer(engine, "inspect", "--format={{json .Config}}", TAG))
    assert config["User"] == f"{image.USER}:{image.USER}"
    assert config["Healthcheck"]["Test"] == ["CMD", *HEALTH]


def test_image_trusts_public_authorities_and_knows_its_version(engine: Engine) -> None:
    code = "import ssl; print(len(ssl.create_default_context().get_ca_certs()))"
    found = answer(engine, "run", "--rm", *LOCKED, f"--entrypoint={HEALTH[0]}", TAG, "-c", code)
    assert int(found) > 100
    said = answer(engine, "run", "--rm", *LOCKED, TAG, "--version")
    assert f"redis-state {image.version()}" in said


def test_worker_maintains_and_stops(
    engine: Engine, redis_server: RedisServer, planted: Planted
) -> None:
    with running(
        engine,
        "maintain",
        "--interval=1s",
        "--alive-file=/tmp/alive",
        more=(f"--env=REDIS_STATE_URL={redis_server.url}",),
    ) as id_:
        report = f"{planted.partitions} partitions of 1 checkpoints maintained"
        wait_until(lambda: report in docker(engine, "logs", id_).stderr, "a pass")
        assert_unprivileged_and_stops(engine, id_)


@pytest.mark.usefixtures("planted")
def test_exporter_serves_metrics_and_stops(engine: Engine, redis_server: RedisServer) -> None:
    port = free_port()
    with running(engine, "exporter", f"--url={redis_server.url}", f"--port={port}") as id_:
        wait_until(lambda: is_healthy(engine, id_), "the health check to pass")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            assert "redis_state_up 1.0" in page.read().decode()
        assert_unprivileged_and_stops(engine, id_)


def test_dashboard_needs_its_token_and_stops(
    engine: Engine, redis_server: RedisServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 32)
    token.chmod(0o444)
    port = free_port()
    with running(
        engine,
        "dashboard",
        f"--url={redis_server.url}",
        "--listen=127.0.0.1",
        f"--port={port}",
        "--token-file=/run/token",
        more=(f"--volume={token}:/run/token:ro",),
    ) as id_:
        wait_until(lambda: is_healthy(engine, id_), "the health check to pass")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as page:
            assert page.url.endswith("/login")
        assert_unprivileged_and_stops(engine, id_)


def test_role_without_progress_is_unhealthy(engine: Engine, redis_server: RedisServer) -> None:
    with running(engine, "maintain", f"--url={redis_server.url}", "--alive-file=/tmp/alive") as id_:
        wait_until(lambda: is_healthy(engine, id_), "the health check to pass")
        age = "import os; os.utime('/tmp/alive', (1, 1))"
        answer(engine, "exec", id_, HEALTH[0], "-c", age)
        found = docker(engine, "exec", id_, *HEALTH)
        assert found.returncode == 1
        assert "no step for" in found.stdout


@pytest.fixture(scope="module")
def idle(engine: Engine) -> Iterator[str]:
    """A container for commands that end at once, which each would take a copy of the image."""
    with running(engine, "exporter", "--url=redis://127.0.0.1:1", "--port=0") as id_:
        yield id_


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("maintain",), "REDIS_STATE_URL"),
        (("maintain", "--url=http://127.0.0.1"), "does not begin with redis://"),
        (("exporter", "--url=redis://127.0.0.1", "--password-file=/run/no"), "/run/no"),
        (("dashboard", "--url=redis://127.0.0.1", "--listen=0.0.0.0"), "there is no token"),
        (("maintain", "--url=redis://127.0.0.1", "--alive-file=/alive"), "Read-only file system"),
        (("upkeep",), "invalid choice"),
    ],
)
def test_bad_configuration_is_refused_with_its_reason(
    engine: Engine, idle: str, arguments: tuple[str, ...], message: str
) -> None:
    entry = json.loads(answer(engine, "inspect", "--format={{json .Config.Entrypoint}}", TAG))
    done = docker(engine, "exec", idle, *entry, *arguments)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
