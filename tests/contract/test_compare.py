"""Two versions compared by their segments: kept versions, a fork and its parent, any two alike."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import redis_state
from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.errors import ConfigError, NotFoundError, UsageError
from redis_state.forks.keep import keep
from redis_state.protocol.pins import FORK, fork_partitions, pin_all
from redis_state.reader.comparison import Comparison
from tests.contract.following import FAMILIES, LISTS, NAMES, SINGLE, Program
from tests.contract.planting import Planted, family, schema
from tests.support.redis_server import RedisServer

NewProgram = Callable[[str, int], Program]
FORKED = "f" * 32
ROWS = 3_000


@pytest.fixture
def new_program(shared_redis_server: RedisServer) -> Iterator[NewProgram]:
    with ExitStack() as stack:

        def new(kind: str, seed: int) -> Program:
            program = Program(shared_redis_server.url, kind, random.Random(seed), retained=2)
            stack.callback(program.close)
            return program

        yield new


def expected(before: dict[Any, Any], after: dict[Any, Any]) -> dict[Any, tuple[Any, Any]]:
    return {
        key: (before.get(key), after.get(key))
        for key in before.keys() | after.keys()
        if before.get(key) != after.get(key)
    }


@pytest.mark.parametrize("kind", [SINGLE, LISTS, FAMILIES])
@pytest.mark.parametrize("seed", range(4))
def test_kept_versions_differ_as_in_the_model(
    kind: str, seed: int, shared_redis_server: RedisServer, new_program: NewProgram
) -> None:
    url, chance, program = shared_redis_server.url, random.Random(seed), new_program(kind, seed)
    kept: dict[str, Any] = {}
    for number in range(18):
        program.batch()
        if chance.random() < 0.3:
            program.maintain()
        if chance.random() < 0.3:
            program.confirm()
            keep(url, program.name, name=f"k.{number}")
            kept[f"k.{number}"] = program.states[-1]
    program.confirm()
    kept["confirmed"] = program.states[-1]
    found: set[bool] = set()
    with redis_state.connect(url) as reader:
        query = reader.query(program.name)
        for name_a, of_a in kept.items():
            for name_b, of_b in kept.items():
                counts = reader.diff(
                    program.name, program.name, at_a=name_a, at_b=name_b, limit=10_000
                )
                (store,) = counts.stores
                by_name = {one.name: one for one in store.families}
                equal = 0
                for name in NAMES[kind]:
                    wanted = expected(of_a[name], of_b[name])
                    rows = {one.key: (one.a, one.b) for one in counts.keys if one.family == name}
                    assert rows == wanted
                    if name_a != "confirmed":
                        state = query.operator(0, family=name)
                        b = None if name_b == "confirmed" else name_b
                        changes = {
                            one.key: (one.before, one.after) for one in state.diff(name_a, b)
                        }
                        assert changes == wanted
                    same = len(of_a[name].keys() | of_b[name].keys()) - len(wanted)
                    equal += same
                    one = by_name.get(name)
                    if one is not None:
                        assert one.equal in (None, same)
                        assert one.only_a == sum(1 for _, b in wanted.values() if b is None)
                        assert one.only_b == sum(1 for a, _ in wanted.values() if a is None)
                        found.add(one.equal is None)
                assert store.equal == equal
    assert found


class TwoCheckpoints:
    """A query and its fork, which each went on with other changes."""

    def __init__(self, server: RedisServer) -> None:
        self.url = server.url
        self.raw: Any = server.client()
        self.parent = Planted(self.raw, buckets=16)
        self.parent.register()
        first = [(_key(number), {"count": number, "total": 0.0}) for number in range(ROWS)]
        self.parent.commit(1, first)
        self.parent.commit(2, [(_key(0), {"count": -1, "total": 0.0})])
        ids = [self.parent.id(number) for number in range(self.parent.partitions)]
        with closing(Client(config.parse({"url": self.url}))) as client:
            pinned = pin_all(client, ids, FORKED, 2, kind=FORK)
            fork_partitions(client, FORKED, pinned, ttl_ms=86_400_000)
        self.fork = Planted(self.raw, buckets=16, gen=FORKED, name="what-if")
        self.fork.live = {number: set(keys) for number, keys in self.parent.live.items()}
        self.fork.register()

    def commit(self, planted: Planted, changes: list[Any]) -> None:
        metas = [keys.meta(planted.id(number)) for number in range(planted.partitions)]
        before = [self.raw.hget(meta, "f") for meta in metas]
        planted.commit(3, changes)
        for meta, format_ in zip(metas, before, strict=True):
            self.raw.hset(meta, "f", format_ or "1")


def _key(number: int) -> dict[str, str]:
    return {"carrier": f"c{number}"}


@pytest.fixture
def two(redis_server: RedisServer) -> TwoCheckpoints:
    made = TwoCheckpoints(redis_server)
    made.commit(
        made.parent, [(_key(1), {"count": 100, "total": 0.0}), (_key(2), None), (_key(3), None)]
    )
    made.commit(
        made.fork,
        [
            (_key(1), {"count": 200, "total": 0.0}),
            (_key(3), None),
            (_key(9_999), {"count": 7, "total": 0.0}),
        ],
    )
    return made


def compared(two: TwoCheckpoints, **given: Any) -> Comparison:
    with redis_state.connect(two.url) as reader:
        return reader.diff("flights", "what-if", **given)


def test_fork_differs_from_its_parent_by_what_either_wrote(two: TwoCheckpoints) -> None:
    found = compared(two)
    (store,) = found.stores
    assert (store.only_a, store.only_b, store.changed, store.equal) == (0, 2, 1, ROWS - 3)
    (rows,) = store.families
    assert (rows.name, rows.equal) == ("default", ROWS - 3)
    values = {one.key["carrier"]: (one.a, one.b) for one in found.keys}
    assert values == {
        "c1": ({"count": 100, "total": 0.0}, {"count": 200, "total": 0.0}),
        "c2": (None, {"count": 2, "total": 0.0}),
        "c9999": (None, {"count": 7, "total": 0.0}),
    }
    assert found.complete
    limited = compared(two, limit=1)
    assert (len(limited.keys), limited.complete) == (1, False)
    assert limited.stores == found.stores
    with pytest.raises(ConfigError, match="limit is negative"):
        compared(two, limit=-1)


def test_common_segments_are_not_read(two: TwoCheckpoints) -> None:
    same = compared(two, at_a=1, at_b=1)
    assert not same.differs
    assert same.stores[0].common == 4
    fields: list[str] = []
    with two.raw.monitor() as watched, redis_state.connect(two.url) as reader:
        reader.diff("flights", "what-if")
        two.raw.ping()
        for seen in watched.listen():
            if seen["command"].upper() == "PING":
                break
            words = seen["command"].split(" ")
            if words[0].upper() == "HMGET" and ":d:1:" in words[1]:
                fields += words[2:]
    # Of the common delta with all rows, only the buckets of keys whose other side has no value.
    assert len([name for name in fields if name != "h"]) <= 3


def test_versions_without_a_common_segment_are_compared_whole(two: TwoCheckpoints) -> None:
    wanted = compared(two, limit=1_000)
    for number in range(4):
        planted, rows = two.fork, {}
        with redis_state.connect(two.url) as reader:
            for key, value in reader.query("what-if").operator(0).items():
                if planted.partition(key) == number:
                    rows[planted.key(key)] = planted.value(value)
        planted.live[number] = set(rows)
        format_ = two.raw.hget(keys.meta(planted.id(number)), "f")
        planted.buckets = 1 if number % 2 else 64
        planted.snapshot(number, 3, rows)
        two.raw.hset(keys.meta(planted.id(number)), "f", format_ or "1")
        for name in two.raw.hkeys(keys.meta(planted.id(number))):
            if name.startswith(b"a:"):
                two.raw.hdel(keys.meta(planted.id(number)), name)
    found = compared(two, limit=1_000)
    assert found.stores[0].common == 0
    assert {repr(one) for one in found.keys} == {repr(one) for one in wanted.keys}
    (store,), (before,) = found.stores, wanted.stores
    assert (store.equal, store.changed) == (before.equal, before.changed)
    assert store.families == before.families


def test_other_partitions_and_types_are_refused(two: TwoCheckpoints) -> None:
    eight = Planted(two.raw, partitions=8, gen="e" * 32, name="eight")
    eight.register()
    eight.commit(1, [(_key(1), {"count": 1, "total": 0.0})])
    typed = Planted(
        two.raw,
        family=family(schema(carrier="string"), schema(count="string")),
        gen="d" * 32,
        name="typed",
    )
    typed.register()
    typed.commit(1, [(_key(number), {"count": "1"}) for number in range(50)])
    other = Planted(two.raw, operator=1, gen="c" * 32, name="other")
    other.register()
    other.commit(1, [(_key(1), {"count": 1, "total": 0.0})])
    with redis_state.connect(two.url) as reader:
        with pytest.raises(UsageError, match="4 partitions in the first and 8 in the second"):
            reader.diff("flights", "eight")
        with pytest.raises(UsageError, match="other columns"):
            reader.diff("flights", "typed")
        with pytest.raises(UsageError, match=r"has the stores 0 \(default\), the second 1"):
            reader.diff("flights", "other")


def test_command_compares_two_checkpoints(
    two: TwoCheckpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: str) -> str:
        assert main([*shlex.split(command), "--url", two.url]) == 0
        return capsys.readouterr().out

    keep(two.url, "flights", name="before-deploy")
    printed = json.loads(run("diff flights what-if --json"))
    (store,) = printed["stores"]
    assert (store["only_a"], store["only_b"], store["changed"]) == (0, 2, 1)
    assert {one["key"]["carrier"] for one in printed["keys"]} == {"c1", "c2", "c9999"}
    assert (printed["batch_a"], printed["batch_b"], printed["complete"]) == (2, 2, True)
    at = json.loads(run("diff flights@before-deploy what-if@2 --json --limit 1"))
    assert at["stores"] == printed["stores"]
    assert len(at["keys"]) == 1
    assert json.loads(run("diff flights@1 what-if@1 --json"))["keys"] == []
    table = run("diff flights what-if --format table")
    assert "ONLY IN A" in table
    assert "c9999" in table


def test_command_compares_a_kept_version_with_a_batch(
    two: TwoCheckpoints, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(two.url, "flights", name="before-deploy", at_batch=1)

    def run(command: str) -> list[dict[str, Any]]:
        assert main([*shlex.split(command), "--url", two.url]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    by_name = run("diff flights before-deploy --json")
    assert {one["key"]["carrier"]: one["change"] for one in by_name} == {
        "c1": "updated",
        "c2": "removed",
        "c3": "removed",
    }
    assert sorted(map(repr, run("diff flights before-deploy 2 --json"))) == sorted(
        map(repr, by_name)
    )
    assert main(["diff", "flights", "nothing", "--url", two.url]) != 0
    assert "neither a kept version of 'flights' nor a query" in capsys.readouterr().err


def test_comparison_obeys_limit_and_output(
    two: TwoCheckpoints, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "found.json"
    assert main(["diff", "flights", "0", "--limit", "1", "--url", two.url]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert main(["diff", "flights", "what-if", "--output", str(path), "--url", two.url]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(path.read_text())["differs"]
    for wrong in (["--limit", "-1"], ["--format", "csv"]):
        assert main(["diff", "flights", "what-if", *wrong, "--url", two.url]) == 1
        assert wrong[0] in capsys.readouterr().err


def test_unknown_query_and_name_are_reported(two: TwoCheckpoints) -> None:
    with redis_state.connect(two.url) as reader:
        with pytest.raises(NotFoundError, match="no kept version"):
            reader.diff("flights", "what-if", at_a="nothing")
        with pytest.raises(NotFoundError, match="no such query"):
            reader.diff("flights", "nothing")


def test_empty_state_before_all_batches_is_compared(two: TwoCheckpoints) -> None:
    keep(two.url, "flights", name="before-deploy")
    with redis_state.connect(two.url) as reader:
        state = reader.query("flights").operator(0)
        changes = list(state.diff(-1, "before-deploy"))
    assert len(changes) == ROWS - 2
    assert {one.before for one in changes} == {None}
