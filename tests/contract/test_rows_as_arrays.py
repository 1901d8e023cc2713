"""Rows of one width are read as arrays, with the result of reading them one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

import redis_state
from redis_state.errors import FormatError
from redis_state.format.entry import Segment
from redis_state.format.header import Family, Tombstone
from redis_state.format.rows import Value
from redis_state.format.segment import read_payload
from redis_state.live import Reader
from redis_state.reader import OperatorState
from redis_state.reader.tables import arrow
from redis_state.rows import row_matrix
from tests.contract.planting import Planted, family, schema
from tests.support.redis_server import RedisServer

pytest.importorskip("pyarrow")

NUMBERS = schema(a="long", b="integer")
VALUES = schema(count="long", total="double", day="date", flag="boolean")
WHOLE = {"count": 1, "total": 0.5, "day": None, "flag": True}
FAMILIES = {
    "plain": family(NUMBERS, VALUES),
    "prefix": family(NUMBERS, VALUES, kind="prefix", params=[1]),
    "texts": family(schema(k="string"), schema(v="string", n="long")),
    "ordered": family(NUMBERS, VALUES, kind="range", params=[0]),
}


@pytest.fixture
def reader(redis_server: RedisServer) -> Iterator[Reader]:
    with redis_state.connect(redis_server.url) as reader:
        yield reader


@pytest.fixture(autouse=True)
def arrays_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_ARRAY_ROWS_MIN", 1)


def _row(of: Family, planted: Planted, rng: random.Random) -> tuple[bytes, bytes]:
    number = rng.randrange(-400, 400)
    if of is FAMILIES["texts"]:
        text = {"k": f"{number:+05d}"}
        # Most texts take as many words as the others.
        return planted.key(text), planted.value({"v": "x" * rng.choice([3, 3, 3, 20]), "n": number})
    key = {"a": number if rng.random() < 0.95 else None, "b": number % 7}
    value = {
        "count": rng.choice([None, -1, number]),
        "total": rng.choice([None, number / 3]),
        "day": None,
        "flag": rng.random() < 0.5,
    }
    return planted.key(key), planted.value(value)


def _plant(planted: Planted, rng: random.Random) -> None:
    rows: dict[bytes, Value] = dict(_row(planted.family, planted, rng) for _ in range(600))
    planted.delta(0, 1, rows)
    if rng.random() < 0.7:
        planted.snapshot(0, 1, rows)
    for version in range(2, 2 + rng.randrange(5)):
        changes: dict[bytes, Value] = dict(
            _row(planted.family, planted, rng) for _ in range(rng.randrange(60))
        )
        removed = rng.sample(sorted(planted.live[0]), rng.randrange(20))
        changes |= dict.fromkeys(removed)
        ranges = [Tombstone(0, b"\0\x10", b"\0\x18")] if rng.random() < 0.2 else []
        planted.delta(0, version, changes, tombstones=ranges)


def _as_scanned(state: OperatorState) -> list[str]:
    return sorted(repr(list(row.values())) for row in state.scan())


def _as_arrays(state: OperatorState) -> list[str]:
    return sorted(repr(list(row.values())) for row in state.to_arrow().to_pylist())


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("seed", range(12))
def test_arrays_have_the_rows_of_a_scan(
    kind: str, seed: int, reader: Reader, redis_server: RedisServer
) -> None:
    rng = random.Random(seed)
    buckets = rng.choice([None, 1, 4, 64])
    planted = Planted(redis_server.client(), FAMILIES[kind], 1, buckets=buckets)
    planted.register()
    _plant(planted, rng)
    state = reader.query(planted.name).operator()
    expected = _as_scanned(state)
    assert _as_arrays(state) == expected
    # Filters and small batches take other ways.
    batches = list(state.to_batches(rows=37))
    assert max(batch.num_rows for batch in batches) <= 37
    assert sum(batch.num_rows for batch in batches) == len(expected)
    first = state.scan(columns=[state.to_arrow().schema.names[0]])
    assert len(list(first)) == state.count() == len(expected)


def test_rows_of_one_width_are_not_read_one_by_one(
    reader: Reader, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted(redis_server.client(), FAMILIES["plain"], 1)
    planted.register()
    rows: dict[bytes, Value] = {
        planted.key({"a": n, "b": 1}): planted.value(WHOLE | {"count": n}) for n in range(2_000)
    }
    planted.delta(0, 1, rows)
    planted.snapshot(0, 1, rows)
    monkeypatch.setattr(row_matrix.RowMatrix, "pairs", None)
    monkeypatch.setattr(arrow._Maker, "batch", None)
    assert reader.query(planted.name).operator().to_arrow().num_rows == 2_000


def test_swapped_keys_are_damage(
    reader: Reader, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted(redis_server.client(), FAMILIES["plain"], 1, buckets=1)
    planted.register()
    rows: dict[bytes, Value] = {
        planted.key({"a": n, "b": 1}): planted.value(WHOLE | {"count": n}) for n in range(50)
    }
    planted.delta(0, 1, rows)
    first, second = sorted(rows)[3:5]

    def swapped(segment: Segment, name: str, raw: bytes) -> bytes:
        payload = read_payload(segment, name, raw)
        return payload.replace(first, b"<first>").replace(second, first).replace(b"<first>", second)

    monkeypatch.setattr("redis_state.protocol.version_rows.read_payload", swapped)
    monkeypatch.setattr("redis_state.format.segment.read_payload", swapped)
    with pytest.raises(FormatError, match="ascending"):
        reader.query(planted.name).operator().to_arrow()
