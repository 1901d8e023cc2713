"""One version over all partitions, by an invariant: transfers whose sum never changes."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from redis_state import StateStoreId, StateStoreProviderId, keys
from redis_state import config as options
from redis_state.backend.client import Client
from redis_state.batches.driver import begin_batch, verify_committed
from redis_state.errors import ConfigError, Kind, StateError
from redis_state.format.segment import SegmentWriter
from redis_state.live import Reader
from redis_state.reader import OperatorState
from redis_state.reader.lookup import key_search, many_keys
from redis_state.store.provider import StateStoreProvider
from tests.contract.planting import Planted, uid
from tests.support.redis_server import RedisServer

ACCOUNTS = 64
PARTITIONS = 4
SUM = 100 * ACCOUNTS
UA, AA = {"carrier": "UA"}, {"carrier": "AA"}
ONE, TWO = {"count": 1, "total": 0.5}, {"count": 2, "total": 1.5}


class Bank:
    """Accounts in all partitions of a store; each batch moves money between them.

    Batches begin and end as those of `map_partitions_with_state_store`.

    Attributes:
        changed: Accounts that differ from what the last batch has left.
    """

    def __init__(self, url: str, **given: str) -> None:
        self.name = uuid.uuid4().hex
        self._config = options.parse({"url": url, **given})
        self._client = Client(self._config)
        self._rng = random.Random(7)
        self._balances = dict.fromkeys(range(ACCOUNTS), 100)
        self.changed = set(range(ACCOUNTS))
        self.batch = 0

    def run(self) -> None:
        """The next batch, one partition after the other."""
        batch = begin_batch(
            self._client,
            self._config,
            name=self.name,
            number=self.batch,
            first=0,
            partitions=PARTITIONS,
            partitions_default=PARTITIONS,
            layout="k",
            codec_name="msgpack",
        )
        for _ in range(16):
            giver, taker = self._rng.sample(range(ACCOUNTS), 2)
            amount = self._rng.randrange(50)
            self._balances[giver] -= amount
            self._balances[taker] += amount
            self.changed |= {giver, taker}
        for number in self._rng.sample(range(PARTITIONS), PARTITIONS):
            id_ = StateStoreProviderId(batch.store_id(number), batch.run.run_id)
            provider = StateStoreProvider(
                id_, config=self._config, run=batch.run, client=self._client
            )
            store = provider.get_store(batch.version)
            for account in self.changed & set(range(number, ACCOUNTS, PARTITIONS)):
                store.put(account, self._balances[account])
            store.commit()
            if self.batch % 8 == 7:
                provider.do_maintenance()
            provider.close()
        verify_committed(self._client, batch)
        self.changed.clear()
        self.batch += 1

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def bank(redis_server: RedisServer) -> Iterator[Bank]:
    made = Bank(redis_server.url)
    yield made
    made.close()


@contextmanager
def committing(bank: Bank, *again: type[Exception]) -> Iterator[None]:
    """Batches all the time, as fast as they go; one that ends with `again` is run again."""
    stop, failed = threading.Event(), []

    def work() -> None:
        try:
            while not stop.is_set():
                with suppress(*again):
                    bank.run()
        except BaseException as error:  # noqa: BLE001  # told in the test's own thread
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert failed == []


@pytest.mark.parametrize("reads", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_no_read_is_torn_while_the_store_commits(bank: Bank, reader: Reader, reads: int) -> None:
    bank.run()
    bank.run()
    query = reader.query(bank.name)
    state, live = query.operator(), query.live_view(interval_s=0.001)
    live_state = live.operator()
    accounts = list(range(ACCOUNTS))
    with committing(bank):
        first = bank.batch
        for turn in range(reads):
            match turn % 8:
                case 0:
                    found = [value for _, value in state.items()]
                case 1:
                    found = state.to_arrow()["value"].to_pylist()
                case 2:
                    found = [row["value"] for row in state.scan(at="latest")]
                case 3:
                    view = state.view()
                    found = view.get_many(accounts[:20]) + [view.get(key) for key in accounts[20:]]
                case 4:
                    pinned = live.current().operator()
                    found = [pinned.get(key) for key in accounts]
                case 5:
                    found = live_state.get_many(accounts)
                case _:
                    found = state.get_many(accounts)
            assert (len(found), sum(found)) == (ACCOUNTS, SUM)
        assert bank.batch > first


def test_batch_is_read_by_its_number(bank: Bank, reader: Reader) -> None:
    for _ in range(3):
        bank.run()
    state = reader.query(bank.name).operator()
    assert dict(state.items(at=1)) == dict(state.items(version=2))
    assert dict(state.items(at="latest")) == dict(state.items(at=2)) != dict(state.items(at=1))
    assert dict(state.items()) == dict(state.items(at=1)), "the last batch is not confirmed"
    assert state.get(0, at=2) == dict(state.items(at=2))[0]
    assert (state.view().get(0), state.view(at="latest").get(0)) == (
        state.get(0),
        state.get(0, at="latest"),
    )
    with pytest.raises(StateError):
        state.get(0, at=7)
    asked: list[dict[str, Any]] = [{"at": "newest"}, {"at": -1}, {"at": True}]
    for wrong in [*asked, {"at": 1, "version": 2}, {"max_age": 5}, {"at": 1, "max_age": 300}]:
        with pytest.raises(ConfigError):
            state.get(0, **wrong)


def confirm(planted: Planted, partition: int, version: int) -> None:
    meta = keys.meta(planted.id(partition))
    planted.client.hset(meta, mapping={"o": str(version), "ou": uid(version)})


def rows(state: OperatorState, **which: Any) -> dict[str, Any]:
    return {key["carrier"]: value for key, value in state.items(**which)}


def test_unconfirmed_partitions_are_read_at_the_newest_confirmed_version(
    planted: Planted, reader: Reader
) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.commit(2, [(UA, TWO), (AA, TWO)], confirmed=False)
    state = reader.query("flights").operator()
    assert rows(state) == {"UA": ONE, "AA": ONE}
    confirm(planted, planted.partition(UA), 2)
    assert planted.partition(UA) != planted.partition(AA)
    before = reader.client.round_trips
    assert state.get_many([UA, AA]) == [TWO, TWO]
    # What is confirmed now, its segments, the partition that is behind, and the blocks.
    assert reader.client.round_trips - before == 4
    assert rows(state) == {"UA": TWO, "AA": TWO}


def test_ambiguous_attempts_are_not_guessed(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.commit(2, [(UA, TWO), (AA, TWO)], confirmed=False)
    confirm(planted, planted.partition(UA), 2)
    behind = keys.meta(planted.id(planted.partition(AA)))
    planted.client.hset(behind, mapping={"c": "2", "b": f"{uid(2)} {uid(9)}"})
    assert rows(reader.query("flights").operator()) == {"UA": ONE, "AA": ONE}
    planted.client.hset(behind, "b", uid(2))
    assert rows(reader.query("flights").operator()) == {"UA": TWO, "AA": TWO}
    planted.client.hset(behind, "k", f"other:{uid(9)}")
    assert rows(reader.query("flights").operator()) == {"UA": ONE, "AA": ONE}


def test_rewind_in_progress_is_read_at_its_target(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.commit(2, [(UA, TWO), (AA, TWO)])
    # A newer run took one partition at version 1, and dropped what was above.
    number = planted.partition(UA)
    meta = keys.meta(planted.id(number))
    back = {"e": "2", "r": "newer", "o": "1", "ou": uid(1), "l": "1", "lu": uid(1)}
    planted.client.hset(meta, mapping=back)  # type: ignore[arg-type]  # its stub
    planted.drop(number, f"d:2:{uid(2)}")
    state = reader.query("flights").operator()
    assert rows(state) == rows(state, at="latest") == {"UA": ONE, "AA": ONE}


def test_lost_partition_is_not_read_as_empty(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.client.delete(keys.meta(planted.id(planted.partition(UA))))
    state = reader.query("flights").operator()
    for at in ("confirmed", "latest"):
        with pytest.raises(StateError) as error:
            rows(state, at=at)
        assert error.value.kind == Kind.STATE_LOST


def test_never_written_partitions_are_empty(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.partitions = 6
    planted.register()
    state = reader.query("flights").operator()
    for at in ("confirmed", "latest"):
        assert rows(state, at=at) == {"UA": ONE, "AA": ONE}
        assert state.get_many([UA, AA, {"carrier": "none"}], at=at) == [ONE, ONE, None]


def test_independently_written_partitions_have_their_own_versions(
    redis_server: RedisServer, reader: Reader
) -> None:
    for number, commits in ((0, 1), (1, 3)):
        id_ = StateStoreProviderId(StateStoreId("counts", 0, number), f"run-{number}")
        provider = StateStoreProvider(id_, config=redis_server.url)
        for version in range(commits):
            store = provider.get_store(version)
            store.put(f"k{number}", version)
            store.commit()
        provider.get_store(commits).abort()
        provider.close()
    state = reader.query("counts").operator()
    assert dict(state.items()) == dict(state.items(at="latest")) == {"k0": 0, "k1": 2}
    assert state.get_many(["k0", "k1", "k2"]) == [0, 2, None]
    assert state.view().get_many(["k1", "k0"]) == [2, 0]


def test_view_stays_at_one_version_while_it_is_kept(planted: Planted, reader: Reader) -> None:
    planted.partitions = 1
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    query = reader.query("flights")
    view = query.view()
    assert (view.version, view.batch) == (1, 0)
    assert repr(view).endswith("version=1)")
    planted.commit(2, [(UA, TWO)])
    state = view.operator()
    before = reader.client.round_trips
    assert state.get(UA) == ONE
    assert reader.client.round_trips - before == 1
    assert (rows(state)["UA"], state.count()) == (ONE, 2)
    assert query.operator().get(UA) == TWO
    # Maintenance replaces what the version is made of, then drops the version.
    planted.snapshot(0, 1, {planted.key(UA): planted.value(ONE), planted.key(AA): b"\0" * 25})
    assert rows(state)["UA"] == ONE
    planted.drop(0, f"s:1:{uid(1)}")
    planted.client.hset(keys.meta(planted.id(0)), "w", "2")
    with pytest.raises(StateError) as error:
        rows(state)
    assert error.value.kind == Kind.VERSION_EXPIRED
    asked: list[dict[str, Any]] = [{"at": 1}, {"version": 1}, {"max_age": 300}]
    for wrong in asked:
        with pytest.raises(ConfigError, match="another version"):
            state.get(UA, **wrong)


def test_view_reads_all_stores_at_one_version(redis_server: RedisServer, reader: Reader) -> None:
    client = redis_server.client()
    sides = [Planted(client, operator=0, store=name) for name in ("left", "right", "gone")]
    for side in sides:
        side.register()
        side.commit(1, [(UA, ONE)])
    for side in sides[:2]:
        side.commit(2, [(UA, TWO)], confirmed=side is sides[0])
    view = reader.query("flights").view()
    assert view.version == 2
    assert [view.operator(0, side).get(UA) for side in ("left", "right")] == [TWO, TWO]
    # A store that an older plan of the query had stays behind, and only its reading fails.
    assert [one.store for one in view.operators()] == ["left", "right"]
    with pytest.raises(StateError, match="opening version 2"):
        view.operator(0, "gone").get(UA)
    assert reader.query("flights").view(at=0).operator(0, "gone").get(UA) == ONE


def rewind(side: Planted, version: int, *, epoch: int) -> None:
    """A newer run took all partitions at a version, and dropped what was above."""
    for number in range(side.partitions):
        meta = keys.meta(side.id(number))
        for above in range(version + 1, version + 9):
            side.drop(number, f"d:{above}:{uid(above)}")
        at, now = str(version), uid(version)
        back = {"e": str(epoch), "r": "newer", "o": at, "ou": now, "l": at, "lu": now}
        side.client.hset(meta, mapping=back)  # type: ignore[arg-type]  # its stub


def forget(side: Planted, version: int) -> None:
    """Retention dropped what is below a version, which stands alone."""
    for number in range(side.partitions):
        for old in range(1, version):
            side.drop(number, f"d:{old}:{uid(old)}")
        side.client.hset(keys.meta(side.id(number)), "w", str(version))


@pytest.fixture
def went_back(redis_server: RedisServer) -> None:
    """Plants a query that went back to version 2 without its operator 1, which had version 5."""
    lives, gone = (Planted(redis_server.client(), operator=number) for number in (0, 1))
    for side in (lives, gone):
        side.register()
        for version in range(1, 6):
            for number in range(side.partitions):
                values = ONE if version < 3 else TWO
                held = {side.key(UA): side.value(values)}
                side.delta(number, version, held, complete=True)
    forget(gone, 4)
    rewind(lives, 2, epoch=2)


@pytest.mark.usefixtures("went_back")
@pytest.mark.parametrize("at", ["confirmed", "latest"])
def test_view_follows_the_newest_run(reader: Reader, at: str) -> None:
    view = reader.query("flights").view(at=at)
    assert view.version == 2
    assert [one.operator for one in view.operators()] == [0]
    assert view.operator(0).get(UA) == ONE
    with pytest.raises(StateError, match="opening version 2"):
        view.operator(1).get(UA)


def test_view_with_a_store_of_an_older_plan_guesses_no_attempt(
    redis_server: RedisServer, reader: Reader
) -> None:
    client = redis_server.client()
    left, right, gone = (Planted(client, operator=0, store=name) for name in ("l", "r", "gone"))
    for side in (left, right, gone):
        side.register()
        side.commit(1, [(UA, ONE)])
    for side in (left, right):
        side.commit(2, [(UA, ONE)])
        side.commit(3, [(UA, TWO)], confirmed=side is left)
    for number in range(right.partitions):
        meta = keys.meta(right.id(number))
        client.hset(meta, mapping={"c": "2", "b": f"{uid(3)} {uid(9)}"})
    view = reader.query("flights").view()
    assert view.version == 2
    assert [view.operator(0, side).get(UA) for side in ("l", "r")] == [ONE, ONE]
    latest = reader.query("flights").view(at="latest")
    assert [one.store for one in latest.operators()] == ["l", "r"]


def attempt(
    planted: Planted, number: int, version: int, named: str, rows: dict[bytes, bytes]
) -> None:
    """One more attempt of a partition at a version."""
    ident = f"d:{version}:{named}"
    writer = SegmentWriter(ident, [planted.family], None)
    writer.add(rows)
    below = uid(version - 1) if version > 1 else "-"
    entry = writer.finish(ref=below, live=len(rows), with_families=version == 1)
    fields: Any = writer.fields
    planted.client.hset(keys.segment(planted.id(number), ident), mapping=fields)
    planted.client.hset(keys.meta(planted.id(number)), ident, entry.text)


def test_attempt_is_not_confused_with_one_opened_meanwhile(
    planted: Planted, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.commit(2, [(UA, TWO), (AA, ONE)], confirmed=False)
    confirm(planted, planted.partition(UA), 2)
    id_ = planted.id(planted.partition(AA))
    # Two attempts; the last one is what is found by number, the other one is what Spark logged.
    attempt(planted, id_.partition, 2, uid(8), {planted.key(AA): planted.value(TWO)})
    both = {"c": "2", "b": f"{uid(2)} {uid(8)}"}
    planted.client.hset(keys.meta(id_), mapping=both)  # type: ignore[arg-type]  # its stub
    state = reader.query("flights").operator()
    call = reader.client.call
    raced: list[Any] = []

    def between(what: str, commands: Any) -> list[Any]:
        """A pipeline that is not carried out at once: a task opens the version in between."""
        late = [command for command in commands if "HMGET" in command and "b" in command]
        if not late or raced:
            return call(what, commands)
        raced.append(late)
        first = call(what, commands[: -len(late)])
        opened = {"o": "2", "ou": uid(8), "l": "2", "lu": uid(8)}
        planted.client.hset(keys.meta(id_), mapping=opened)  # type: ignore[arg-type]  # its stub
        planted.client.hdel(keys.meta(id_), "b", "k")
        return [*first, *call(what, commands[-len(late) :])]

    monkeypatch.setattr(reader.client, "call", between)
    assert state.get_many([UA, AA]) == [TWO, TWO]
    assert raced


def test_keys_of_two_timelines_are_not_mixed(
    planted: Planted, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted.register()
    elsewhere = (planted.partition(AA) + 1) % planted.partitions
    rows: list[dict[bytes, Any]] = [{planted.key(UA): planted.value(ONE)} for _ in range(4)]
    rows[elsewhere][planted.key(AA)] = planted.value(ONE)
    for number, of_one in enumerate(rows):
        planted.delta(number, 1, of_one)
    state = reader.query("flights").operator()
    likely = planted.partition(AA)
    assert state.get(UA) == ONE
    # The query goes back, and comes as far again, once the likely partition was opened.
    opened: list[Any] = []
    call = reader.client.call

    def meanwhile(*asked: Any, **given: Any) -> Any:
        answer = call(*asked, **given)
        if not opened:
            opened.append(answer)
            back: Any = {"e": "2", "ou": uid(7), "lu": uid(7)}
            for number, of_one in enumerate(rows):
                attempt(planted, number, 1, uid(7), of_one)
                planted.client.hset(keys.meta(planted.id(number)), mapping=back)
        return answer

    monkeypatch.setattr(reader.client, "call", meanwhile)
    looked: list[dict[int, str]] = []
    search = many_keys.look_up

    def noted(client: Client, asked: Any, **given: Any) -> Any:
        asked = list(asked)
        looked.append({one.id.partition: one.pin.uid for one, _ in asked})
        return search(client, asked, **given)

    monkeypatch.setattr(key_search, "look_up", noted)
    assert state.get(AA) == ONE
    assert looked[0] == {likely: uid(1)}
    after = [place for one in looked[1:] for place in one.items()]
    assert {likely, elsewhere} <= {number for number, _ in after}
    assert {now for _, now in after} == {uid(7)}, "the first one is read again, too"
