"""Rows as arrays: layouts, order of keys, and blocks that are not what they seem."""

from __future__ import annotations

import random

import pytest

from redis_state.format import rows

row_matrix = pytest.importorskip("redis_state.rows.row_matrix")


def _payload(keys: list[bytes], width: int = 9) -> bytes:
    return rows.encode([(key, bytes([at % 256]) * width) for at, key in enumerate(sorted(keys))])


def _read(*payloads: bytes) -> list[tuple[bytes, bytes]] | None:
    found: list[tuple[bytes, bytes]] = []
    for matrix, _ in row_matrix.matrices([(str(at), one) for at, one in enumerate(payloads)]):
        if matrix is None:
            return None
        found += matrix.pairs()
    return found


@pytest.mark.parametrize("width", [0, 1, 9, 255, 256, 300])
@pytest.mark.parametrize("count", [1, 2, 7, 8, 200, 256])
def test_rows_equal_those_that_are_decoded(count: int, width: int) -> None:
    rng = random.Random(count)
    payloads = [
        _payload([b"\0\1" + rng.randbytes(6) for _ in range(count)], width) for _ in range(3)
    ]
    assert _read(*payloads) == [row for one in payloads for row in rows.decode(one)]


def test_order_of_keys_is_that_of_their_bytes() -> None:
    keys = [b"\0\0" + bytes([high, low]) for high in (0, 1, 127, 128, 255) for low in (0, 128, 255)]
    assert _read(_payload(keys)) == rows.decode(_payload(keys))


def test_blocks_of_different_layouts_are_grouped() -> None:
    short, long = _payload([b"\0\0a", b"\0\0b"]), _payload([b"\0\0aa", b"\0\0bb"])
    groups = list(row_matrix.matrices([("0", short), ("1", long), ("2", short)]))
    assert [[name for name, _ in group] for _, group in groups] == [["0", "2"], ["1"]]


def test_each_changed_byte_is_read_as_decoding_does() -> None:
    payload = _payload([b"\0\0" + bytes([at, 0]) for at in range(20)])
    for at in range(len(payload)):
        for bit in (1, 0x80):
            damaged = payload[:at] + bytes([payload[at] ^ bit]) + payload[at + 1 :]
            found = _read(damaged)
            if found is not None:
                assert found == rows.decode(damaged)


def test_removed_and_appended_values_are_no_array() -> None:
    for change in (None, rows.Appended(b"123456789")):
        payload = rows.encode([(b"\0\0a", b"123456789"), (b"\0\0b", change)])
        assert _read(payload) is None


def test_keys_of_a_set_are_left_out() -> None:
    ((matrix, _),) = row_matrix.matrices([("0", _payload([b"\0\0a", b"\0\0b", b"\0\1c"]))])
    left = matrix.without(row_matrix.KeySet([b"\0\0b", b"\0\0bb", b"x"]))
    assert [key for key, _ in left.pairs()] == [b"\0\0a", b"\0\1c"]
    assert matrix.prefixes() == {b"\0\0", b"\0\1"}
    assert [key for key, _ in matrix.of_family(1).pairs()] == [b"\0\1c"]
