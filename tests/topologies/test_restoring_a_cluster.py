"""`redis-state restore` where one shard, or each, has lost what it held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_state import keys
from redis_state.cli.main import main
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from tests.contract.copying import plant_copy
from tests.contract.planting import Planted, plant_checkpoint
from tests.support.redis_cluster import RedisCluster

PARTITIONS = 8
VERSIONS = 5
COPIED = 4


@pytest.fixture
def planted(cluster: RedisCluster) -> Iterator[Planted]:
    library: Any = redis.RedisCluster(host="127.0.0.1", port=cluster.masters[0].port)
    with library:
        planted = Planted(library, partitions=PARTITIONS)
        planted.register()
        for version in range(1, VERSIONS + 1):
            rows = [({"carrier": f"c{n}"}, {"count": version, "total": 0.5}) for n in range(40)]
            planted.commit(version, rows)
        yield planted


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1)])
def test_state_lost_by_shards_is_restored(
    lost: Sequence[int],
    cluster: RedisCluster,
    planted: Planted,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    checkpoint = plant_checkpoint(tmp_path, batches=VERSIONS)
    plant_copy(planted, checkpoint, COPIED)
    place = ["--url", cluster.url, "--checkpoint", str(checkpoint)]
    owners = [cluster.owner_of(keys.meta(planted.id(n))) for n in range(PARTITIONS)]
    assert set(owners) == {0, 1}
    missing = [n for n in range(PARTITIONS) if owners[n] in lost]
    before = [segments(planted, n) for n in range(PARTITIONS)]
    for number in lost:
        with cluster.masters[number].client() as client:
            client.flushall()
    assert main(["doctor", *place]) == PROBLEMS_STATUS
    assert main(["restore", "--yes", *place]) == 0
    told = capsys.readouterr().out
    assert f"{len(missing)} partitions were restored" in told
    assert f"batch {COPIED - 1} is the newest now" in told
    there = PARTITIONS - len(missing)
    assert (f"{there} partitions already have this version" in told) == bool(there)
    for number, wanted in enumerate(before):
        if number in missing:
            wanted = {key: rows for key, rows in wanted.items() if f"}}:d:{VERSIONS}:" not in key}
        assert segments(planted, number) == wanted
    assert main(["doctor", *place]) == 0


def segments(planted: Planted, partition: int) -> dict[str, dict[bytes, bytes]]:
    """Content of a partition's segments."""
    client: Any = planted.client
    meta = keys.meta(planted.id(partition))
    named = [field.decode() for field in client.hkeys(meta) if field[:2] == b"d:"]
    found = [keys.segment(planted.id(partition), ident) for ident in named]
    return {key: client.hgetall(key) for key in found}
