"""Spark's hash of grouping columns, on vectors that Spark made."""

from __future__ import annotations

from typing import Any

import pytest

from redis_state.errors import ConfigError
from redis_state.rows.murmur3 import hash_key, partition_of
from redis_state.rows.unsafe_row import decode
from redis_state.types.schema import parse_schema
from tests.unit.unsafe_row_vectors import PARTITIONS, VECTORS, can_be_looked_up, named

HASHED = [vector for vector in VECTORS if "hash" in vector and can_be_looked_up(vector)]


def test_vectors_exist() -> None:
    assert len(HASHED) >= 20


@pytest.mark.parametrize("vector", HASHED, ids=lambda v: v["name"])
def test_hash_and_partition_equal_sparks(vector: dict[str, Any]) -> None:
    schema = parse_schema(vector["schema"])
    values = decode(schema, bytes.fromhex(vector["row"]))
    assert hash_key(schema, values) == vector["hash"]
    assert partition_of(schema, values, partitions=PARTITIONS) == vector["partition"]


def test_unhashable_type_is_refused() -> None:
    schema = parse_schema(named("collated")["schema"])
    with pytest.raises(ConfigError, match="collation"):
        hash_key(schema, ["Abc"])
    with pytest.raises(ConfigError, match="0 partitions"):
        partition_of(parse_schema(named("longs")["schema"]), [1, 2, 3], partitions=0)
