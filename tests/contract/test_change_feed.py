"""The change feed over planted versions: every kind of key, waiting, its price, its end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import redis_state
from redis_state import config, keys
from redis_state.clock import SYSTEM, Clock
from redis_state.errors import ConfigError, FormatError, Kind, NotFoundError, StateError
from redis_state.format.header import Tombstone
from redis_state.format.rows import Value
from redis_state.live import Reader
from redis_state.reader import ChangeBatch, OperatorState
from redis_state.rows.codec import codec_of
from tests.contract.planting import GEN, Planted, family, schema, uid
from tests.support.redis_server import RedisServer, bytes_of

UA = {"carrier": "UA"}
AA = {"carrier": "AA"}
ONE = {"count": 1, "total": 0.5}
TWO = {"count": 2, "total": 1.5}
USERS: list[Any] = [(user, n) for user in ("ann", "bob", None) for n in range(40)]
KINDS: list[tuple[str, tuple[int, ...]]] = [
    ("none", ()),
    ("prefix", (1,)),
    ("range", (1,)),
    ("ts-prefix", ()),
    ("ts-postfix", ()),
]
Rows = dict[bytes, bytes]


@pytest.fixture
def planted(redis_server: RedisServer) -> Planted:
    planted = Planted(redis_server.client())
    planted.register()
    return planted


@pytest.fixture
def state(reader: Reader, planted: Planted) -> OperatorState:
    return reader.query(planted.name).operator()


class Script:
    """A clock whose sleeps run one step after the other, and then end the wait."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.slept_s: list[float] = []

    def monotonic_s(self) -> float:
        return SYSTEM.monotonic_s()

    def sleep_s(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.steps.pop(0)()


def following(redis_server: RedisServer, planted: Planted, clock: Clock) -> OperatorState:
    reader = Reader(config.parse({"url": redis_server.url}), clock=clock)
    return reader.query(planted.name).operator()


def rows_of(batch: ChangeBatch) -> list[tuple[str, int | None]]:
    return sorted(
        (key["carrier"], None if value is None else value["count"]) for key, value in batch
    )


def versions_of(planted: Planted, dice: random.Random) -> list[Rows]:
    """Plants versions of one partition; what each one holds."""
    rows: Rows = {}
    there = [rows]
    stored = [planted.key(key) for key in USERS]
    for version in range(1, 10):
        planted.buckets = dice.choice([None, 1, 2, 8, 64])
        complete, tombstones = version > 1 and dice.random() < 0.2, []
        if complete:
            rows = {}
        elif version > 1 and dice.random() < 0.5:
            start, end = sorted(key[2:] for key in dice.sample(stored, 2))
            tombstones = [Tombstone(0, dice.choice([start, None]), dice.choice([end, None]))]
            rows = {k: v for k, v in rows.items() if not tombstones[0].covers(k[2:])}
        changes: dict[bytes, Value] = {}
        for key in dice.sample(stored, dice.randrange(len(stored) // 2)):
            new = planted.value({"text": "x" * dice.choice((0, 1, 2000)), "at": dice.randrange(2)})
            changes[key] = new if complete or dice.random() < 0.7 else None
        planted.delta(0, version, changes, tombstones=tombstones, complete=complete)
        rows = rows | {key: value for key, value in changes.items() if isinstance(value, bytes)}
        rows = {key: value for key, value in rows.items() if changes.get(key, b"") is not None}
        there.append(rows)
    return there


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("kind", "params"), KINDS)
def test_feed_reads_every_kind_of_key_and_delta(
    shared_redis_server: RedisServer, seed: int, kind: str, params: tuple[int, ...]
) -> None:
    dice = random.Random(seed)
    last = "__event_time" if kind.startswith("ts") else "n"
    layout = family(
        schema(**{"user": "string", last: "long"}),
        schema(text="string", at="long"),
        kind=kind,
        params=params,
    )
    gen = f"{dice.getrandbits(128):032x}"
    planted = Planted(shared_redis_server.client(), layout, 1, gen, gen, tenant=f"feed-{kind}:")
    planted.register()
    there = versions_of(planted, dice)
    codec = codec_of(layout)
    shown = [
        {tuple(codec.decode_key(k).values()): codec.decode_value(v) for k, v in rows.items()}
        for rows in there
    ]
    with redis_state.connect(shared_redis_server.url, key_prefix=f"feed-{kind}") as reader:
        state = reader.query(gen).operator()
        check_changes(state, shown)
        for _ in range(6):
            a, b = dice.randrange(len(there)), dice.randrange(len(there))
            found = list(state.diff(a - 1, b - 1))
            assert {tuple(one.key.values()): (one.before, one.after) for one in found} == {
                key: (shown[a].get(key), shown[b].get(key))
                for key in {*shown[a], *shown[b]}
                if shown[a].get(key) != shown[b].get(key)
            }
        for key in dice.sample(USERS, 8):
            values = [rows.get(key) for rows in shown]
            assert [(one.batch, one.value) for one in state.history(key)] == [
                (at - 1, values[at])
                for at in range(len(values) - 1, 0, -1)
                if values[at] != values[at - 1]
            ]
        # A snapshot takes the place of the deltas up to it.
        planted.snapshot(0, 6, there[6])
        check_changes(state, shown, start=6)


def check_changes(state: OperatorState, shown: Sequence[Any], *, start: int = 0) -> None:
    rows: Any = dict(shown[start])
    batches = list(state.changes(since=start - 1))
    assert [batch.number for batch in batches] == list(range(start, len(shown) - 1))
    for batch in batches:
        for key, value in batch:
            if value is None:
                rows.pop(tuple(key.values()), None)
            else:
                rows[tuple(key.values())] = value
        assert rows == shown[batch.number + 1]


def test_since_start_yields_the_whole_state_first(planted: Planted, state: OperatorState) -> None:
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.commit(2, [(UA, TWO)])
    planted.commit(3, [(AA, None)], confirmed=False)
    (first,) = state.changes(since="start")
    assert (first.number, first.whole) == (1, True)
    assert rows_of(first) == [("AA", 1), ("UA", 2)]
    assert list(state.changes(since=first.token)) == []
    assert list(state.changes()) == []
    planted.commit(3, [(AA, None)])
    (batch,) = state.changes(since=first.token)
    assert (batch.number, batch.whole) == (2, False)
    assert rows_of(batch) == rows_of(batch) == [("AA", None)]
    assert "token" in repr(batch)


def test_feed_starts_before_the_first_batch(planted: Planted, state: OperatorState) -> None:
    (first,) = state.changes(since="start")
    assert (first.number, first.whole, list(first)) == (-1, True, [])
    planted.commit(1, [(UA, ONE)])
    (batch,) = state.changes(since=first.token)
    assert (batch.number, rows_of(batch)) == (0, [("UA", 1)])


def test_batch_is_yielded_when_all_partitions_confirmed_it(
    planted: Planted, redis_server: RedisServer
) -> None:
    planted.commit(1, [(UA, ONE)])
    planted.commit(2, [(UA, TWO)], confirmed=False)

    def confirm(partition: int) -> None:
        planted.client.hset(keys.meta(planted.id(partition)), "o", "2")
        planted.client.hset(keys.meta(planted.id(partition)), "ou", uid(2))

    steps = [lambda number=number: confirm(number) for number in (1, 0, 3, 2)]
    clock = Script(*steps)
    feed = following(redis_server, planted, clock).changes(since=0, follow=True, interval_s=0.5)
    batch = next(feed)
    assert (batch.number, rows_of(batch)) == (1, [("UA", 2)])
    assert (len(clock.slept_s), set(clock.slept_s)) == (4, {0.5})


def test_follower_sends_few_commands(planted: Planted, redis_server: RedisServer) -> None:
    """A command an interval while nothing happens, and three a partition for a batch."""
    planted.partitions = 8
    planted.register()
    planted.commit(1, [(UA, ONE)])
    seen: list[dict[str, int]] = []

    def count(batch: int | None = None) -> None:
        stats = planted.client.info("commandstats")
        own = {name.removeprefix("cmdstat_"): one["calls"] for name, one in stats.items()}
        names = ("hmget", "hgetall", "hlen", "eval", "evalsha")
        seen.append({name: own[name] for name in names if name in own})
        if batch is not None:
            planted.commit(batch, [({"carrier": f"c{n}"}, ONE) for n in range(100)])
        planted.client.config_resetstat()

    clock = Script(lambda: count(2), count, count, lambda: count(3), count)
    feed = following(redis_server, planted, clock).changes(since=0, follow=True)
    assert [len(list(next(feed))) for _ in range(2)] == [100, 100]
    with pytest.raises(IndexError):
        next(feed)
    # Two looks saw nothing. The last count is of the batch: the look that saw it, heads and
    # entries of all partitions, the list of operators, and the deltas.
    assert seen[2:] == [{"hmget": 1}, {"hmget": 1}, {"hmget": 17, "hgetall": 9}]


def test_event_stops_a_follower(planted: Planted, state: OperatorState) -> None:
    planted.commit(1, [(UA, ONE)])
    stop = threading.Event()
    feed = state.changes(since=-1, follow=True, interval_s=3600, stop=stop)
    assert next(feed).number == 0
    ended: list[Any] = []
    thread = threading.Thread(target=lambda: ended.append(next(feed, None)))
    thread.start()
    stop.set()
    thread.join()
    assert ended == [None]


def test_closed_feed_yields_nothing(planted: Planted, state: OperatorState) -> None:
    planted.commit(1, [(UA, ONE)])
    planted.commit(2, [(UA, TWO)])
    feed: Any = state.changes(since=-1, follow=True)
    next(feed)
    feed.close()
    assert list(feed) == []


@pytest.mark.parametrize("since", ["", "start2", "rs1-", "rs1-AAAA", "é", 1.5, True, -2])
def test_malformed_token_raises_config(state: OperatorState, since: Any) -> None:
    with pytest.raises(ConfigError):
        state.changes(since=since)


@pytest.mark.parametrize("interval_s", [0, -1, 1e9, "1s", float("nan")])
def test_malformed_interval_raises_config(state: OperatorState, interval_s: Any) -> None:
    with pytest.raises(ConfigError, match="interval"):
        state.changes(follow=True, interval_s=interval_s)


def test_a_changed_or_foreign_token_is_refused(
    planted: Planted, state: OperatorState, reader: Reader
) -> None:
    planted.commit(1, [(UA, ONE)])
    (first,) = state.changes(since="start")
    for at in range(4, len(first.token)):
        wrong = first.token[:at] + ("A" if first.token[at] != "A" else "B") + first.token[at + 1 :]
        with pytest.raises(ConfigError, match="not a token"):
            state.changes(since=wrong)
    with pytest.raises(ConfigError, match="not a token"):
        state.changes(since=first.token[:-1])
    with pytest.raises(ConfigError, match="another checkpoint, operator or store"):
        reader.query(GEN).operator(1).changes(since=first.token)


def rewind(planted: Planted, version: int, *, partitions: Sequence[int]) -> None:
    """Rewinds partitions as a run does in format 1, which drops the later entries."""
    for number in partitions:
        meta = keys.meta(planted.id(number))
        for name, value in (("e", "2"), ("o", str(version)), ("ou", uid(version))):
            planted.client.hset(meta, name, value)
        for field in map(bytes_of, planted.client.hkeys(meta)):
            kind, _, rest = field.decode().partition(":")
            if kind == "d" and int(rest.split(":")[0]) > version:
                planted.client.hdel(meta, field)


@pytest.mark.parametrize("partitions", [[0], [3], [0, 1, 2, 3]])
def test_rewind_below_the_token_raises_state_lost(
    planted: Planted, state: OperatorState, partitions: list[int]
) -> None:
    for version in (1, 2, 3):
        planted.commit(version, [(UA, {"count": version, "total": 0.0})])
    tokens = [batch.token for batch in state.changes(since=-1)]
    rewind(planted, 1, partitions=partitions)
    with pytest.raises(StateError, match=r'below batch 2; .* is 0\..*"start"') as e:
        list(state.changes(since=tokens[2]))
    assert (e.value.kind, e.value.version) == (Kind.STATE_LOST, 1)
    assert list(state.changes(since=tokens[0])) == []


def test_rewound_query_yields_the_living_attempts(planted: Planted, state: OperatorState) -> None:
    """The abandoned attempts still exist in format 2; only the living ones count."""
    for version in (1, 2, 3):
        planted.commit(version, [(UA, {"count": version, "total": 0.0})])
    tokens = [batch.token for batch in state.changes(since=-1)]
    for number in range(planted.partitions):
        meta = keys.meta(planted.id(number))
        entry = planted.client.hget(meta, f"d:2:{uid(2)}")
        other = "a" * 32
        planted.client.copy(
            keys.segment(planted.id(number), f"d:2:{uid(2)}"),
            keys.segment(planted.id(number), f"d:2:{other}"),
        )
        head = {"e": "2", "c": "2", "o": "2", "ou": other, f"d:2:{other}": entry}
        planted.client.hset(meta, mapping=dict(head))  # type: ignore[arg-type]  # its stub
    with pytest.raises(StateError, match="batch 1 is no longer the batch that was read"):
        list(state.changes(since=tokens[1]))
    with pytest.raises(StateError, match="went back below batch 2"):
        list(state.changes(since=tokens[2]))
    (batch,) = state.changes(since=tokens[0])
    assert batch.token != tokens[1]
    with pytest.raises(FormatError):
        # The bytes are those of another attempt: its ident is part of each check.
        list(batch)


def test_rewind_between_two_polls_mixes_no_timelines(
    planted: Planted, redis_server: RedisServer
) -> None:
    """One partition was looked at before a rewind, the others behind it: all are read again."""
    for version in (1, 2):
        planted.commit(version, [(UA, ONE)])
    clock = Script()
    state = following(redis_server, planted, clock)
    (first,) = state.changes(since="start")
    client = state._client
    call = client.call
    looks: list[str] = []

    def late(attempted: str, commands: Any, **given: Any) -> list[Any]:
        replies = call(attempted, commands, **given)
        if attempted.startswith("reading which versions"):
            looks.append(attempted)
            if len(looks) == 1:
                rewind(planted, 1, partitions=[2])
        return replies

    client.call = late  # type: ignore[method-assign]
    with pytest.raises(StateError, match="went back below batch 1"):
        list(state.changes(since=first.token))
    assert len(looks) == 4


def test_dropped_deltas_raise_and_name_the_next_step(
    planted: Planted, state: OperatorState
) -> None:
    for version in range(1, 6):
        planted.commit(version, [(UA, {"count": version, "total": 0.0})])
    tokens = [batch.token for batch in state.changes(since=-1)]
    late = list(state.changes(since=tokens[0]))
    for number in range(planted.partitions):
        rows = {planted.key(UA): planted.value({"count": 3, "total": 0.0})}
        planted.snapshot(number, 3, rows if planted.partition(UA) == number else {})
    for since in (tokens[0], tokens[1], 0):
        with pytest.raises(StateError, match=r"batch 2 or .* items\(version=3\).* since=2") as e:
            list(state.changes(since=since))
        assert (e.value.kind, e.value.version) == (Kind.VERSION_EXPIRED, 3)
    for read in (lambda: list(late[0]), lambda: list(state.diff(0, 4))):
        with pytest.raises(StateError, match="changes that batch 2 or an older one made"):
            read()
    assert [rows_of(batch) for batch in state.changes(since=tokens[2])] == [
        [("UA", 4)],
        [("UA", 5)],
    ]
    assert [(one.batch, one.value["count"], one.earlier) for one in state.history(UA)] == [
        (4, 5, False),
        (3, 4, False),
        (2, 3, True),
    ]
    assert [one.batch for one in state.history(UA, limit=2)] == [4, 3]


def test_destroyed_delta_is_not_read_as_an_empty_batch(
    planted: Planted, state: OperatorState
) -> None:
    for version in (1, 2):
        planted.commit(version, [(UA, {"count": version, "total": 0.0})])
    number = planted.partition(UA)
    planted.client.delete(keys.segment(planted.id(number), f"d:2:{uid(2)}"))
    (batch,) = state.changes(since=0)
    with pytest.raises(StateError, match=f"blocks of d:2:{uid(2)} are missing") as error:
        list(batch)
    assert error.value.kind is Kind.STATE_LOST
    with pytest.raises(redis_state.errors.UnavailableError):
        list(state.diff(0, 1))
    with pytest.raises(StateError):
        state.history(UA)


def test_missing_batches_and_malformed_arguments_are_refused(
    planted: Planted, state: OperatorState
) -> None:
    planted.commit(1, [(UA, ONE)])
    for read in (lambda: list(state.diff(0, 7)), lambda: list(state.changes(since=7))):
        with pytest.raises(StateError, match="no batch 7; the newest that is confirmed is 0"):
            read()
    for wrong in ("0", 1.0, -2, None):
        with pytest.raises(ConfigError, match=r"whole number|name nor the number of a batch"):
            list(state.diff(wrong))  # type: ignore[arg-type]  # what is refused
    for limit in (0, -1, True, "1"):
        with pytest.raises(ConfigError, match="limit"):
            state.history(UA, limit=limit)  # type: ignore[arg-type]  # what is refused
    assert list(state.diff(0, 0)) == []


def test_unknown_operator_or_family_raises_not_found(planted: Planted, reader: Reader) -> None:
    planted.commit(1, [(UA, ONE)])
    query = reader.query(planted.name)
    for state in (query.operator(family="none"), query.operator(9)):
        for read in (
            lambda state=state: list(state.changes(since="start")),
            lambda state=state: list(state.changes(since=0)),
            lambda state=state: list(state.diff(-1, 0)),
            lambda state=state: state.history(UA),
        ):
            with pytest.raises(NotFoundError):
                read()


def test_added_partitions_invalidate_the_token(planted: Planted, state: OperatorState) -> None:
    planted.commit(1, [(UA, ONE)])
    (first,) = state.changes(since="start")
    planted.partitions = 5
    planted.register()
    planted.delta(4, 1, {})
    with pytest.raises(StateError, match="had 4 partitions, and has 5 now"):
        list(state.changes(since=first.token))


def test_partitions_of_different_batches_raise(planted: Planted, state: OperatorState) -> None:
    for version in (1, 2, 3):
        for number in range(planted.partitions):
            if number or version == 1:
                planted.delta(number, version, {})
    planted.snapshot(1, 3, {})
    with pytest.raises(StateError, match="partition 0 is at batch 0, and of partition 1"):
        list(state.changes(since="start"))


def test_many_versions_are_read_in_several_rounds(planted: Planted, state: OperatorState) -> None:
    planted.partitions = 1
    planted.register()
    for version in range(1, 151):
        planted.commit(version, [(UA, {"count": version, "total": 0.0})])
    assert [(batch.number, rows_of(batch)) for batch in state.changes(since=-1)] == [
        (version - 1, [("UA", version)]) for version in range(1, 151)
    ]
    assert [one.batch for one in state.history(UA)] == list(range(149, -1, -1))
    ((key, before, after),) = [(c.key, c.before, c.after) for c in state.diff(149, 3)]
    assert (key, before["count"], after["count"]) == (UA, 150, 4)


def test_rewind_during_catch_up_ends_the_feed_at_the_new_batch(
    planted: Planted, state: OperatorState
) -> None:
    planted.partitions = 1
    planted.register()
    for version in range(1, 131):
        planted.commit(version, [(UA, {"count": version, "total": 0.0})])
    feed = state.changes(since=-1)
    assert next(feed).number == 0
    rewind(planted, 100, partitions=[0])
    assert [batch.number for batch in feed] == list(range(1, 100))


def test_large_deltas_are_read_in_pieces(planted: Planted, state: OperatorState) -> None:
    dice = random.Random(3)
    many = [({"carrier": dice.randbytes(600).hex()}, ONE) for _ in range(4000)]
    planted.partitions = 1
    planted.register()
    planted.commit(1, many)
    planted.commit(2, [(key, TWO) for key, _ in many[:2000]])
    first, second = state.changes(since=-1)
    assert (len(list(first)), len(list(second))) == (4000, 2000)
    assert len(list(state.diff(0, 1))) == 2000


def test_reading_changes_leaves_redis_unchanged(planted: Planted, state: OperatorState) -> None:
    planted.commit(1, [(UA, ONE), (AA, TWO)])
    planted.commit(2, [(UA, TWO)])
    before = {key: planted.client.dump(key) for key in planted.client.keys("*")}
    assert [len(list(batch)) for batch in state.changes(since="start")] == [2]
    assert [len(list(batch)) for batch in state.changes(since=-1)] == [2, 1]
    assert len(list(state.diff(0))) == 1
    assert len(state.history(UA)) == 2
    assert {key: planted.client.dump(key) for key in planted.client.keys("*")} == before
