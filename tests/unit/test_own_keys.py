"""Keys that belong to a partition, compared with Spark's hash of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from redis_state.codec.typed_row import TypedKey
from redis_state.errors import UsageError
from redis_state.rows.murmur3 import hash_key
from redis_state.spark.processor.own_keys import OwnKeys
from redis_state.types.schema import parse_schema

PARTITIONS = 5
NOON = datetime(2024, 11, 3, 12, 0, tzinfo=timezone.utc)
KEYS: list[tuple[dict[str, Any], list[tuple[Any, ...]]]] = [
    ({"k": "string"}, [("a",), ("é",), (None,), ("",), ("x" * 5000,)]),
    ({"k": "long"}, [(0,), (-1,), (2**62,), (None,)]),
    ({"k": "short", "m": "byte"}, [(0, 1), (-1, -1), (300, None)]),
    ({"k": "double"}, [(0.0,), (-0.0,), (float("nan"),), (1.5,), (7,)]),
    ({"k": "float"}, [(0.0,), (-0.0,), (float("nan"),), (0.1,)]),
    ({"k": "date", "b": "boolean"}, [(date(1969, 1, 1), True), (date(2024, 2, 29), False)]),
    (
        {"k": "timestamp"},
        [(NOON,), (NOON.astimezone(timezone(timedelta(hours=5))),), (datetime(1960, 1, 1),)],
    ),
    ({"k": "timestamp_ntz"}, [(datetime(2024, 1, 1),), (datetime(1, 1, 1),)]),
    ({"k": "decimal(10,2)"}, [(Decimal("1.50"),), (Decimal("1.5"),), (Decimal(-3),), (4,)]),
    ({"k": "decimal(38,0)", "s": "string"}, [(Decimal(10**30), "a"), (Decimal(-1), "b")]),
    ({"k": "binary"}, [(b"",), (b"\xff\0a",)]),
    (
        {"k": {"type": "struct", "fields": [
            {"name": "x", "type": "long", "nullable": True, "metadata": {}},
            {"name": "y", "type": "string", "nullable": True, "metadata": {}},
        ]}},
        [({"x": 1, "y": "a"},), ((1, None),), (None,)],
    ),
]  # fmt: skip


def schema_of(kinds: dict[str, Any]) -> str:
    fields = [{"name": name, "type": kind, "nullable": True} for name, kind in kinds.items()]
    return json.dumps({"type": "struct", "fields": fields})


@pytest.mark.parametrize(("kinds", "keys"), KEYS, ids=[json.dumps(kinds)[:30] for kinds, _ in KEYS])
def test_each_key_belongs_to_the_partition_of_its_hash(
    kinds: dict[str, Any], keys: Sequence[tuple[Any, ...]]
) -> None:
    schema = schema_of(kinds)
    codec = TypedKey(schema, zone=timezone.utc)
    encoded = [codec.encode(key) for key in keys]
    columns = list(zip(*keys, strict=True))
    homes = [hash_key(parse_schema(schema), codec.decode(one)) % PARTITIONS for one in encoded]
    for partition in range(PARTITIONS):
        others = [at for at, home in enumerate(homes) if home != partition]
        own = OwnKeys(schema, partition, PARTITIONS)
        assert own.others(columns, encoded) == others
        if others:
            with pytest.raises(UsageError, match=f"putting; {len(others)} of {len(keys)} keys"):
                own.check(columns, encoded, "putting")
        else:
            own.check(columns, encoded, "putting")


def test_one_partition_or_none_has_all_keys() -> None:
    for partitions in (1, None):
        OwnKeys(schema_of({"k": "string"}), 3, partitions).check([["a", "b"]], [b"a", b"b"], "")
    OwnKeys(schema_of({"k": "string"}), 3, PARTITIONS).check([[]], [], "")
