"""Blocks that pass the local disk."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from redis_state.errors import UnavailableError
from redis_state.places import spool
from redis_state.places.spool import Spool


def passed(size: int) -> None:
    with Spool("importing") as own:
        blocks = own.segment()
        for number in range(200):
            blocks.add({str(number): bytes(size)})
        list(blocks.blocks())


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
@pytest.mark.parametrize("size", [100, 10_000])
def test_full_disk_raises_unavailable(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w+b", buffering=0) as full:
        monkeypatch.setattr(spool, "TemporaryFile", lambda **_: io.BufferedRandom(full))
        with pytest.raises(UnavailableError, match="No space left on device") as caught:
            passed(size)
    # Files of other partitions may be there.
    assert "Nothing was changed" not in str(caught.value)
