"""Python and the JVM write one partition in turns, and each reads what the other wrote.

The model is a dict per version. Each step is done by one of the two, as the seed says; what the
other one reads then, by key, by range and whole, has to be what the model holds.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.codec import MSGPACK
from redis_state.format.entry import segments_in
from redis_state.format.ordered import PREFIX
from redis_state.format.rows import join_elements
from redis_state.ids import PartitionId, StateStoreId, StateStoreProviderId
from redis_state.maintain.files import sweep_files
from redis_state.maintain.history import move_history
from redis_state.places.declaring import places_by
from redis_state.places.moving import bring_back
from redis_state.places.settings import set_places
from redis_state.protocol import RegisteredRun, checkpoint_gen, register_run
from redis_state.store import ListStateStore
from redis_state.store.local.families import family_of
from redis_state.store.provider import StateStoreProvider
from tests.interop.jvm_actor import JvmActor, jvm_actor
from tests.support.redis_server import RedisServer

STEPS = 30
CHANGES = 12

Model = dict[Any, list[Any]]
Change = tuple[str, Any, Any]

KEYS: list[Any] = [None, True, 0, -300, 2.5, b"\0\xff", "", "ü", "k" * 400, ("a",), ("a", 1)]
KEYS += [("n", number) for number in range(500)]


class History:
    """One partition, its two actors and the model."""

    def __init__(self, server: RedisServer, seed: int, folder: Path | None = None) -> None:
        self.rng = random.Random(seed)
        self.options: dict[str, Any] = {"url": server.url}
        if folder:
            self.options |= {"history": "files", "places_folder": str(folder)}
        self.id = StateStoreId(f"two actors {uuid.uuid4().hex}", 0, 0)
        self.client = Client(config.parse({"url": server.url}))
        self.gen = checkpoint_gen(self.client, self.id.checkpoint, create=True) or ""
        if folder:
            # The JVM may be the first that moves, and its actor is told of no options.
            set_places(self.client, self.gen, places_by(config.parse(self.options)))
        self.versions: dict[int, Model] = {0: {}}
        self.newest = 0
        self.new_run()

    def new_run(self) -> None:
        """A driver registers; both actors are processes of its run from here on."""
        self.run: RegisteredRun = register_run(
            self.client, self.gen, uuid.uuid4().hex, by_driver=True
        )
        self.new_process()

    def new_process(self) -> None:
        self.provider = StateStoreProvider(
            StateStoreProviderId(self.id, self.run.run_id),
            config=config.parse(self.options),
            run=self.run,
            client=self.client,
            lists=True,
        )

    def changes(self, model: Model) -> list[Change]:
        """Random changes, which the model takes at once."""
        made: list[Change] = []
        for _ in range(self.rng.randrange(CHANGES) * self.rng.choice([1, 1, 20])):
            key = self.rng.choice(KEYS)
            what = self.rng.choice(["put", "append", "append", "remove"])
            value = self.rng.choice([1, None, "text", {"a": [1.5]}, "v" * 2000])
            made.append((what, key, value))
            if what == "put":
                model[key] = [value]
            elif what == "append":
                model[key] = [*model.get(key, []), value]
            else:
                model.pop(key, None)
        if self.rng.random() < 0.15:
            # A version that sets every key holds all rows by itself.
            for key in model:
                made.append(("put", key, "anew"))
                model[key] = ["anew"]
        return made


def by_python(history: History, version: int, changes: list[Change], clear: Any) -> None:
    store = history.provider.get_list_store(version)
    if clear is not None:
        for key, _ in list(store.get_range(*clear)):
            store.remove(key)
    _check_python(history, store, version, clear)
    for what, group in groupby(changes, lambda change: change[0]):
        if what == "put":
            store.put_many((key, [value]) for _, key, value in group)
        elif what == "append":
            for _, key, value in group:
                store.append(key, value)
        else:
            store.remove_many(key for _, key, _ in group)
    assert store.commit() == version + 1
    if history.rng.random() < 0.3:
        history.provider.get_store(version + 1)
        history.provider.do_maintenance()


def by_jvm(
    history: History, jvm: JvmActor, version: int, changes: list[Change], clear: Any
) -> None:
    jvm.tell("open", history.run.run_id, version)
    if clear is not None:
        jvm.tell("clear", *map(MSGPACK.encode_key, clear))
    for what, key, value in changes:
        stored = PREFIX + MSGPACK.encode_key(key)
        if what == "remove":
            jvm.tell(what, stored)
        else:
            jvm.tell(what, stored, join_elements([MSGPACK.encode_value(value)]))
    assert jvm.tell("commit") == str(version + 1)
    if history.rng.random() < 0.3:
        jvm.tell("open", history.run.run_id, version + 1)
        jvm.tell("maintain")


def _check_python(history: History, store: ListStateStore, version: int, clear: Any) -> None:
    if clear is None:
        assert dict(store.iterator()) == history.versions[version]
        assert store.metrics.num_keys == len(history.versions[version])


def _encoded(model: Model) -> dict[bytes, bytes]:
    rows = {
        PREFIX + MSGPACK.encode_key(key): join_elements(map(MSGPACK.encode_value, values))
        for key, values in model.items()
    }
    return {key: rows[key] for key in sorted(rows)}


def check_jvm(history: History, jvm: JvmActor, version: int) -> None:
    """All rows in order, one by its key, a range, and the number of keys."""
    expected = _encoded(history.versions[version])
    assert jvm.tell("open", "reader", version) == str(len(expected))
    assert list(jvm.rows().items()) == list(expected.items())
    key = PREFIX + MSGPACK.encode_key(history.rng.choice(KEYS))
    assert jvm.get(key) == expected.get(key)
    low, high = sorted(MSGPACK.encode_key(key) for key in history.rng.sample(KEYS, 2))
    inside = {key: row for key, row in expected.items() if low <= key[len(PREFIX) :] < high}
    assert jvm.rows(low, high) == inside


def check_python(history: History, version: int) -> None:
    """Checks a version in Python, as a process that has read nothing yet."""
    cold = StateStoreProvider(
        StateStoreProviderId(history.id, "reader"),
        config=config.parse({"url": history.options["url"]}),
        client=history.client,
        lists=True,
    )
    store = cold.get_read_store(version)
    model = history.versions[version]
    key = history.rng.choice(KEYS)
    assert store.get(key) == model.get(key)
    assert dict(store.iterator()) == model
    assert store.metrics.num_keys == len(model)


def step(history: History, jvm: JvmActor) -> None:
    rng = history.rng
    version = history.newest
    if rng.random() < 0.1:
        # Both go back: the later versions are gone as soon as somebody writes.
        history.new_run()
        version = rng.randrange(max(0, version - 3), version + 1)
    elif rng.random() < 0.3:
        history.new_process()
        jvm.tell("forget")
    model = {key: list(values) for key, values in history.versions[version].items()}
    clear = None
    if rng.random() < 0.2:
        clear = (("n", rng.randrange(250)), ("n", rng.randrange(250, 500)))
        for key in [key for key in model if type(key) is tuple and clear[0] <= key < clear[1]]:
            del model[key]
    changes = history.changes(model)
    write: Callable[..., None] = rng.choice([by_python, lambda h, v, c, r: by_jvm(h, jvm, v, c, r)])
    write(history, version, changes, clear)
    history.newest = version + 1
    history.versions = {at: rows for at, rows in history.versions.items() if at <= version}
    history.versions[version + 1] = model
    for at in {version, version + 1} | {rng.randrange(max(0, version - 5), version + 1)}:
        check_jvm(history, jvm, at)
        check_python(history, at)


def play_files(history: History, jvm: JvmActor, done: Counter[str]) -> None:
    """One of the two moves history, sweeps, or brings segments back; keys of moved ones expire."""
    rng, id_, client = history.rng, history.id.partition(history.gen), history.client
    chance = rng.random()
    if chance < 0.25:
        done["moved by Python"] += move_history(client, id_).segments
    elif chance < 0.5:
        done["moved by the JVM"] += int(jvm.tell("move"))
    elif chance < 0.65:
        # A file without segments can be deleted.
        share = rng.choice([0.3, 1, 1])
        (raw,) = client.call("looking", [("HGETALL", keys.meta(id_))])
        for segment in [one for one in segments_in(raw) if one.place is not None]:
            done["brought back"] += rng.random() < share and bring_back(client, id_, segment)
    elif chance < 0.9:
        _age(client, id_)
        if done["deleted by the JVM"] <= done["deleted by Python"]:
            done["deleted by the JVM"] += int(jvm.tell("sweep"))
        else:
            places = places_by(config.parse(history.options))
            swept = sweep_files(
                client, id_, places, guard=lambda _id: "", delete=True, unknown_too=True
            )
            done["deleted by Python"] += swept.deleted
    (raw,) = client.call("looking", [("HGETALL", keys.meta(id_))])
    placed = [one for one in segments_in(raw) if one.place is not None]
    client.call("a minute", [("DEL", keys.segment(id_, one.ident)) for one in placed])


def _age(client: Client, id_: PartitionId) -> None:
    """Condemned files are older than the grace; announced ones of moves that run are not there."""
    (rows,) = client.call("looking", [("HGETALL", keys.files(id_))])
    for file, row in rows.items():
        state, at, *rest = row.decode().split(" ")
        older = " ".join([state, str(int(at) - 25 * 3_600_000), *rest])
        client.call("aging", [("HSET", keys.files(id_), file, older)])


@pytest.mark.parametrize("seed", range(3))
def test_python_and_the_jvm_read_each_others_writes(
    shared_redis_server: RedisServer, seed: int
) -> None:
    history = History(shared_redis_server, seed)
    schema = family_of(MSGPACK.name, lists=True).key_schema
    with jvm_actor(shared_redis_server.url, history.gen, schema, lists=True) as jvm:
        for _ in range(STEPS):
            step(history, jvm)
    history.client.close()


def test_python_and_the_jvm_share_a_folder_of_files(
    shared_redis_server: RedisServer, tmp_path: Path
) -> None:
    done: Counter[str] = Counter()
    seeds = iter(range(10))
    # Maintenance runs by the clock, so a seed may find no file that the JVM could delete.
    while len(+done) < 5:
        seed = next(seeds)
        history = History(shared_redis_server, seed, tmp_path)
        schema = family_of(MSGPACK.name, lists=True).key_schema
        url = shared_redis_server.url
        with jvm_actor(url, history.gen, schema, lists=True, folder=tmp_path) as jvm:
            for _ in range(STEPS):
                step(history, jvm)
                play_files(history, jvm, done)
            for version in sorted(history.versions):
                check_jvm(history, jvm, version)
                check_python(history, version)
        history.client.close()
