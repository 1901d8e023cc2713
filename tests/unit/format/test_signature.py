"""Signatures of blocks, on the vectors that the JVM adapter is tested on too."""

from __future__ import annotations

import pytest

from redis_state.errors import FormatError
from redis_state.format.signature import BlockSigner
from tests.unit.format.vectors import load

CASES = load("signatures.json")
SIGNER = BlockSigner(bytes.fromhex(CASES["secret"]))


def test_a_block_is_signed_for_its_place() -> None:
    block, value = bytes.fromhex(CASES["block"]), bytes.fromhex(CASES["value"])
    assert SIGNER.signed(CASES["key"], CASES["field"], block) == value
    assert SIGNER.opened(CASES["key"], CASES["field"], value) == block
    assert SIGNER.all_opened("k", ["a"], [None]) == [None]


@pytest.mark.parametrize("case", CASES["bad"], ids=lambda case: case["name"])
def test_wrong_signature_raises_format(case: dict[str, str]) -> None:
    with pytest.raises(FormatError):
        SIGNER.opened(case["key"], case["field"], bytes.fromhex(case["value"]))
