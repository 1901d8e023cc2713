"""Another number of partitions for a store whose rows expire: same rows, same expiries."""

from __future__ import annotations

import struct
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgpack  # type: ignore[import-untyped]  # the package ships no types

import redis_state
from redis_state import config as options
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.format.entry import parse_segment
from redis_state.format.header import Family
from redis_state.format.rows import Value
from redis_state.format.segment import SegmentWriter, read_segment
from redis_state.ids import PartitionId
from redis_state.reader.version_request import VersionRequest
from redis_state.rows.murmur3 import partition_of
from tests.contract.test_rescale_store import ROWS, SCHEMA, Query
from tests.support.redis_server import RedisServer

EXPIRIES = [0xFFFF_FFFF, 1_050, 1_150, 2_050, 2_150, 2_250, 3_000]
SECOND = {f"k{number}": -number for number in range(40)}


def time_of(version: int, partition: int) -> int:
    """The tasks of a batch open their partitions at different moments."""
    return 1_000 * version + 100 * partition


def expiry_of(number: int) -> int:
    return EXPIRIES[number % len(EXPIRIES)]


def visible(version: int) -> dict[str, int]:
    rows = ROWS | (SECOND if version == 2 else {})
    return {
        key: value
        for key, value in rows.items()
        if expiry_of(abs(value)) > time_of(version, partition_of(SCHEMA, [key], partitions=3))
    }


def let_rows_expire(raw: Any, id_: PartitionId) -> None:
    """Writes the deltas of a partition as those of a store whose rows have a time to live."""
    meta = keys.meta(id_)
    listed = {name.decode(): text.decode() for name, text in raw.hgetall(meta).items()}
    families: list[Family] = []
    for name in sorted(name for name in listed if name[:2] == "d:"):
        segment = parse_segment(name, listed[name])
        place = keys.segment(id_, segment.ident)
        fields = {field.decode(): value for field, value in raw.hgetall(place).items()}
        content = read_segment(segment, fields)
        families = [replace(one, ttl=True) for one in content.families or families]
        writer = SegmentWriter(segment.ident, families, 1)
        rows: dict[bytes, Value] = {}
        for key, value in content.rows.items():
            assert isinstance(value, bytes)
            rows[key] = value + struct.pack(">I", expiry_of(abs(msgpack.unpackb(value))))
        writer.add(rows)
        entry = writer.finish(
            ref=segment.entry.ref,
            live=segment.entry.live,
            with_families=content.families is not None,
            time=time_of(segment.version, id_.partition),
        )
        raw.hset(place, mapping=writer.fields)
        raw.hset(meta, name, entry.text)


def test_rows_and_expiries_are_those_of_before(redis_server: RedisServer) -> None:
    with closing(Client(options.parse({"url": redis_server.url}))) as client:
        query = Query(client, redis_server.url)
        query.run(0, ROWS)
        batch = query.begin(1)
        query.commit(batch, SECOND)
        for id_ in batch.ids():
            let_rows_expire(redis_server.client(), id_)
        for partitions in (2, 5):
            for version in (1, 2):
                assert _rows(redis_server, query.name, version) == visible(version)
            query.rescale(partitions)
    for version in (1, 2):
        assert _rows(redis_server, query.name, version) == visible(version)
    with redis_state.connect(redis_server.url) as reader:
        state = reader.query(query.name).operator(0)
        expected = visible(2)
        assert state.get_many(list(ROWS)) == [expected.get(key) for key in ROWS]
        assert state.count() == len(expected)
        info, partitions_ = state._stored.open(VersionRequest())
        assert info.partitions == 5
        assert {one.segments[0].entry.time for one in partitions_} == {time_of(2, 0)}


def _rows(server: RedisServer, name: str, version: int) -> dict[str, int]:
    with redis_state.connect(server.url) as reader:
        return dict(reader.query(name).operator(0).items(version))
