"""Changes, differences and histories of stores that go on, against plain dicts of each version."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import redis_state
from redis_state.errors import Kind, StateError
from redis_state.live import Reader
from redis_state.reader import OperatorState
from tests.contract.following import (
    FAMILIES,
    LISTS,
    NAMES,
    PARTITIONS,
    SINGLE,
    Program,
    State,
)
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

NewProgram = Callable[..., Program]
EVER = 10_000
BATCHES = 30


@pytest.fixture
def new_program(shared_redis_server: RedisServer) -> Iterator[NewProgram]:
    with ExitStack() as stack:

        def new(kind: str, seed: int, *, retained: int) -> Program:
            program = Program(shared_redis_server.url, kind, random.Random(seed), retained=retained)
            stack.callback(program.close)
            return program

        yield new


@pytest.fixture
def reader(shared_redis_server: RedisServer) -> Iterator[Reader]:
    with redis_state.connect(shared_redis_server.url, deadline="5s") as reader:
        yield reader


class Follower:
    """Keeps a copy of one family by its changes, and does what errors tell it to do."""

    def __init__(self, program: Program, reader: Reader, name: str) -> None:
        self._program = program
        self._name = name
        self._state = reader.query(program.name).operator(0, family=name)
        self.rows: State = {}
        self.since: str | int = "start"
        self.at = 0

    def catch_up(self, *, went_back: bool) -> None:
        """Reads all confirmed batches and compares each."""
        refused = self._refused()
        if refused is not None:
            self._go_on(refused, went_back=went_back)
            self._take()
        assert self.at == self._program.confirmed

    def _refused(self) -> StateError | None:
        try:
            self._take()
        except StateError as error:
            return error
        return None

    def _go_on(self, refused: StateError, *, went_back: bool) -> None:
        """Follows the advice of the error message."""
        if refused.kind is Kind.STATE_LOST:
            assert went_back
            self.since = "start"
            return
        version = refused.version
        assert (refused.kind, version is None) == (Kind.VERSION_EXPIRED, False)
        lists = self._program.kind == LISTS or self._name == "events"
        items = self._state.list_items if lists else self._state.items
        self.rows = dict(items(version=version))
        self.at = version or 0
        self.since = self.at - 1

    def _take(self) -> None:
        for batch in self._state.changes(since=self.since):
            if batch.whole:
                self.rows = {}
            else:
                assert batch.number == self.at
            for key, value in batch:
                if value is None:
                    self.rows.pop(key, None)
                else:
                    self.rows[key] = value
            self.at = batch.number + 1
            assert self.rows == self._program.states[self.at][self._name]
            self.since = batch.token


def run(
    program: Program, chance: random.Random, *, rewinds: bool, steps: int = 40
) -> Iterator[int | None]:
    """Steps of a program; after some of them, to which version it went back."""
    for _ in range(steps):
        what = chance.random()
        back = None
        if what < 0.1:
            program.maintain(deep=chance.random() < 0.5)
        elif what < 0.15:
            program.restart()
        elif what < 0.2:
            program.begin(chance.sample(range(PARTITIONS), chance.randint(1, PARTITIONS)))
        elif what < 0.25 and rewinds and len(program.states) > 3:
            back = len(program.states) - chance.randrange(2, 4)
            program.restart(back)
            program.batch()
        else:
            program.batch()
        yield back


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [SINGLE, LISTS, FAMILIES])
def test_changes_replayed_give_each_state(
    new_program: NewProgram, reader: Reader, kind: str, seed: int
) -> None:
    chance = random.Random(seed)
    program = new_program(kind, seed, retained=chance.choice((3, EVER)))
    program.batch()
    for _ in range(2):
        program.batch()
    followers = [Follower(program, reader, name) for name in NAMES[kind]]
    backs: list[int] = []
    for back in run(program, chance, rewinds=True, steps=30):
        backs += [] if back is None else [back]
        if chance.random() < 0.3:
            for follower in followers:
                follower.catch_up(went_back=any(back < follower.at for back in backs))
            backs = []
    program.confirm()
    for follower in followers:
        follower.catch_up(went_back=any(back < follower.at for back in backs))


@pytest.mark.parametrize("kind", [SINGLE, LISTS, FAMILIES])
def test_follower_reads_each_batch_during_writes_and_maintenance(
    new_program: NewProgram, reader: Reader, kind: str
) -> None:
    program = new_program(kind, 5, retained=20)
    program.batch()
    stop = threading.Event()
    seen: list[int] = []

    def work() -> None:
        try:
            for at in range(BATCHES):
                # Retention drops what is 20 versions old, also under a reader that gets no CPU.
                wait_until(lambda at=at: len(seen) > at - 10 or stop.is_set(), "the follower")  # type: ignore[misc]  # bound at once
                program.batch()
                if at % 5 == 4:
                    program.maintain()
            program.confirm()
        finally:
            if len(program.states) < BATCHES + 2:
                stop.set()

    writer = threading.Thread(target=work)
    writer.start()
    rows: State = {}
    name = NAMES[kind][-1]
    state = reader.query(program.name).operator(0, family=name)
    # The name of a family is known once a version has it.
    since = -1
    for batch in state.changes(since=since, follow=True, interval_s=0.01, stop=stop):
        seen.append(batch.number)
        rows |= dict(batch)
        rows = {key: value for key, value in rows.items() if value is not None}
        assert rows == program.states[batch.number + 1][name]
        if batch.number == BATCHES:
            break
    writer.join()
    assert seen == list(range(BATCHES + 1))


@pytest.mark.parametrize("kind", [SINGLE, LISTS, FAMILIES])
def test_each_token_continues_after_its_batch(
    new_program: NewProgram, reader: Reader, kind: str
) -> None:
    chance = random.Random(7)
    program = new_program(kind, 7, retained=EVER)
    for _ in run(program, chance, rewinds=False, steps=14):
        pass
    program.confirm()
    for name in NAMES[kind]:
        state = reader.query(program.name).operator(0, family=name)
        tokens = {batch.number: batch.token for batch in state.changes(since=-1)}
        assert list(tokens) == list(range(program.confirmed))
        for number, token in tokens.items():
            rows = dict(program.states[number + 1][name])
            for batch in state.changes(since=token):
                number += 1
                assert batch.number == number
                assert batch.token == tokens[number]
                rows |= dict(batch)
                rows = {key: value for key, value in rows.items() if value is not None}
                assert rows == program.states[number + 1][name]
            assert number + 1 == program.confirmed


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [SINGLE, LISTS, FAMILIES])
def test_diff_and_history_equal_the_model(
    new_program: NewProgram, reader: Reader, kind: str, seed: int
) -> None:
    chance = random.Random(seed)
    program = new_program(kind, seed, retained=(EVER, 4)[seed % 2])
    program.batch()
    for _ in run(program, chance, rewinds=True, steps=25):
        pass
    program.confirm()
    for name in NAMES[kind]:
        state = reader.query(program.name).operator(0, family=name)
        oldest = oldest_of(state)
        assert (oldest == 0) is (seed % 2 == 0)
        check_differences(program, state, name, oldest, chance)
        check_histories(program, state, name, oldest)


def oldest_of(state: OperatorState) -> int:
    try:
        list(state.diff(-1))
    except StateError as error:
        return (error.version or 0) if error.kind is Kind.VERSION_EXPIRED else -1
    return 0


def check_differences(
    program: Program, state: OperatorState, name: str, oldest: int, chance: random.Random
) -> None:
    for _ in range(8):
        a, b = (chance.randint(oldest, program.confirmed) for _ in range(2))
        first, second = program.states[a][name], program.states[b][name]
        expected = {
            key: (first.get(key), second.get(key))
            for key in {*first, *second}
            if first.get(key) != second.get(key)
        }
        found = list(state.diff(a - 1, b - 1))
        assert len(found) == len(expected)
        assert {one.key: (one.before, one.after) for one in found} == expected
    newest = {one.key: one.after for one in state.diff(oldest - 1)}
    base = program.states[oldest][name] | newest
    left = {key: value for key, value in base.items() if value is not None}
    assert left == program.states[program.confirmed][name]


def check_histories(program: Program, state: OperatorState, name: str, oldest: int) -> None:
    versions = range(program.confirmed, 0, -1)
    keys = {key for tables in program.states for key in tables[name]}
    for key in [*sorted(keys)[:6], sorted(keys)[-1]]:
        values = [tables[name].get(key) for tables in program.states]
        expected = [(v - 1, values[v]) for v in versions if values[v] != values[v - 1]]
        found = state.history(key)
        told = [(one.batch, one.value) for one in found if not one.earlier]
        assert told == expected[: len(told)]
        if found and found[-1].earlier:
            assert len(found) == len(told) + 1
            assert found[-1].value == values[found[-1].batch + 1] is not None
            assert all(batch <= found[-1].batch for batch, _ in expected[len(told) :])
        elif oldest == 0:
            assert told == expected
        elif len(told) < len(expected):
            assert expected[len(told)][1] is None
        for limit in (1, 3):
            assert state.history(key, limit=limit) == found[:limit]
