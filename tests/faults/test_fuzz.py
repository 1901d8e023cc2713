"""Every decoder of the Python package on hostile bytes; `FuzzSuite` does the same on the JVM."""

from __future__ import annotations

import os

from tests.faults import fuzz

INPUTS = int(os.environ.get("REDIS_STATE_FUZZ", "100000"))
SEED = int(os.environ.get("REDIS_STATE_SEED", "1"))


def test_hostile_bytes_are_read_or_refused_and_claim_no_memory() -> None:
    found = fuzz.run(SEED, INPUTS)
    print(dict(found))
    assert found["read"] > 0
    assert found["refused"] > 0
