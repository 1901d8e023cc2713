"""Random histories of a partition: what is read is what a plain dictionary would hold."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

import redis_state
from redis_state.errors import FormatError
from redis_state.format import segment
from redis_state.format.header import Tombstone
from redis_state.format.rows import Appended, Value
from redis_state.live import Reader
from redis_state.reader.block_cache import BlockCache
from redis_state.reader.lookup import key_search, merged_deltas
from redis_state.reader.lookup.many_keys import look_up
from redis_state.reader.versions import NewestOpener
from redis_state.rows.codec import codec_of
from tests.contract.planting import Planted, family, schema
from tests.support.redis_server import RedisServer

KEYS: list[Any] = [(user, n) for user in ("ann", "bob", None) for n in range(40)]
KINDS: list[tuple[str, tuple[int, ...]]] = [
    ("none", ()),
    ("prefix", (1,)),
    ("range", (1,)),
    ("ts-prefix", ()),
    ("ts-postfix", ()),
]
VERSIONS = 6

Rows = dict[bytes, bytes]


def history(planted: Planted, rng: random.Random, *, alike: bool) -> dict[int, Rows]:
    """Plants versions; the model of each one that is still there.

    Args:
        alike: All values have one length.
    """
    there: dict[int, Rows] = {}
    rows: Rows = {}
    stored = [planted.key(key) for key in KEYS]
    for version in range(1, VERSIONS + 1):
        planted.buckets = rng.choice([None, 1, 2, 8, 64])
        tombstones = []
        if version > 1 and rng.random() < 0.4:
            start, end = sorted(key[2:] for key in rng.sample(stored, 2))
            tombstones = [Tombstone(0, rng.choice([start, None]), rng.choice([end, None]))]
            rows = {k: v for k, v in rows.items() if not tombstones[0].covers(k[2:])}
        changes: dict[bytes, Value] = {}
        for key in rng.sample(stored, rng.randrange(len(stored) // 2)):
            size = 40 if alike else rng.randrange(300)
            new = planted.value({"text": "x" * size, "at": version})
            changes[key] = new if rng.random() < 0.7 else None
        planted.delta(0, version, changes, tombstones=tombstones)
        for key, value in changes.items():
            if isinstance(value, bytes):
                rows[key] = value
            else:
                rows.pop(key, None)
        there[version] = dict(rows)
        if rng.random() < 0.3:
            planted.buckets = rng.choice([1, 4, 32])
            planted.snapshot(0, version, rows)
            there = {version: there[version]}
    return there


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("kind", "params"), KINDS)
def test_every_version_equals_the_model(
    shared_redis_server: RedisServer, seed: int, kind: str, params: tuple[int, ...]
) -> None:
    rng = random.Random(seed)
    last = "__event_time" if kind.startswith("ts") else "n"
    layout = family(
        schema(**{"user": "string", last: "long"}),
        schema(text="string", at="long"),
        kind=kind,
        params=params,
    )
    gen = f"{rng.getrandbits(128):032x}"
    name = f"model-{kind}-{seed}"
    planted = Planted(shared_redis_server.client(), layout, 1, gen, name, tenant=f"{kind}:")
    planted.register()
    # Of every third state the buckets of a snapshot have parts.
    with pytest.MonkeyPatch.context() as patch:
        if seed % 3 == 0:
            patch.setattr(segment, "PART_BYTES_MAX", 500)
        versions = history(planted, rng, alike=seed % 2 == 0)
    with redis_state.connect(shared_redis_server.url, key_prefix=kind) as reader:
        for version, rows in versions.items():
            check(reader, planted, version, rows)


def check(reader: Reader, planted: Planted, version: int, rows: Rows) -> None:
    codec = codec_of(planted.family)
    expected: list[tuple[dict[str, Any], dict[str, Any]]] = [
        (codec.decode_key(key), codec.decode_value(value)) for key, value in rows.items()
    ]
    state = reader.query(planted.name).operator()
    found = sorted(state.items(version=version), key=str)
    assert found == sorted(expected, key=str)
    values = {planted.key(key): value for key, value in expected}
    for key in KEYS:
        assert state.get(key, version=version) == values.get(planted.key(key))
    assert state.get_many(KEYS, version=version) == [values.get(planted.key(key)) for key in KEYS]
    with pytest.MonkeyPatch.context() as patch:
        # As for more keys than are read at once, of a state that no cache has room for.
        patch.setattr(key_search, "KEYS_AT_ONCE", 7)
        for room in (key_search._KEPT_BYTES_MAX, 0):
            patch.setattr(key_search, "_KEPT_BYTES_MAX", room)
            found_many = reader.query(planted.name).operator().get_many(KEYS, version=version)
            assert found_many == [values.get(planted.key(key)) for key in KEYS]
    assert state.count(version=version) == len(rows)
    flat = sorted(({**key, **value} for key, value in expected), key=str)
    assert sorted(state.to_arrow(version=version).to_pylist(), key=str) == flat
    batches = state.to_batches(version=version, rows=7)
    assert sum(batch.num_rows for batch in batches) == len(flat)
    of_ann = [row for row in flat if row["user"] == "ann"]
    for prefix in ("ann", ["ann"], {"user": "ann"}):
        assert sorted(state.scan(version=version, prefix=prefix), key=str) == of_ann
    assert sorted(state.to_arrow(version, where={"user": "ann"}).to_pylist(), key=str) == of_ann
    old = [row["text"] for row in flat if row["at"] < version]
    table = state.to_arrow(version, where=lambda row: row["at"] < version, columns=["text"])
    assert sorted(table["text"].to_pylist()) == sorted(old)


@pytest.mark.parametrize("whole", [True, False], ids=["deltas-whole", "blocks-alone"])
@pytest.mark.parametrize(("kind", "params"), [("none", ()), ("range", (1,))])
@pytest.mark.parametrize("seed", range(24))
def test_cached_reads_equal_the_model(
    shared_redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    kind: str,
    params: tuple[int, ...],
    whole: bool,
) -> None:
    monkeypatch.setattr(merged_deltas, "_ROWS_A_KEY", 8 * whole)
    rng = random.Random(seed)
    lists = seed % 2 == 1
    layout = replace(
        family(
            schema(user="string", n="long"),
            schema(text="string", at="long"),
            kind=kind,
            params=params,
        ),
        multi_value=lists,
    )
    gen = f"{rng.getrandbits(128):032x}"
    tenant = f"again-{kind}-{whole:d}"
    planted = Planted(shared_redis_server.client(), layout, 1, gen, f"q{seed}", tenant=f"{tenant}:")
    stored = [planted.key(key) for key in KEYS]
    cache = BlockCache()
    together = 0
    with redis_state.connect(shared_redis_server.url, key_prefix=tenant) as reader:
        client = reader.client
        newest = NewestOpener(client, cache)
        for version in range(1, 13):
            planted.buckets = rng.choice([1, 2, 2, 2, 4, 8, 64])
            start, end = sorted(key[2:] for key in rng.sample(stored, 2))
            is_removed = seed % 4 > 1 and version > 1 and rng.random() < 0.2
            tombstones = [Tombstone(0, start, end)] if is_removed else []
            changes: dict[bytes, Value] = {}
            for key in rng.sample(stored, rng.randrange(len(stored) // 2)):
                text = f"{version}".encode()
                changes[key] = rng.choice([text, text, None, *[Appended(text)] * (3 * lists)])
            with pytest.MonkeyPatch.context() as patch:
                if seed % 3 == 0:
                    patch.setattr(segment, "PART_BYTES_MAX", 500)
                planted.delta(0, version, changes, tombstones=tombstones)
            (opened,) = newest.open([planted.id(0)])
            for _ in range(40 if version == 12 else rng.randrange(4)):
                asked = rng.sample(stored, rng.choice([1, 1, 1, 5, len(stored)]))
                (cold,) = look_up(client, [(opened, asked)], kind=kind)
                (taken,) = look_up(client, [(opened, asked)], kind=kind, keep=False)
                assert taken == cold
                (mixed,) = look_up(client, [(opened, asked)], kind=kind, cache=cache, keep=False)
                assert mixed == cold
                before = client.round_trips
                (warm,) = look_up(client, [(opened, asked)], kind=kind, cache=cache)
                assert warm == cold
                recent = cache.recent(opened.id)
                together += recent is not None and recent.opened is opened and recent.count > 1
        assert client.round_trips == before, "all of it was read by then"
    if not whole:
        assert cache.find(opened, stored[:1], kind) is not None
    assert seed % 4 or (together > 0) == whole


@pytest.mark.parametrize("keep", [True, False])
def test_replaced_segments_are_read_again(shared_redis_server: RedisServer, keep: bool) -> None:
    gen = f"{keep + 1:032x}"
    planted = Planted(shared_redis_server.client(), partitions=1, gen=gen, tenant="replaced:")
    codes = [{"carrier": f"c{n}"} for n in range(300)]
    rows = {
        planted.key(code): planted.value({"count": n, "total": 0.0}) for n, code in enumerate(codes)
    }
    asked = [planted.key({"carrier": f"c{n}"}) for n in range(310)]
    for version in (1, 2):
        planted.delta(0, version, rows)
    with redis_state.connect(shared_redis_server.url, key_prefix="replaced") as reader:
        (opened,) = NewestOpener(reader.client, BlockCache()).open([planted.id(0)])
        planted.snapshot(0, 2, rows)
        (found,) = look_up(reader.client, [(opened, asked)], kind="none", keep=keep)
        assert found.values == rows
        assert [one.snapshot for one in found.opened.segments] == [True]


@pytest.mark.parametrize("keep", [True, False])
def test_each_way_to_read_a_block_equals_the_model(
    shared_redis_server: RedisServer, keep: bool
) -> None:
    planted = Planted(
        shared_redis_server.client(), partitions=1, gen=f"{4 + keep:032x}", tenant="looks:"
    )
    keys = [{"carrier": f"c{n:03}"} for n in range(300)]
    rows = {
        planted.key(key): planted.value({"count": n, "total": 0.0}) for n, key in enumerate(keys)
    }
    stored = [planted.key({"carrier": f"c{n:03}"}) for n in range(320)]
    removed: dict[bytes, Value] = dict.fromkeys(stored[::7])
    planted.delta(0, 1, rows)
    planted.delta(0, 2, removed)
    with redis_state.connect(shared_redis_server.url, key_prefix="looks") as reader:
        (opened,) = NewestOpener(reader.client, BlockCache()).open([planted.id(0)])
        cache = BlockCache()
        trips = []
        # From other keys of the same blocks each time.
        for start in (0, 1, 2, 3, 0, 1):
            asked = stored[start::4]
            (found,) = look_up(
                reader.client, [(opened, asked)], kind="none", cache=cache, keep=keep
            )
            expected = {key: rows[key] for key in asked if key in rows and key not in removed}
            assert found.values == expected
            trips.append(reader.client.round_trips)
        assert (trips[-1] == trips[0]) == keep


def test_lost_part_of_a_bucket_raises(shared_redis_server: RedisServer) -> None:
    planted = Planted(shared_redis_server.client(), partitions=1, gen="3" * 32, tenant="parts:")
    codes = [{"carrier": f"c{n:03}"} for n in range(300)]
    rows = {planted.key(code): planted.value({"count": 1, "total": 0.0}) for code in codes}
    planted.buckets = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "PART_BYTES_MAX", 2_000)
        planted.delta(0, 1, rows)
    with redis_state.connect(shared_redis_server.url, key_prefix="parts") as reader:
        (opened,) = NewestOpener(reader.client, BlockCache()).open([planted.id(0)])
        key = opened.key(opened.segments[0])
        for field in ("0", "0.3"):
            block = planted.client.hget(key, field)
            planted.client.hdel(key, field)
            # So many fields are there as before.
            planted.client.hset(key, "more", "x")
            for keep in (True, False):
                with pytest.raises(FormatError, match="part"):
                    list(look_up(reader.client, [(opened, [*rows])], kind="none", keep=keep))
            planted.client.hset(key, field, block)
            planted.client.hdel(key, "more")
        (found,) = look_up(reader.client, [(opened, [*rows])], kind="none", keep=False)
        assert found.values == rows
