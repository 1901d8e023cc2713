"""Plants when a checkpoint was used and looked at, as docs/format.md says."""

from __future__ import annotations

import json

import redis

from redis_state import keys
from tests.contract.planting import Planted

MINUTE_MS = 60_000
DAY_MS = 86_400_000


def now_ms(raw: redis.Redis) -> int:
    """Returns the time of the server's clock."""
    seconds, micros = raw.time()
    return int(seconds) * 1000 + int(micros) // 1000


def written(raw: redis.Redis, planted: Planted, at_ms: int) -> None:
    """All partitions say that they were written then."""
    for partition in range(planted.partitions):
        raw.hset(keys.meta(planted.id(partition)), "t", str(at_ms))


def written_long_ago(raw: redis.Redis, planted: Planted) -> None:
    written(raw, planted, now_ms(raw) - 1000 * DAY_MS)


def looked_earlier(raw: redis.Redis, *, minutes: int) -> None:
    """Moves the notes of earlier polls back by that many minutes."""
    for gen, note in raw.hgetall("{rs}:v").items():
        found = json.loads(note)
        raw.hset("{rs}:v", gen, json.dumps(found | {"at": found["at"] - minutes * MINUTE_MS}))
