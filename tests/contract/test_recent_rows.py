"""Deltas that are read whole: what a reader of many keys asks for, and what it does not trust."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import redis_state
from redis_state import keys
from redis_state.errors import FormatError
from redis_state.format.bucketing import bucket_of
from redis_state.format.segment import SegmentWriter
from redis_state.live import Reader
from redis_state.reader import OperatorState, block_cache
from redis_state.reader.block_cache import BlockCache
from redis_state.reader.lookup.many_keys import look_up
from redis_state.reader.versions import NewestOpener
from tests.contract.planting import Planted, schema, uid
from tests.support.redis_server import RedisServer

KEYS = [{"carrier": f"c{n:03}"} for n in range(400)]


@pytest.fixture
def planted(redis_server: RedisServer) -> Planted:
    planted = Planted(redis_server.client(), partitions=1)
    planted.register()
    return planted


@pytest.fixture
def reader(redis_server: RedisServer) -> Iterator[Reader]:
    with redis_state.connect(redis_server.url) as reader:
        yield reader


def value(count: int) -> dict[str, Any]:
    return {"count": count, "total": 0.0}


def change(planted: Planted, version: int, changed: list[dict[str, str]]) -> None:
    planted.commit(version, [(key, value(version)) for key in changed])


def warm(state: OperatorState) -> None:
    """Reads until all blocks of the oldest segment are known."""
    for _ in range(4):
        for key in KEYS:
            state.get(key)


def test_further_keys_of_a_new_version_ask_for_no_blocks(planted: Planted, reader: Reader) -> None:
    state = reader.query("flights").operator()
    change(planted, 1, KEYS)
    warm(state)
    rng = random.Random(5)
    newest = dict.fromkeys(range(len(KEYS)), 1)
    for version in range(2, 30):
        numbers = rng.sample(range(len(KEYS)), 60)
        change(planted, version, [KEYS[number] for number in numbers])
        newest |= dict.fromkeys(numbers, version)
        trips = []
        for number in rng.sample(range(len(KEYS)), 40):
            before = reader.client.round_trips
            assert state.get(KEYS[number]) == value(newest[number])
            trips.append(reader.client.round_trips - before)
        # Whether there is a newer version, its segments, and the delta; then the first of it alone.
        assert (trips[0], set(trips[2:])) == (3, {1}), version
    assert state.get_many(KEYS) == [value(newest[number]) for number in newest]


def test_damaged_block_of_a_delta_affects_only_its_keys(planted: Planted, reader: Reader) -> None:
    state = reader.query("flights").operator()
    change(planted, 1, KEYS)
    warm(state)
    planted.buckets = 8
    change(planted, 2, KEYS)
    (opened,) = reader.query("flights").open(0, "default", None)[1]
    segment = opened.key(opened.segments[0])
    planted.client.hset(segment, "3", b"damaged")
    damaged = 0
    for key in KEYS:
        if bucket_of(planted.key(key), kind="none", buckets=8) == 3:
            damaged += 1
            with pytest.raises(FormatError):
                state.get(key)
        else:
            assert state.get(key) == value(2)
    assert 0 < damaged < len(KEYS)


def test_delta_replaced_by_a_snapshot_is_not_missed(planted: Planted, reader: Reader) -> None:
    state = reader.query("flights").operator()
    change(planted, 1, KEYS)
    warm(state)
    for version in (2, 3):
        change(planted, version, KEYS[:50])
    assert state.get(KEYS[60]) == value(1)
    planted.snapshot(
        0, 3, {planted.key(key): planted.value(value(3 if key in KEYS[:50] else 1)) for key in KEYS}
    )
    found = state.get_many(KEYS)
    assert found == [value(3)] * 50 + [value(1)] * 350


@pytest.mark.parametrize("room", [0, 20_000, 60_000])
def test_memory_bound_of_recent_rows_holds(
    planted: Planted, reader: Reader, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(block_cache, "RECENT_BYTES_MAX", room)
    query = reader.query("flights")
    state = query.operator()
    change(planted, 1, KEYS)
    warm(state)
    rng = random.Random(room)
    newest = dict.fromkeys(range(len(KEYS)), 1)
    for version in range(2, 40):
        numbers = rng.sample(range(len(KEYS)), 40)
        change(planted, version, [KEYS[number] for number in numbers])
        newest |= dict.fromkeys(numbers, version)
        for number in rng.sample(range(len(KEYS)), 40):
            assert state.get(KEYS[number]) == value(newest[number])
        assert query.blocks.recent_room() >= -0.1 * room


def test_family_dropped_by_the_newest_delta_stays_dropped(planted: Planted, reader: Reader) -> None:
    planted.delta(0, 1, {planted.key(key): planted.value(value(1)) for key in KEYS[:10]})
    for version in (2, 3):
        segment = SegmentWriter(f"d:{version}:{uid(version)}", [], 1)
        entry = segment.finish(ref=uid(version - 1), live=0, with_families=True)
        planted._enter(0, segment.ident, segment.ident, segment.fields, entry)
        at, of = str(version), uid(version)
        planted.client.hset(
            keys.meta(planted.id(0)), mapping={"l": at, "lu": of, "o": at, "ou": of}
        )
    cache = BlockCache()
    (opened,) = NewestOpener(reader.client, cache).open([planted.id(0)])
    for key in KEYS[:20]:
        asked = [(opened, [planted.key(key)])]
        (found,) = look_up(reader.client, asked, kind=planted.family.kind, cache=cache)
        assert found.families == ()


def test_well_compressed_values_stay_within_the_memory_bound(
    planted: Planted, reader: Reader
) -> None:
    planted.family = replace(planted.family, value_schema=schema(text="string"))
    planted.register()
    query = reader.query("flights")
    state = query.operator()
    planted.commit(1, [(key, {"text": ""}) for key in KEYS])
    for key in KEYS:
        state.get(key)
    for version in range(2, 6):
        # 30 MB of one letter.
        text = str(version) * 300_000
        planted.commit(version, [(key, {"text": text}) for key in KEYS[:100]])
        for key in KEYS[90:110]:
            assert state.get(key) == {"text": text if key in KEYS[:100] else ""}
    recent = query.blocks.recent(planted.id(0))
    assert recent is None or recent.count == 0
    assert query.blocks.resets < 10


def test_named_version_is_merged_once(planted: Planted, reader: Reader) -> None:
    state = reader.query("flights").operator()
    change(planted, 1, KEYS)
    for version in range(2, 8):
        change(planted, version, KEYS[version::3])
    for key in KEYS:
        state.get(key, version=6)
    before = reader.client.round_trips
    for key in KEYS[:50]:
        state.get(key, version=6)
    assert reader.client.round_trips - before == 50, "each opens the version, and asks no more"
