"""No segment is written whose rows are not in the order of their keys."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from redis_state.errors import RedisStateError
from redis_state.format import ordered
from redis_state.format.header import Family
from redis_state.format.segment import SegmentWriter
from redis_state.ids import EMPTY_UID

FAMILY = Family(0, "default", "range", (0,), "{}", "{}")
KEYS = [ordered.PREFIX + b"%04d" % number for number in range(300)]


def swapped(first: int, second: int) -> list[bytes]:
    keys = list(KEYS)
    keys[first], keys[second] = keys[second], keys[first]
    return keys


WRONG = {
    "within a block": swapped(3, 4),
    "where blocks meet": swapped(127, 128),
    "twice": [*KEYS[:10], KEYS[9], *KEYS[10:]],
    "far away": swapped(0, 299),
}


@pytest.mark.parametrize("keys", WRONG.values(), ids=WRONG)
def test_rows_out_of_order_are_refused_before_anything_is_sent(keys: Sequence[bytes]) -> None:
    values = [b"value"] * len(keys)
    with pytest.raises(RedisStateError, match="order"):
        ordered.write("d:1:a", keys, values, ref=EMPTY_UID, live=len(keys), families=[FAMILY])
    writer = SegmentWriter("d:1:a", [FAMILY])
    with pytest.raises(RedisStateError, match="order"):
        list(writer.add_ordered(0, zip(keys, values, strict=True)))


def test_rows_in_order_are_written() -> None:
    values = [b"value"] * len(KEYS)
    written = ordered.write("d:1:a", KEYS, values, ref=EMPTY_UID, live=300, families=[FAMILY])
    assert written.entry.rows == 300
