"""Encoding of an instance in Redis."""

from __future__ import annotations

import pytest

from redis_state.errors import FormatError
from redis_state.ids import PartitionId, StoreId
from redis_state.protocol.instances import Instance, decode_instance, report_command

GEN = "0123456789abcdef0123456789abcdef"
ID = PartitionId(StoreId(GEN, 2, tenant="team:"), 7)


def test_instance_bytes_equal_the_jvms() -> None:
    instance = Instance("hö st", "3", "6d2bd1e5-0c7c-4c3e-9d77-111111111111")
    # As json4s writes it: no blanks, this order, UTF-8.
    expected = '{"host":"hö st","executor":"3","run":"6d2bd1e5-0c7c-4c3e-9d77-111111111111"}'
    assert instance.encode() == expected.encode()
    assert decode_instance(expected.encode()) == instance


def test_the_command_is_one_set_with_an_expiry() -> None:
    instance = Instance("h", "1", "r")
    key = f"{{team:rs:{GEN}}}:i:2:7:37a8eec1ce19687d"
    assert report_command(ID, instance, ttl_ms=500) == ("SET", key, instance.encode(), "PX", "500")


def test_location_is_spelled_as_in_spark() -> None:
    assert Instance("host.example", "12", "r").location == "executor_host.example_12"


@pytest.mark.parametrize("raw", [None, b""])
def test_missing_instance_decodes_to_none(raw: bytes | None) -> None:
    assert decode_instance(raw) is None


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b'{"host":"h","executor":"1"}',
        b'{"host":"h","executor":1,"run":"r"}',
        b"[" * 100_000,
    ],
)
def test_malformed_instance_is_not_read_as_absent(raw: bytes) -> None:
    with pytest.raises(FormatError):
        decode_instance(raw)
