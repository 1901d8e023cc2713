"""Live reads of a planted query: keys, rows, versions, and damage that has a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import redis_state
from redis_state import keys
from redis_state.errors import ConfigError, FormatError, Kind, NotFoundError, StateError
from redis_state.format.header import Tombstone
from redis_state.live import Reader
from redis_state.reader.block_cache import BlockCache
from tests.contract.planting import GEN, PLAIN, QUERY_ID, Planted, family, schema, uid
from tests.support.redis_server import RedisServer

UA = {"carrier": "UA"}
AA = {"carrier": "AA"}
ONE = {"count": 1, "total": 0.5}
TWO = {"count": 2, "total": 1.5}


def test_get_reads_the_confirmed_version(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.commit(2, [(UA, TWO)])
    planted.commit(3, [(UA, None)], confirmed=False)
    state = reader.query("flights").operator(0)
    assert state.get(UA) == TWO
    assert state.get(AA) == ONE
    assert state.get({"carrier": "ZZ"}) is None
    assert state.get(UA, version=1) == ONE
    assert state.get(UA, version=3) is None
    assert state.get(["UA"]) == TWO


def test_items_yields_every_live_row_once(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [({"carrier": f"c{i}"}, {"count": i, "total": 0.0}) for i in range(500)])
    planted.commit(2, [({"carrier": "c7"}, None), ({"carrier": "new"}, TWO)])
    rows = [(key["carrier"], value["count"]) for key, value in reader.query(GEN).operator().items()]
    expected = {f"c{i}": i for i in range(500) if i != 7} | {"new": 2}
    assert len(rows) == len(expected)
    assert dict(rows) == expected


def commands_seen(planted: Planted) -> dict[str, int]:
    """Commands that the server ran for readers, without those of scripts and of connecting."""
    stats = planted.client.info("commandstats")
    names = ("hgetall", "eval", "evalsha", "hmget", "hlen")
    return {name: stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names}


@pytest.mark.parametrize("partitions", [1, 200])
def test_three_round_trips_from_connecting_to_a_value(
    planted: Planted, redis_server: RedisServer, partitions: int
) -> None:
    planted.partitions = partitions
    planted.register()
    planted.commit(1, [(UA, ONE)])
    planted.client.config_resetstat()
    with redis_state.connect(redis_server.url) as reader:
        assert reader.query("flights").operator(0).get(UA) == ONE
        assert reader.client.round_trips == 3
        # All partitions are opened, and the key is looked for where it most likely is.
        calls = {"hgetall": 2, "eval": 1, "evalsha": partitions - 1, "hlen": 1}
        # `open` reads the two fields of a version at once, here of one version a partition.
        calls["hmget"] = partitions + 1
        assert commands_seen(planted) == calls
        assert reader.queries()
        assert reader.client.round_trips == 4


def test_an_unlisted_number_of_partitions_costs_one_more_trip(
    planted: Planted, reader: Reader
) -> None:
    planted.register(listed=False)
    planted.commit(1, [(UA, ONE)])
    assert reader.query("flights").operator(0).get(UA) == ONE
    assert reader.client.round_trips == 4


@pytest.mark.parametrize("mib", [0.75, 2])
@pytest.mark.parametrize("at_once", [1, 64])
def test_large_values_are_cached_within_the_bound(
    planted: Planted, reader: Reader, mib: float, at_once: int
) -> None:
    planted.family = family(schema(k="string"), schema(text="string"))
    planted.register()
    keys = [{"k": f"{n}"} for n in range(64)]
    text = "x" * int(mib * (1 << 20))
    for version in (1, 2, 3):
        # Of some buckets two segments are put together.
        changed = keys if version == 1 else keys[version::5]
        planted.commit(version, [(key, {"text": f"{version}{text}"}) for key in changed])
    view = reader.query("flights").view()
    state = view.operator()
    for _ in range(2):
        for start in range(0, len(keys), at_once):
            some = keys[start : start + at_once]
            assert [one["text"][1:] for one in state.get_many(some)] == [text] * len(some)
            assert _bytes_kept(view.blocks) <= 40 << 20


def _bytes_kept(blocks: BlockCache) -> int:
    """Returns the bytes of all values that the cache references, each counted once."""
    segments = list(blocks._kept.segments.values())
    for version in blocks._kept.versions.values():
        segments += [one.cached for one in version.searched]
    rows = [of for segment in segments for of in segment.rows.values()]
    for version in blocks._kept.versions.values():
        rows += [of for layers in version.tables.values() for of, _ in layers]
    values = {id(value): value for of in rows for value in of.values()}
    return sum(len(value) for value in values.values() if isinstance(value, bytes))


def test_reading_changes_nothing(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE)])
    before = {key: planted.client.dump(key) for key in planted.client.keys("*")}
    state = reader.query("flights").operator(0)
    assert state.get(UA) == ONE
    assert len(list(state.items())) == 1
    assert {key: planted.client.dump(key) for key in planted.client.keys("*")} == before


@pytest.mark.parametrize("which", ["flights", QUERY_ID, GEN])
def test_a_query_is_found_by_name_id_and_checkpoint(
    planted: Planted, reader: Reader, which: str
) -> None:
    planted.register()
    assert reader.query(which).info.gen == GEN
    (info,) = reader.queries()
    assert (info.name, info.id, dict(info.partitions)) == ("flights", QUERY_ID, {(0, "default"): 4})
    (operator,) = reader.query(which).operators()
    assert (operator.operator, operator.store, operator.partitions) == (0, "default", 4)


def test_unknown_query_operator_and_column_are_named(planted: Planted, reader: Reader) -> None:
    planted.register()
    with pytest.raises(NotFoundError, match=r"Did you mean 'flights'"):
        reader.query("flight")
    with pytest.raises(NotFoundError, match=r"0 \(default\)"):
        reader.query("flights").operator(3).get(UA)
    with pytest.raises(ConfigError, match=r"'career' is unknown"):
        reader.query("flights").operator().get({"career": "UA"})


def test_missing_version_raises(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE)])
    with pytest.raises(StateError) as error:
        reader.query("flights").operator().get(UA, version=9)
    assert error.value.kind == Kind.STATE_LOST


def test_key_prefix_separates_queries(planted: Planted, redis_server: RedisServer) -> None:
    planted.tenant = "team:"
    planted.register()
    planted.commit(1, [(UA, ONE)])
    with redis_state.connect(redis_server.url, key_prefix="team") as reader:
        assert reader.query("flights").operator().get(UA) == ONE
    with redis_state.connect(redis_server.url) as reader:
        assert reader.queries() == []


def test_prefix_keys_are_found(redis_server: RedisServer, reader: Reader) -> None:
    layout = family(
        schema(user="string", session="long"), schema(n="integer"), kind="prefix", params=[1]
    )
    planted = Planted(redis_server.client(), family=layout)
    planted.register()
    key = {"user": "ann", "session": 4}
    planted.commit(1, [(key, {"n": 3}), ({"user": "ann", "session": 5}, {"n": 4})])
    state = reader.query("flights").operator()
    assert state.get(key) == {"n": 3}
    assert sorted(k["session"] for k, _ in state.items()) == [4, 5]


def test_tombstones_hide_older_rows_only(planted: Planted, reader: Reader) -> None:
    planted.partitions = 1
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.delta(0, 2, {planted.key(AA): planted.value(TWO)}, tombstones=[Tombstone(0)])
    state = reader.query("flights").operator()
    assert state.get(UA) is None
    assert state.get(AA) == TWO
    assert list(state.items()) == [(AA, TWO)]


def test_parts_of_a_bucket_are_read(planted: Planted, reader: Reader) -> None:
    planted.partitions = planted.buckets = 1
    planted.register()
    many = [({"carrier": f"c{i}" * 20}, {"count": i, "total": 0.0}) for i in range(2000)]
    planted.commit(1, many)
    key, value = many[-1]
    state = reader.query("flights").operator()
    assert state.get(key) == value
    assert reader.client.round_trips == 4
    assert len(list(state.items())) == 2000


def drop_after_open(reader: Reader, action: Callable[[], None]) -> None:
    """Runs an action, such as maintenance, between opening and reading."""
    call = reader.client.call

    def late(attempted: str, commands: Any, **given: Any) -> list[Any]:
        replies = call(attempted, commands, **given)
        if any(command[0] == "EVAL" for command in commands):
            reader.client.call = call  # type: ignore[method-assign]
            action()
        return replies

    reader.client.call = late  # type: ignore[method-assign]


def test_snapshot_that_replaces_deltas_during_a_read_is_used(
    planted: Planted, reader: Reader
) -> None:
    planted.partitions = 1
    planted.register()
    planted.commit(1, [(UA, ONE)])
    planted.commit(2, [(AA, TWO)])
    rows = {planted.key(UA): planted.value(ONE), planted.key(AA): planted.value(TWO)}
    drop_after_open(reader, lambda: planted.snapshot(0, 2, rows))
    state = reader.query("flights").operator()
    assert state.get(UA) == ONE
    assert state.get(AA) == TWO


def test_destroyed_segment_is_not_read_as_absent(planted: Planted, reader: Reader) -> None:
    planted.partitions = 1
    planted.register()
    planted.commit(1, [(UA, ONE)])
    planted.client.delete(keys.segment(planted.id(0), f"d:1:{uid(1)}"))
    state = reader.query("flights").operator()
    for read in (lambda: state.get(UA), lambda: list(state.items())):
        with pytest.raises(StateError) as error:
            read()
        assert error.value.kind == Kind.STATE_LOST


def test_damaged_block_is_not_read_as_absent(planted: Planted, reader: Reader) -> None:
    planted.partitions = planted.buckets = 1
    planted.register()
    planted.commit(1, [(UA, ONE)])
    key = keys.segment(planted.id(0), f"d:1:{uid(1)}")
    block = planted.client.hget(key, "0")
    assert isinstance(block, bytes)
    planted.client.hset(key, "0", block[:-1] + bytes([block[-1] ^ 1]))
    state = reader.query("flights").operator()
    for read in (lambda: state.get(UA), lambda: list(state.items())):
        with pytest.raises(FormatError):
            read()


def test_keys_of_another_layout_than_registered_are_found(planted: Planted, reader: Reader) -> None:
    planted.partitions = 1
    planted.family = family(
        schema(user="string", day="long"), PLAIN.value_schema, kind="prefix", params=[1]
    )
    planted.register()
    planted.family = family(schema(user="string", day="long"), PLAIN.value_schema)
    key = {"user": "ann", "day": 1}
    planted.commit(1, [(key, ONE)])
    assert reader.query("flights").operator().get(key) == ONE


def test_prefix_of_another_type_is_refused(planted: Planted, reader: Reader) -> None:
    planted.partitions = 1
    planted.family = family(
        schema(user="string", day="long"), PLAIN.value_schema, kind="prefix", params=[1]
    )
    planted.register()
    planted.commit(1, [({"user": "ann", "day": 1}, ONE)])
    state = reader.query("flights").operator()
    assert len(list(state.scan(prefix="ann"))) == len(list(state.scan(prefix=("ann", 1)))) == 1
    for prefix, column in ((7, "user"), (("ann", "1"), "day"), ({"user": b"ann"}, "user")):
        with pytest.raises(ConfigError, match=f"key column '{column}'"):
            list(state.scan(prefix=prefix))


def test_flushed_scripts_are_loaded_again(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE)])
    state = reader.query("flights").operator()
    assert state.get(UA) == ONE
    planted.client.script_flush()
    assert state.get(UA) == ONE


@pytest.mark.parametrize(
    ("place", "field", "value"),
    [
        ("q", "f", b"2"),
        ("q", "op:0:default", b"{"),
        ("q", "op:0:default", b'{"partitions": 4, "families": [[0]]}'),
        ("q", "op:0:default", b'{"partitions": -1, "families": []}'),
        ("q", "op:x", b"{}"),
        ("m", "f", b"7"),
        ("m", f"d:1:{uid(1)}", b"- 1 1"),
        ("m", f"d:1:{uid(1)}", b"- 1 1 1 1 3 1 -"),
        ("m", f"d:1:{uid(1)}", b"\xff 1 1 1 1 1 1 -"),
        ("m", f"d:1:{uid(1)}", b"- 1 1 1 1 1 1 z"),
    ],
)
def test_malformed_entries_raise_format(
    planted: Planted, reader: Reader, place: str, field: str, value: bytes
) -> None:
    planted.partitions = 1
    planted.register()
    planted.commit(1, [(UA, ONE)])
    key = {"q": keys.query(GEN), "c": keys.checkpoints(), "m": keys.meta(planted.id(0))}[place]
    planted.client.hset(key, field.encode("utf-8", "surrogateescape"), value)
    with pytest.raises(FormatError):
        reader.query("flights").operator().get(UA)


def test_further_keys_read_one_partition(planted: Planted, reader: Reader) -> None:
    planted.partitions = 50
    planted.register()
    planted.commit(1, [(UA, ONE), (AA, TWO)])
    state = reader.query("flights").operator()
    assert state.get(UA) == ONE
    planted.client.config_resetstat()
    before = reader.client.round_trips
    assert state.get(AA) == TWO
    assert reader.client.round_trips - before == 2
    assert commands_seen(planted) == {"hgetall": 0, "eval": 0, "evalsha": 0, "hmget": 2, "hlen": 1}
    assert state.get({"carrier": "absent"}) is None
    # What was read of the partitions of the first two keys is known.
    opened, blocks = 1 + 50, 48
    assert commands_seen(planted)["hmget"] == 2 + opened + blocks


def test_key_outside_its_likely_partition_is_found(planted: Planted, reader: Reader) -> None:
    planted.register()
    planted.commit(1, [(AA, ONE)])
    elsewhere = (planted.partition(UA) + 1) % planted.partitions
    for number in range(planted.partitions):
        rows = {planted.key(UA): planted.value(TWO)} if number == elsewhere else {}
        planted.delta(number, 2, rows)
    state = reader.query("flights").operator()
    assert state.get(AA) == ONE
    for _ in range(2):
        assert state.get(UA) == TWO
        assert state.get({"carrier": "absent"}) is None
