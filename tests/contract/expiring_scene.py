"""A planted query whose rows expire, in each kind of family and arrangement of segments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

import redis_state
from redis_state import config
from redis_state.backend.client import Client
from redis_state.format.header import Family
from redis_state.format.rows import Value
from redis_state.live import Reader
from redis_state.reader import OperatorState
from tests.contract.planting import Planted, family, schema
from tests.support.redis_server import RedisServer

pytest.importorskip("pyarrow")

Rows = dict[str, int]
NUMBER = schema(n="long")
KINDS = {
    "none": family(schema(k="string"), NUMBER),
    "prefix": family(schema(g="string", k="string"), NUMBER, kind="prefix", params=[1]),
    "ts-postfix": family(schema(k="string", __event_time="long"), NUMBER, kind="ts-postfix"),
    "range": family(schema(t="long", k="string"), NUMBER, kind="range", params=[0]),
}
SHAPES = ("deltas", "snapshot 1", "snapshot 2", "snapshot 2, expired rows left out", "two families")
TIMES = {1: 1_000, 2: 1_200, 3: 1_500}
NEVER = None
OTHER = Planted(cast("Any", None), Family(7, "other", "none", (), NUMBER, NUMBER, internal=True))

CHANGES: dict[int, dict[str, tuple[int, int | None] | None]] = {
    1: {
        "a": (1, 1_500),
        "b": (2, 1_100),
        "c": (3, NEVER),
        "d": (4, 1_900),
        "e": (5, 1_300),
        "x": (6, NEVER),
    },
    2: {"e": (5, 1_800), "f": (7, 1_400), "x": None},
    3: {"b": (8, 2_500), "g": (9, 1_600)},
}
"""By version: value and expiry of each changed key."""

VISIBLE: dict[int, Rows] = {
    0: {},
    1: {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "x": 6},
    2: {"a": 1, "c": 3, "d": 4, "e": 5, "f": 7},
    3: {"b": 8, "c": 3, "d": 4, "e": 5, "g": 9},
}
HISTORY: dict[str, list[tuple[int, int | None]]] = {
    "a": [(2, None), (0, 1)],
    "b": [(2, 8), (1, None), (0, 2)],
    "c": [(0, 3)],
    "e": [(0, 5)],
    "f": [(2, None), (1, 7)],
    "g": [(2, 9)],
    "x": [(1, None), (0, 6)],
}
EVERY_KEY = "abcdefgxz"


def key_of(planted: Planted, k: str) -> dict[str, Any]:
    every = {"t": ord(k[0]), "g": f"group {ord(k[0]) % 2}", "k": k, "__event_time": 7}
    columns = planted.family.key_schema
    return {name: value for name, value in every.items() if f'"{name}"' in columns}


@dataclass
class Scene:
    """A planted query whose rows expire, and a reader of it."""

    server: RedisServer
    reader: Reader
    planted: Planted
    shape: str
    oldest: int = 0
    rows: dict[int, dict[int, dict[bytes, bytes]]] = field(default_factory=dict)

    def key(self, k: str) -> dict[str, Any]:
        return key_of(self.planted, k)

    def plant(self) -> None:
        planted = self.planted
        planted.register()
        every: dict[int, dict[bytes, bytes]] = {n: {} for n in range(planted.partitions)}
        for version, changes in CHANGES.items():
            by_partition: dict[int, dict[bytes, Value]] = {n: {} for n in every}
            for k, word in changes.items():
                number = planted.partition(self.key(k))
                stored = planted.key(self.key(k))
                value = None if word is None else planted.value({"n": word[0]}, expires=word[1])
                by_partition[number][stored] = value
                if value is None:
                    every[number].pop(stored, None)
                else:
                    every[number][stored] = value
            for number, rows in by_partition.items():
                more = {}
                if planted.others:
                    # A row of a family without a time to live: its last bytes look like an expiry.
                    more = {OTHER.key({"n": number}): OTHER.value({"n": version})}
                planted.delta(number, version, rows | more)
                every[number] |= more
                if self.shape.startswith(f"snapshot {version}"):
                    self._snapshot(number, version, every[number])

    def _snapshot(self, number: int, version: int, rows: dict[bytes, bytes]) -> None:
        limit = TIMES[version].to_bytes(4, "big")
        if "left out" in self.shape:
            rows = {key: value for key, value in rows.items() if value[-4:] > limit}
        self.planted.snapshot(number, version, rows)
        self.oldest = version

    @property
    def versions(self) -> range:
        return range(max(1, self.oldest), 4)

    @property
    def state(self) -> OperatorState:
        return self.reader.query("flights").operator()

    def client(self) -> closing[Client]:
        return closing(Client(config.parse({"url": self.server.url})))


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=KINDS)
def scene(request: pytest.FixtureRequest, shape: str, redis_server: RedisServer) -> Iterator[Scene]:
    own = replace(KINDS[request.param], ttl=True)
    planted = Planted(redis_server.client(), own, 2, times=TIMES)
    if shape == "two families":
        planted.others = [OTHER.family]
    with redis_state.connect(redis_server.url) as reader:
        made = Scene(redis_server, reader, planted, shape)
        made.plant()
        yield made


def flat(rows: Any) -> Rows:
    """Rows of one column each as a dict; a key must not occur twice."""
    found = {row["k"]: row["n"] for row in rows}
    assert len(found) == len(list(rows))
    return found


def different(before: Rows, after: Rows) -> dict[str, tuple[int | None, int | None]]:
    return {
        k: (before.get(k), after.get(k))
        for k in before.keys() | after.keys()
        if before.get(k) != after.get(k)
    }


def by_get(scene: Scene, state: OperatorState, version: int) -> Rows:
    found = {k: state.get(scene.key(k), version) for k in EVERY_KEY}
    return {k: value["n"] for k, value in found.items() if value is not None}


def by_scan(_scene: Scene, state: OperatorState, version: int) -> Rows:
    return flat(list(state.scan(version)))
