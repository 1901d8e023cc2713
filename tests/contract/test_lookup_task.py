"""Tasks of `lookup`: one chooses a version, the others read this version and nothing else."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from redis_state import StateStoreId, StateStoreProviderId, config, keys
from redis_state.acl import Role, rules
from redis_state.errors import StateError
from redis_state.reader.lookup import key_search
from redis_state.reader.lookup.row_sizes import mean_row_bytes
from redis_state.reader.lookup.segment_part import SegmentPart
from redis_state.spark.live import lookup_task
from redis_state.spark.live.live_state import LiveState, pin_text
from redis_state.spark.live.lookup_task import PIN, LookUp, LookupBatch, VersionChoice, name_of
from redis_state.spark.worker import CLIENTS_MAX, WORKER
from redis_state.store.provider import StateStoreProvider
from redis_state.types.values import Internal
from tests.contract.planting import GEN, Planted, family, schema
from tests.support.redis_server import RedisServer

QUERY = "6d2bd1e5-0c7c-4c3e-9d77-222222222222"
ANSWER = pa.schema([("n", pa.int32()), ("code", pa.string()), ("count", pa.int64())])


@pytest.fixture(autouse=True)
def no_connection_is_left() -> Iterator[None]:
    yield
    WORKER.close()
    lookup_task._read.clear()


@pytest.fixture
def planted(redis_server: RedisServer) -> Planted:
    planted = Planted(redis_server.client())
    planted.register()
    for version in (1, 2):
        commit(planted, version)
    return planted


def commit(planted: Planted, version: int) -> None:
    """Every key has the number of the version."""
    rows = [({"carrier": f"c{n}"}, {"count": version, "total": 0.0}) for n in range(20)]
    planted.commit(version, rows)


def state_of(server: RedisServer, query: str = "flights", **options: Any) -> LiveState:
    parsed = config.parse({"url": server.url, "deadline": "5s", **options})
    return LiveState(parsed, query, 0, "default", "default", "confirmed")


def joined(state: LiveState, version: str, codes: list[str | None], **given: Any) -> Any:
    wanted = {"on": ("code",), "columns": ("count",), "inner": False, "schema": ANSWER} | given
    task = pickle.loads(pickle.dumps(LookUp(state, **wanted)))
    numbers = pa.array(range(len(codes)), pa.int32())
    rows = {"n": numbers, "code": pa.array(codes, pa.string()), PIN: [version] * len(codes)}
    (found,) = task.run(iter([pa.RecordBatch.from_pydict(rows)]))
    return found


def counts(state: LiveState, version: str) -> set[Any]:
    codes: list[str | None] = [f"c{n}" for n in range(20)]
    return set(joined(state, version, codes).column("count").to_pylist())


def test_rows_get_the_values_of_their_keys(redis_server: RedisServer, planted: Planted) -> None:
    state = state_of(redis_server)
    version = VersionChoice(state, "x").run(None)
    assert len(version) < 60
    codes = ["c1", None, "none", "c1", "c2"]
    found = joined(state, version, codes)
    assert found.schema == ANSWER
    assert found.column("count").to_pylist() == [2, None, None, 2, 2]
    inner = joined(state, version, codes, inner=True)
    assert inner.column("n").to_pylist() == [0, 3, 4]
    trips = WORKER.client(state.config).round_trips
    joined(state, version, codes)
    # What was read stays.
    assert WORKER.client(state.config).round_trips == trips
    assert planted.partitions == 4


def batches_of(version: str, codes: list[str | None], each: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(codes), each):
        some = codes[start : start + each]
        numbers = pa.array(range(start, start + len(some)), pa.int32())
        yield pa.RecordBatch.from_pydict(
            {"n": numbers, "code": pa.array(some, pa.string()), PIN: [version] * len(some)}
        )


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize(
    ("rows_max", "bytes_max", "groups"),
    [
        (100, 1 << 20, [100]),
        (59, 1 << 20, [50, 50]),
        (9, 1 << 20, [10] * 10),
        (100, 0, [10] * 10),
        (100, 10_000, [20] * 5),
    ],
)
def test_batches_are_looked_up_in_bounded_groups(
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    inner: bool,
    rows_max: int,
    bytes_max: int,
    groups: list[int],
) -> None:
    state = state_of(redis_server)
    version = VersionChoice(state, "x").run(None)
    task = LookUp(state, ("code",), ("count",), inner, ANSWER)
    codes: list[str | None] = [None if n % 7 == 0 else f"c{n % 29}" for n in range(100)]
    made: list[int] = []
    joined_of = LookUp._joined

    def counted(self: LookUp, group: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        made.append(sum(batch.num_rows for batch in group))
        return joined_of(self, group)

    monkeypatch.setattr(LookUp, "_joined", counted)
    monkeypatch.setattr(lookup_task, "ROWS_MAX", rows_max)
    monkeypatch.setattr(lookup_task, "BYTES_MAX", bytes_max)
    empty = next(batches_of(version, [None], 1)).slice(0, 0)
    given = [empty, *batches_of(version, codes, 10), empty]
    found = pa.Table.from_batches(list(task.run(iter(given))))
    assert made == groups
    expected = [
        (n, code, 2 if code and int(code[1:]) < 20 else None) for n, code in enumerate(codes)
    ]
    rows = [tuple(row.values()) for row in found.to_pylist()]
    assert rows == [row for row in expected if row[2] or not inner]


@pytest.mark.usefixtures("planted")
def test_rows_that_are_larger_than_was_thought_make_smaller_groups(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_of(redis_server)
    version = VersionChoice(state, "x").run(None)
    task = LookUp(state, ("code",), ("count",), inner=False, schema=ANSWER)
    monkeypatch.setattr(lookup_task, "BYTES_MAX", 10_000)
    monkeypatch.setattr(lookup_task, "mean_row_bytes", lambda *_: None)
    codes: list[str | None] = [f"c{n % 20}" for n in range(60)]
    given = list(batches_of(version, codes, 10))
    sizes = [len(group) for group in _consumed(task, given)]
    assert sizes == [1, 4, 1], "of the first one nothing is known"


def _consumed(task: LookUp, given: list[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    for group in task._groups(given):
        list(task._joined(group))
        yield group


@pytest.mark.parametrize("kind", ["none", "range"])
def test_measured_row_size_is_close_to_the_real_one(redis_server: RedisServer, kind: str) -> None:
    layout = family(schema(k="long"), schema(text="string"), kind=kind, params=(0,))
    planted = Planted(redis_server.client(), layout, partitions=2)
    planted.register()
    state = state_of(redis_server)
    client = WORKER.client(state.config)
    planted.commit(1, [])
    assert mean_row_bytes(client, state.pinned().partitions) < 2_000
    # Texts of one letter take next to nothing in Redis.
    planted.commit(2, [({"k": n}, {"text": "x" * 5_000}) for n in range(200)])
    found = mean_row_bytes(client, state.pinned().partitions)
    assert found < 10_000
    assert found > 2_500 or kind == "range"


def test_rows_of_several_versions_get_their_own(
    redis_server: RedisServer, planted: Planted
) -> None:
    state = state_of(redis_server)
    first = VersionChoice(state, "x").run(None)
    commit(planted, 3)
    second = VersionChoice(state, "x").run(None)
    task = LookUp(state, ("code",), ("count",), inner=False, schema=ANSWER)
    given = [next(batches_of(version, ["c1"], 1)) for version in (first, first, second, first)]
    found = pa.Table.from_batches(list(task.run(iter(given))))
    assert found.column("count").to_pylist() == [2, 2, 3, 2]


@pytest.mark.parametrize("room", [0, 1 << 30])
def test_a_block_is_read_once_a_group(
    redis_server: RedisServer, planted: Planted, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    codes: list[str | None] = [f"k{n}" for n in range(3_000)]
    for number in range(planted.partitions):
        planted.delta(
            number,
            3,
            {
                planted.key({"carrier": code}): planted.value({"count": at, "total": 0.0})
                for at, code in enumerate(codes)
                if planted.partition({"carrier": code}) == number
            },
            complete=True,
        )
    blocks = sum(
        len(planted.client.hkeys(keys.segment(planted.id(number), f"d:3:{3:032x}")))
        for number in range(planted.partitions)
    )
    monkeypatch.setattr(key_search, "KEYS_AT_ONCE", 200)
    monkeypatch.setattr(key_search, "_KEPT_BYTES_MAX", room)
    read = SegmentPart.take
    taken: list[tuple[Any, Any]] = []

    def counted(part: SegmentPart, field: Any, raw: Any) -> None:
        if field != "h":
            taken.append((part.id.partition, field))
        read(part, field, raw)

    monkeypatch.setattr(SegmentPart, "take", counted)
    state = state_of(redis_server)
    task = LookUp(state, ("code",), ("count",), inner=False, schema=ANSWER)
    version = VersionChoice(state, "x").run(None)
    # Each key comes several times.
    given = [*batches_of(version, codes, 500), *batches_of(version, codes, 700)]
    found = pa.Table.from_batches(list(task.run(iter(given))))
    assert found.column("count").to_pylist() == [*range(3_000)] * 2
    # Where calls of so many keys meet, a block may be read for both.
    assert len(set(taken)) <= len(taken) <= blocks + 3_000 // 200
    taken.clear()
    list(task.run(batches_of(version, codes, 500)))
    assert bool(taken) == (room == 0)


def test_a_batch_keeps_its_version(redis_server: RedisServer, planted: Planted) -> None:
    state = state_of(redis_server)
    choice = VersionChoice(state, name_of(state, ["code"], {"count": "count"}, inner=False))
    first = choice.run(LookupBatch(QUERY, 7))
    assert counts(state, first) == {2}
    commit(planted, 3)
    assert counts(state, first) == {2}
    assert choice.run(LookupBatch(QUERY, 7)) == first
    # Another look-up, another query and the next batch choose for themselves.
    for other, batch in (
        (VersionChoice(state, "0" * 16), LookupBatch(QUERY, 7)),
        (choice, LookupBatch(GEN, 7)),
        (choice, LookupBatch(QUERY, 8)),
    ):
        assert counts(state, other.run(batch)) == {3}
    key = keys.looked_up(QUERY, choice.name)
    assert 0 < planted.client.pttl(key) <= lookup_task.REMEMBERED_MS


def test_two_attempts_that_choose_at_once_read_one_version(
    redis_server: RedisServer, planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_of(redis_server)
    choice = VersionChoice(state, "x")
    pinned = LiveState.pinned
    chosen: list[str] = []

    def meanwhile(self: LiveState) -> Any:
        found = pinned(self)
        if not chosen:
            # Between its look and its choice another attempt begins and ends, one batch later.
            chosen.append("")
            commit(planted, 3)
            chosen.append(choice.run(LookupBatch(QUERY, 7)))
        return found

    monkeypatch.setattr(LiveState, "pinned", meanwhile)
    assert choice.run(LookupBatch(QUERY, 7)) == chosen[1]
    assert counts(state, chosen[1]) == {3}


def test_vanished_version_is_replaced_by_a_new_choice(
    redis_server: RedisServer, planted: Planted
) -> None:
    state = state_of(redis_server)
    choice = VersionChoice(state, "x")
    first = choice.run(LookupBatch(QUERY, 7))
    commit(planted, 3)
    for number in range(planted.partitions):
        rows = {
            planted.key({"carrier": f"c{n}"}): planted.value({"count": 3, "total": 0.0})
            for n in range(20)
            if planted.partition({"carrier": f"c{n}"}) == number
        }
        planted.snapshot(number, 3, rows)
    with pytest.raises(StateError):
        counts(state, first)
    assert counts(state, choice.run(LookupBatch(QUERY, 7))) == {3}
    for damaged in (
        "\udcff what is this",
        "1 7 ",
        "1 7 two words",
        f"1 7 {GEN} 3",
        f"1 7 {GEN} 3 digest more",
        f"1 7 {GEN} three digest",
        f"1 7 {GEN}  digest",
        f"1 7 {GEN} 3,,3 digest",
        f"1 7 {GEN} 3,3 digest",
        f"1 7 {GEN} 3,3,3,3,3 digest",
        f"1 7 {GEN}}}:x 3 digest",
    ):
        raw = damaged.encode("utf-8", "surrogateescape")
        planted.client.set(keys.looked_up(QUERY, "x"), raw)
        assert counts(state, choice.run(LookupBatch(QUERY, 7))) == {3}


def test_look_ups_that_differ_in_anything_have_names_of_their_own(
    redis_server: RedisServer,
) -> None:
    state = state_of(redis_server)
    names = {
        name_of(of, on, columns, inner=inner)
        for of in (state, state_of(redis_server, query="other"))
        for on in (["code"], ["code", "count"])
        for columns in ({}, {"count": "count"}, {"count": "n"}, {"total": "n"})
        for inner in (False, True)
    }
    assert len(names) == 32


@pytest.mark.usefixtures("planted")
def test_a_table_goes_with_the_connections_of_its_worker(redis_server: RedisServer) -> None:
    state = state_of(redis_server)
    version = VersionChoice(state, "x").run(None)
    assert counts(state, version) == {2}
    before = WORKER.client(state.config)
    for seconds in range(CLIENTS_MAX):
        WORKER.client(state_of(redis_server, deadline=f"{seconds + 6}s").config)
    assert counts(state, version) == {2}
    found = lookup_task._read[state]
    assert found.client is WORKER.client(state.config)
    assert found.client is not before


def test_rewritten_version_counts_as_another(redis_server: RedisServer, planted: Planted) -> None:
    state = state_of(redis_server)
    gen, version, digest = VersionChoice(state, "x").run(None).split(" ")
    assert (gen, version) == (GEN, "2")
    with pytest.raises(StateError, match="went back"):
        counts(state, f"{gen} {version} {digest[::-1]}")
    assert planted.client.exists(keys.query(GEN))


def test_a_checkpoint_of_another_number_of_partitions_has_blocks_of_its_own(
    redis_server: RedisServer, planted: Planted
) -> None:
    state = state_of(redis_server)
    before = VersionChoice(state, "x").run(None)
    codes: list[str | None] = [f"c{n}" for n in range(40)]
    found = joined(state, before, codes).column("count").to_pylist()
    assert found == [2] * 20 + [None] * 20
    # In place, versions keep their numbers and Spark's unique ids, and partitions theirs.
    after = Planted(planted.client, partitions=5, gen="f" * 32)
    after.register()
    for number in range(after.partitions):
        rows = {
            after.key({"carrier": code}): after.value({"count": at, "total": 0.0})
            for at, code in enumerate(codes)
            if after.partition({"carrier": code}) == number
        }
        after.delta(number, 2, rows, complete=True)
    version = VersionChoice(state_of(redis_server, query=after.gen), "x").run(None)
    assert version.startswith(after.gen)
    assert joined(state, version, codes).column("count").to_pylist() == list(range(40))


def test_a_reader_may_look_up_and_keeps_nothing(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis()
    planted = Planted(server.client())
    planted.register()
    commit(planted, 1)
    version = str(server.client().info("server")["redis_version"])
    for name, role in (("reads", Role.READER), ("works", Role.JOB)):
        allowed = rules(role, version=version)
        client: Any = server.client()
        client.execute_command("ACL", "SETUSER", name, *allowed, ">geheim")
        state = state_of(server, username=name, password="geheim")
        choice = VersionChoice(state, "x")
        assert counts(state, choice.run(LookupBatch(QUERY, 7))) == {1}
        kept = server.client().exists(keys.looked_up(QUERY, "x"))
        assert kept == (role is Role.JOB)


def test_a_store_of_python_with_versions_of_each_partition(redis_server: RedisServer) -> None:
    for partition in range(2):
        id_ = StateStoreProviderId(StateStoreId("orders", 0, partition), f"run-{partition}")
        provider = StateStoreProvider(id_, config=redis_server.url)
        store = provider.get_store(0)
        for version in range(partition + 1):
            store.put((f"k{partition}", 1), {"at": version})
            store = provider.get_store(store.commit())
        store.abort()
        provider.close()
    state = state_of(redis_server, query="orders")
    pinned = pin_text(state.pinned())
    assert pinned.split(" ")[1] == "1,2"
    schema = pa.schema([("a", pa.string()), ("b", pa.int64()), ("value", pa.string())])
    task = LookUp(state, ("a", "b"), ("value",), inner=False, schema=schema)
    rows = {"a": ["k0", "k1", "k2"], "b": [1, 1, 1], PIN: [pinned] * 3}
    (found,) = task.run(iter([pa.RecordBatch.from_pydict(rows)]))
    assert found.column("value").to_pylist() == ['{"at": 0}', '{"at": 1}', None]


def test_the_hour_that_comes_twice_is_two_keys(redis_server: RedisServer) -> None:
    window = json.loads(schema(start="timestamp", end="timestamp"))
    fields = [("at", "timestamp"), ("window", window)]
    key = {
        "type": "struct",
        "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields],
    }
    layout = family(json.dumps(key), schema(count="long"))
    planted = Planted(redis_server.client(), layout, partitions=1)
    planted.register()
    # In New York both are half past one.
    halves = [datetime(2024, 11, 3, hour, 30, tzinfo=timezone.utc) for hour in (5, 6)]
    at = [(one, {"start": one, "end": two}) for one in halves for two in halves]
    keyed = [
        (planted.key({"at": one, "window": pair}), planted.value({"count": n}))
        for n, (one, pair) in enumerate(at)
    ]
    planted.delta(0, 1, dict(keyed))
    state = state_of(redis_server)
    zoned = pa.timestamp("us", "America/New_York")
    struct = pa.struct([("start", zoned), ("end", zoned)])
    arrays = [
        pa.array([one for one, _ in at], zoned),
        pa.array([pair for _, pair in at], struct),
        pa.array([VersionChoice(state, "x").run(None)] * len(at)),
    ]
    answer = pa.schema([("at", zoned), ("window", struct), ("count", pa.int64())])
    task = LookUp(state, ("at", "window"), ("count",), inner=False, schema=answer)
    (found,) = task.run(iter([pa.record_batch(arrays, names=["at", "window", PIN])]))
    assert found.column("count").to_pylist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "type_", "late"),
    [
        ("timestamp", pa.timestamp("us", "America/Los_Angeles"), 253_402_330_000_000_000),
        ("timestamp", pa.timestamp("us", "Asia/Tokyo"), -62_135_600_000_000_000),
        ("timestamp_ntz", pa.timestamp("us"), 253_402_330_000_000_000),
        ("date", pa.date32(), 2_932_897),
    ],
)
@pytest.mark.parametrize("number", [1, 100])
def test_keys_that_python_has_no_time_for_are_found(
    redis_server: RedisServer, kind: str, type_: pa.DataType, late: int, number: int
) -> None:
    """The end of the year 9999 is a common sentinel, and later than that in UTC."""
    planted = Planted(redis_server.client(), family(schema(at=kind), schema(count="long")))
    planted.register()
    planted.commit(1, [({"at": Internal(late)}, {"count": 7})])
    state = state_of(redis_server)
    version = VersionChoice(state, "x").run(None)
    whole = pa.int32() if kind == "date" else pa.int64()
    times = pa.array([late, late + 1, None, 0] * number, whole).cast(type_)
    answer = pa.schema([("at", type_), ("count", pa.int64())])
    task = LookUp(state, ("at",), ("count",), False, answer)
    rows = pa.RecordBatch.from_arrays([times, pa.array([version] * len(times))], names=["at", PIN])
    (found,) = task.run(iter([rows]))
    assert found.column("count").to_pylist() == [7, None, None, None] * number
