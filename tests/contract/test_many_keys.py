"""Many keys in one call: by columns or one after the other, the answers are those of `get`."""

from __future__ import annotations

import asyncio
import random
import sys
from datetime import datetime, timezone
from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest

import redis_state
from redis_state import aio
from redis_state.format.bucketing import bucket_of
from redis_state.format.header import Family
from redis_state.format.rows import stored_key
from redis_state.reader.lookup.asked_keys import MANY, AskedKeys
from redis_state.reader.lookup.key_search import _by_block
from redis_state.rows.codec import codec_of
from redis_state.spark.live.lookup_task import asked
from tests.contract.planting import Planted, family, schema
from tests.support.redis_server import RedisServer

COUNT = 4 * MANY
NOON = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)
TEXTS = [{"k": f"key {n}" * (1 + n % 3)} for n in range(COUNT)]
SEVERAL = [{"a": n, "b": f"{n}" if n % 7 else None, "c": NOON} for n in range(COUNT)]
REALS = [{"x": n / 4 - 9} for n in range(COUNT)]
PREFIXES = [{"a": f"g{n % 9}", "b": n} for n in range(COUNT)]
STATES: dict[str, tuple[Family, list[dict[str, Any]]]] = {
    "texts": (family(schema(k="string"), schema(n="long", s="string")), TEXTS),
    "several": (
        family(schema(a="integer", b="string", c="timestamp"), schema(n="long", s="string")),
        SEVERAL,
    ),
    "reals": (family(schema(x="double"), schema(n="long", s="string")), REALS),
    "prefix": (
        family(
            schema(a="string", b="long"),
            schema(n="long", s="string"),
            kind="prefix",
            params=(1,),
        ),
        PREFIXES,
    ),
    "times": (family(schema(k="string"), schema(n="long", s="timestamp")), TEXTS),
}


@pytest.mark.parametrize("without", [False, True], ids=["numpy", "no numpy"])
@pytest.mark.parametrize("name", STATES)
def test_get_many_equals_single_gets(
    redis_server: RedisServer, name: str, without: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, keys = STATES[name]
    planted = Planted(redis_server.client(), of, partitions=3)
    planted.register()
    dice = random.Random(name)
    text: Any = NOON if name == "times" else "a text"
    for version in range(1, 8):
        planted.buckets = dice.choice([None, 1, 4, 32])
        some = dice.sample(keys, COUNT if version == 1 else COUNT // 5)
        planted.commit(
            version,
            [
                (key, {"n": version, "s": text if n % 3 else None} if n % 5 else None)
                for n, key in enumerate(some)
            ],
        )
    if without:
        for module in ("key_arrays", "columnar"):
            path = "redis_state.rows." if module == "key_arrays" else "redis_state.reader."
            monkeypatch.setitem(sys.modules, path + module, None)
    with redis_state.connect(redis_server.url) as reader:
        state = reader.query("flights").operator()
        wanted = [state.get(key) for key in keys]
        found = state.get_many(keys)
        assert found == wanted
        assert any(one is None for one in wanted)
        as_rows = state.get_many([tuple(key.values()) for key in keys])
        assert as_rows == wanted
        assert [*map(_types, found)] == [*map(_types, wanted)]


def _types(row: dict[str, Any] | None) -> list[type] | None:
    return row and [type(value) for value in row.values()]  # type: ignore[return-value]  # of no row None


def test_value_without_columns_is_not_none(redis_server: RedisServer) -> None:
    planted = Planted(redis_server.client(), family(schema(k="string"), schema()))
    planted.register()
    keys = [{"k": f"{n}"} for n in range(MANY + 8)]
    planted.commit(1, [(key, {}) for key in keys])
    wanted: list[dict[str, Any] | None] = [{} for _ in keys]
    with redis_state.connect(redis_server.url) as reader:
        state = reader.query("flights").operator()
        assert state.get_many(keys) == wanted
        assert state.get_many([*keys, {"k": "none"}]) == [*wanted, None]
        assert state.to_arrow().column_names == ["k"]

    async def read() -> list[Any]:
        async with await aio.connect(redis_server.url) as reader:
            found: list[Any] = await (await reader.query("flights")).operator().get_many(keys)
            return found

    assert asyncio.run(read()) == wanted


@pytest.mark.parametrize("name", [name for name in STATES if name != "prefix"])
def test_bytes_and_partitions_of_many_keys_equal_single_keys(name: str) -> None:
    of, keys = STATES[name]
    codec, many = codec_of(of), AskedKeys(keys)
    assert many.stored(codec) == [codec.encode_key(key) for key in keys]
    for partitions in (1, 7, 200):
        assert list(many.likely_partitions(codec, partitions=partitions)) == [
            codec.likely_partition(key, partitions=partitions) for key in keys
        ]


def test_keys_of_different_shapes_are_encoded_one_by_one() -> None:
    of, keys = STATES["several"]
    codec = codec_of(of)
    mixed: list[Any] = [key if n % 2 else list(key.values()) for n, key in enumerate(keys)]
    assert AskedKeys(mixed).stored(codec) == [codec.encode_key(key) for key in keys]


@pytest.mark.parametrize("kind", ["none", "prefix", "ts-postfix"])
def test_keys_of_one_bucket_are_adjacent_for_any_bucket_count(kind: str) -> None:
    dice = random.Random(kind)
    stored = [
        stored_key(0, (4).to_bytes(4, "little") + dice.randbytes(4) + dice.randbytes(8))
        for _ in range(500)
    ]
    places = dice.sample(range(500), 400)
    order = _by_block(stored, places, kind)
    assert sorted(order) == sorted(places)
    for bits in range(10):
        buckets = [bucket_of(stored[at], kind=kind, buckets=1 << bits) for at in order]
        assert len(list(groupby(buckets))) == len(set(buckets))
    ordered = _by_block(stored, places, "range")
    assert [stored[at] for at in ordered] == sorted(stored[at] for at in places)


def test_duplicate_keys_are_read_once() -> None:
    texts = pa.array(["a", "b", None, "a", "c", "b"])
    numbers = pa.array([1, 2, 3, 1, None, 5])
    keys, at = asked([texts, numbers], alone=False)
    assert at.to_pylist()[2] is at.to_pylist()[4] is None
    given = [None if place is None else keys.at(place) for place in at.to_pylist()]
    assert given == [("a", 1), ("b", 2), None, ("a", 1), None, ("b", 5)]
    assert len(keys) == 3
    keys, at = asked([texts], alone=True)
    assert [None if one is None else keys.at(one) for one in at.to_pylist()] == texts.to_pylist()
    structs = pa.array([{"x": 1}, {"x": 2}, {"x": 1}, None])
    keys, at = asked([structs], alone=False)
    assert at.to_pylist() == [0, 1, 0, None]
    nothing, at = asked([pa.array([None, None], pa.string())], alone=False)
    assert (len(nothing), at.to_pylist()) == (0, [None, None])


def test_repeated_hour_at_the_end_of_summer_time_makes_two_keys() -> None:
    micros = [1729987200000000, 1729990800000000]
    times = pa.array(micros, pa.timestamp("us", tz="Europe/Berlin"))
    keys, at = asked([times], alone=False)
    assert (len(keys), at.to_pylist()) == (2, [0, 1])
