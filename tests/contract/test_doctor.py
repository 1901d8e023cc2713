"""`redis-state doctor` and `rewind` on a planted query and a checkpoint folder of Spark's shape."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from redis_state import keys
from redis_state.cli.main import main
from redis_state.cli.maintain import PROBLEMS_STATUS
from tests.contract.planting import Planted, plant_checkpoint, uid
from tests.support.redis_server import RedisServer

UA = {"carrier": "UA"}
VERSIONS = 5


@pytest.fixture
def raw(redis_server: RedisServer) -> redis.Redis:
    return redis_server.client()


@pytest.fixture
def planted(raw: redis.Redis) -> Planted:
    planted = Planted(raw)
    planted.register()
    for version in range(1, VERSIONS + 1):
        planted.commit(version, [(UA, {"count": version, "total": 0.5})])
    return planted


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Batches 0 to 4 are committed, and batch 5 is planned."""
    return plant_checkpoint(tmp_path, batches=VERSIONS)


def run(command: str, server: RedisServer, checkpoint: Path, *arguments: str) -> int:
    return main([command, "--url", server.url, "--checkpoint", str(checkpoint), *arguments])


def lose(planted: Planted, version: int) -> None:
    partition = planted.partition(UA)
    planted.client.unlink(keys.segment(planted.id(partition), f"d:{version}:{uid(version)}"))


@pytest.mark.usefixtures("planted")
def test_a_healthy_checkpoint(
    redis_server: RedisServer, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("doctor", redis_server, checkpoint) == 0
    told = capsys.readouterr().out
    assert told.startswith("operator 0, store default\n  partition 0: versions 1 to 5; newest 5")
    assert "Batch 4 is the newest of the commit log, and all partitions serve it." in told


def test_a_lost_version_names_the_way_back(
    redis_server: RedisServer,
    checkpoint: Path,
    planted: Planted,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lose(planted, 4)
    assert run("doctor", redis_server, checkpoint) == PROBLEMS_STATUS
    told = capsys.readouterr().out
    assert f"versions 1 to 3; newest 5, opened 5; not whole: d:4:{uid(4)}" in told
    assert "batch 2 is the newest that all partitions serve" in told
    assert f"redis-state rewind --checkpoint {checkpoint} --to-batch 2" in told


def test_a_rewind_is_told_first_and_moves_what_is_newer(
    redis_server: RedisServer,
    checkpoint: Path,
    planted: Planted,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lose(planted, 4)
    before = sorted(checkpoint.rglob("*"))
    assert run("rewind", redis_server, checkpoint, "--to-batch", "2") == 0
    assert "commits/4 -> rewound-to-2.1/commits/4" in capsys.readouterr().out
    assert sorted(checkpoint.rglob("*")) == before
    assert run("rewind", redis_server, checkpoint, "--to-batch", "2", "--yes") == 0
    assert "10 files were moved" in capsys.readouterr().out
    for log in ("offsets", "commits"):
        left = sorted(path.name for path in (checkpoint / log).iterdir())
        assert left == [".0.crc", ".1.crc", ".2.crc", "0", "1", "2"]
        assert (checkpoint / "rewound-to-2.1" / log / "4").read_text() == "v1\n4"
    assert run("doctor", redis_server, checkpoint) == 0


@pytest.mark.parametrize(
    ("batch", "said"),
    [("4", "The newest that all of them serve is batch 2"), ("9", "it has 0 to 4")],
)
def test_a_batch_that_cannot_be_served_is_refused(
    redis_server: RedisServer,
    checkpoint: Path,
    planted: Planted,
    batch: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lose(planted, 4)
    before = sorted(checkpoint.rglob("*"))
    assert run("rewind", redis_server, checkpoint, "--to-batch", batch, "--yes") == 1
    assert said in capsys.readouterr().err
    assert sorted(checkpoint.rglob("*")) == before


def test_nothing_left(
    redis_server: RedisServer,
    checkpoint: Path,
    planted: Planted,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for partition in range(planted.partitions):
        planted.client.unlink(keys.meta(planted.id(partition)))
    assert run("doctor", redis_server, checkpoint) == PROBLEMS_STATUS
    told = capsys.readouterr().out
    assert "it has no manifest" in told
    assert "No batch is served by all partitions" in told
    planted.client.flushdb()
    assert run("doctor", redis_server, checkpoint) == PROBLEMS_STATUS
    assert "Redis has no stateful operator of this checkpoint" in capsys.readouterr().out


def test_a_damaged_manifest_and_a_folder_that_is_no_checkpoint(
    redis_server: RedisServer,
    checkpoint: Path,
    planted: Planted,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    planted.client.hset(keys.meta(planted.id(0)), f"d:3:{uid(3)}", "no entry")
    assert run("doctor", redis_server, checkpoint) == PROBLEMS_STATUS
    assert "partition 0: its manifest is damaged" in capsys.readouterr().out
    assert run("doctor", redis_server, tmp_path) == 1
    assert "MARKER_MISSING" in capsys.readouterr().err
