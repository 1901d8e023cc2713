"""A Redis in a container, started through testcontainers and reached on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from tests.support.docker_engine import built_image, docker_engine, redis_image

_PORT = "6379/tcp"
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class RedisContainer:
    """Address of the server, seen from this machine."""

    image: str
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    def client(self) -> redis.Redis:
        """A new client that answers bytes; the caller closes it."""
        return redis.Redis(host=self.host, port=self.port, socket_timeout=10)


@contextmanager
def running_redis_container(*program: Path) -> Iterator[RedisContainer]:
    """One container, stopped at the end together with an engine started for it.

    Args:
        program: The server to build the image from; without one it is the official image where a
            registry is reachable, else this machine's server.
    """
    with ExitStack() as stack:
        engine = stack.enter_context(docker_engine())
        # No Ryuk: its image is not to be had everywhere, and this block ends what it starts.
        settings = {
            **engine,
            "TESTCONTAINERS_RYUK_DISABLED": "true",
            "TESTCONTAINERS_HOST_OVERRIDE": _HOST,
        }
        stack.enter_context(_environment(settings))
        if program:
            image = built_image(engine, f"redis-state/{program[0].parent.name}:test", *program)
        else:
            image = redis_image(engine)
        # testcontainers reads the environment when it is imported.
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.wait_strategies import LogMessageWaitStrategy

        container = (
            DockerContainer(image)
            .with_command('--bind 0.0.0.0 --protected-mode no --save ""')
            .waiting_for(LogMessageWaitStrategy("Ready to accept connections"))
        )
        # An address without a port lets Docker choose one; testcontainers' types know ports only.
        container.ports[_PORT] = (_HOST,)  # type: ignore[assignment]  # docker-py takes it
        stack.enter_context(container)
        container.get_wrapped_container().reload()
        published = container.get_wrapped_container().ports[_PORT]
        assert [binding["HostIp"] for binding in published] == [_HOST]
        yield RedisContainer(image, _HOST, int(published[0]["HostPort"]))


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
