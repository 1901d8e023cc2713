"""Views of all queries of a server: how long each takes with a thousand of them."""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stdout
from functools import partial
from pathlib import Path

import redis

from redis_state import config, connect
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.exporter import QueryCollector
from redis_state.protocol.registry import parse_listing
from tests.support.dashboard import Dashboard
from tests.support.redis_server import bytes_of

TIMES = 5
_LISTING = "{rs}:c"
_KEYS_AT_ONCE = 500


def clone_queries(client: redis.Redis, wanted: int) -> int:
    """Copies queries under new ids until there are as many as wanted; returns their number."""
    gens = _gens(client)
    there: dict[str, list[bytes]] = {gen: [] for gen in gens}
    for name in client.scan_iter("{rs:*", count=1000):
        gen = name.split(b":")[1].split(b"}")[0].decode()
        if gen in there:
            there[gen].append(name)
    for number in range(wanted - len(gens)):
        _clone(client, gens[number % len(gens)], there[gens[number % len(gens)]])
    return len(_gens(client))


def _gens(client: redis.Redis) -> list[str]:
    entries = client.hgetall(_LISTING)
    infos = parse_listing({bytes_of(name): bytes_of(raw) for name, raw in entries.items()})
    return [info.gen for info in infos if info.is_checkpoint]


def _clone(client: redis.Redis, gen: str, names: list[bytes]) -> None:
    new = uuid.uuid4().hex.encode()
    for start in range(0, len(names), _KEYS_AT_ONCE):
        some = names[start : start + _KEYS_AT_ONCE]
        with client.pipeline(transaction=False) as pipeline:
            for name in some:
                to = name.replace(gen.encode(), new)
                pipeline.copy(name.decode(), to.decode(), replace=True)
            pipeline.execute()
    for listed, raw in client.hgetall(_LISTING).items():
        field = bytes_of(listed)
        if field.startswith(gen.encode()):
            entry = bytes_of(raw)
            client.hset(_LISTING, mapping={field.replace(gen.encode(), new): entry})


def seconds_of_views(url: str, log: Path) -> Iterator[tuple[str, list[float]]]:
    """Yields the seconds of each view of all queries, several times."""
    for command in ("queries", "top --once"):
        words = [*command.split(), "--url", url]
        yield f"`redis-state {command}`", _seconds(partial(_quietly, words))
    with connect(url) as reader:
        yield "a scrape of the exporter", _seconds(lambda: list(QueryCollector(reader).collect()))
    with Dashboard(url, log=log) as board:
        board.get("/")
        yield "the dashboard's page of all", _seconds(lambda: board.get("/?sort=-bytes"))


def _quietly(words: list[str]) -> None:
    with redirect_stdout(io.StringIO()):
        if main(words):
            raise SystemExit(f"{words} failed")


def _seconds(of: Callable[[], object]) -> list[float]:
    found = []
    for _ in range(TIMES):
        began_s = time.perf_counter()
        of()
        found.append(time.perf_counter() - began_s)
    return found


def client_of(url: str) -> closing[Client]:
    """A client of our own, closed at the end of the block."""
    return closing(Client(config.parse({"url": url})))
