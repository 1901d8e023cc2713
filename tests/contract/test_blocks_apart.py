"""Commits whose blocks go along under a key of their own (docs/format.md, section 6)."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from redis_state.backend.script import script
from tests.support.redis_server import RedisServer

P = f"{{rs:{'a' * 32}:0:0:37a8eec1ce19687d}}"
META, DELTA, APART = f"{P}:m", f"{P}:d:1:u1", f"{P}:n:d:1:u1"
DAY_MS = 86_400_000
ENTRY, OTHER = "- 2 2 2 22 2 7 -", "- 2 2 2 22 2 8 -"
BLOCKS, OTHERS = {"0": "one", "1": "two"}, {"0": "three", "1": "four"}


class Planted:
    """A partition without versions, which a run holds."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        head = {"f": "1", "e": "1", "r": "run", "o": "0", "ou": "-", "l": "0", "lu": "-"}
        raw.hset(META, mapping={**head, "n": "100", "w": "0", "c": "2"})

    def commit(self, entry: str, blocks: dict[str, str], *, epoch: int = 1) -> list[str]:
        """Sends what a writer sends; returns the reply of `publish`."""
        run = "run" if epoch == 1 else "former"
        args = (run, epoch, 0, "-", "u1", 2, entry, 600_000, "2", "0")
        with self.raw.pipeline(transaction=True) as pipe:
            pipe.hset(APART, mapping=blocks)
            pipe.pexpire(APART, DAY_MS)
            pipe.eval(script("publish").text, 3, META, DELTA, APART, *args)
            return list(pipe.execute()[-1])

    def blocks(self) -> dict[str, str]:
        return dict(self.raw.hgetall(DELTA))


@pytest.fixture
def planted(redis_server: RedisServer) -> Planted:
    return Planted(redis.Redis.from_url(redis_server.url, decode_responses=True))


def test_published_blocks_get_the_key_of_the_delta(planted: Planted) -> None:
    assert planted.commit(ENTRY, BLOCKS) == ["OK"]
    assert planted.blocks() == BLOCKS
    assert planted.raw.pttl(DELTA) == -1
    assert not planted.raw.exists(APART)


def test_commit_that_is_sent_again_changes_nothing(planted: Planted) -> None:
    planted.commit(ENTRY, BLOCKS)
    assert planted.commit(ENTRY, BLOCKS) == ["ALREADY"]
    assert planted.blocks() == BLOCKS
    assert planted.raw.pttl(DELTA) == -1
    assert not planted.raw.exists(APART)


def test_blocks_of_a_clone_do_not_touch_the_published_ones(planted: Planted) -> None:
    planted.commit(ENTRY, BLOCKS)
    assert planted.commit(OTHER, OTHERS) == ["TAKEN"]
    assert planted.blocks() == BLOCKS
    assert planted.raw.pttl(DELTA) == -1
    assert not planted.raw.exists(APART)


def test_blocks_of_a_segment_set_aside_stay(planted: Planted) -> None:
    planted.commit(ENTRY, BLOCKS)
    planted.raw.hdel(META, "d:1:u1")
    planted.raw.hset(META, mapping={"f": "2", "z:d:1:u1": f"d:1:u1 {ENTRY}", "y:d:1:u1": "fork"})
    assert planted.commit(OTHER, OTHERS, epoch=0)[0] == "FENCED"
    assert planted.blocks() == BLOCKS
    assert not planted.raw.exists(APART)


def test_refused_commit_leaves_no_key(planted: Planted) -> None:
    assert planted.commit(ENTRY, BLOCKS, epoch=0) == ["FENCED", "epoch", "1", "run"]
    assert not planted.raw.exists(DELTA, APART)


def test_blocks_that_a_lost_script_left_are_completed(planted: Planted) -> None:
    """A server that did not know `publish` has kept blocks, here those of a clone with more."""
    planted.raw.hset(APART, mapping={"7": "left"})
    planted.raw.pexpire(APART, DAY_MS)
    assert planted.commit(ENTRY, BLOCKS) == ["INCOMPLETE", "3"]
    assert not planted.raw.exists(DELTA, APART)
    assert planted.commit(ENTRY, BLOCKS) == ["OK"]
    assert planted.blocks() == BLOCKS
