"""`redis-state doctor` and `rewind` on a planted query and a checkpoint folder of Spark's shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis

from redis_state import keys
from redis_state.cli.main import main
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from tests.contract.planting import GEN, Planted, plant_checkpoint, uid
from tests.contract.store_support import new_providers
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
def test_healthy_checkpoint_passes(
    redis_server: RedisServer, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("doctor", redis_server, checkpoint) == 0
    told = capsys.readouterr().out
    assert told.startswith("operator 0, store default\n  partition 0: versions 1 to 5; newest 5")
    assert "Batch 4 is the newest in the commit log, and all partitions can serve it." in told


def test_lost_version_advises_a_rewind(
    redis_server: RedisServer,
    checkpoint: Path,
    planted: Planted,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lose(planted, 4)
    assert run("doctor", redis_server, checkpoint) == PROBLEMS_STATUS
    told = capsys.readouterr().out
    assert f"versions 1 to 3; newest 5, opened 5; not whole: d:4:{uid(4)}" in told
    assert "batch 2 is the newest that all partitions can serve" in told
    assert f"redis-state rewind --checkpoint {checkpoint} --to-batch 2" in told


def test_rewind_prints_its_plan_and_moves_newer_files(
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
    [("4", "The newest batch that all partitions can serve is 2"), ("9", "they have 0 to 4")],
)
def test_rewind_to_a_missing_batch_is_refused(
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


def test_lost_state_reports_that_no_batch_is_served(
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
    assert "No batch can be served by all partitions" in told
    planted.client.flushdb()
    assert run("doctor", redis_server, checkpoint) == PROBLEMS_STATUS
    told = capsys.readouterr().out
    assert told.startswith(f"Redis has nothing of this checkpoint ({GEN}).")
    assert "The commit log ends with batch 4, so the state was there." in told
    assert "1. Check server, database and key prefix. The checkpoints of this server:\n" in told
    assert f"redis-state queries --url {redis_server.url}\n" in told
    assert "2. If Redis has a backup of its own" in told
    assert "3. Otherwise the state is gone: start the query with a new checkpoint." in told


def test_damaged_manifest_and_foreign_folder_are_reported(
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


@pytest.mark.parametrize("command", [["doctor"], ["rewind", "--to-batch", "2"], ["restore"]])
def test_missing_folder_and_missing_marker_have_different_errors(
    redis_server: RedisServer,
    checkpoint: Path,
    command: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, *more = command
    assert run(name, redis_server, checkpoint.parent / "none", *more) == 1
    told = capsys.readouterr().err
    assert "[REDIS_CONFIG]" in told
    assert "there is no such folder on this machine" in told
    assert run(name, redis_server, checkpoint.parent, *more) == 1
    assert "Spark has written no query into it" in capsys.readouterr().err
    (checkpoint / "state" / "_redis_state").unlink()
    assert run(name, redis_server, checkpoint, *more) == 1
    told = capsys.readouterr().err
    assert "[REDIS_MARKER_MISSING]" in told
    assert "state/_redis_state is missing" in told
    assert "--gen" in told


@pytest.mark.usefixtures("planted")
def test_advised_gen_option_works(
    redis_server: RedisServer, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / "state" / "_redis_state").unlink()
    assert run("doctor", redis_server, checkpoint, "--gen", GEN) == 0
    assert run("rewind", redis_server, checkpoint, "--gen", GEN, "--to-batch", "2", "--yes") == 0
    assert "10 files were moved" in capsys.readouterr().out
    assert main(["doctor", "--url", redis_server.url, "--gen", GEN]) == 0
    assert "Batch 4 is the newest that all partitions can serve." in capsys.readouterr().out
    assert main(["doctor", "--url", redis_server.url, "--gen", "no id"]) == 1
    assert "32 lower-case hexadecimal digits" in capsys.readouterr().err
    assert main(["doctor", "--url", redis_server.url]) == 1
    assert "Give its folder with --checkpoint, its id with --gen" in capsys.readouterr().err


def test_an_older_checkpoint_of_the_same_folder_is_named(
    redis_server: RedisServer,
    checkpoint: Path,
    planted: Planted,
    raw: redis.Redis,
    capsys: pytest.CaptureFixture[str],
) -> None:
    older, other = "1" * 32, "2" * 32
    entry = {"path": "00", "id": "x", "name": "flights", "created": 1, "seen": 1}
    raw.hset(keys.checkpoints(), older, json.dumps(entry))
    raw.hset(keys.checkpoints(), other, json.dumps({**entry, "path": "11"}))
    assert run("doctor", redis_server, checkpoint) == 0
    told = capsys.readouterr().out
    assert f"Redis also holds an older checkpoint of this folder, {older}" in told
    assert f"redis-state purge --gen {older} --url {redis_server.url}" in told
    assert other not in told
    assert main(["queries", "--url", redis_server.url]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["gen"]: line.get("replaced_by") for line in lines} == {
        planted.gen: None,
        older: planted.gen,
        other: None,
    }


@pytest.mark.usefixtures("planted")
def test_replaced_checkpoint_names_its_successor(
    redis_server: RedisServer, raw: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    own = json.loads(raw.hget(keys.checkpoints(), GEN) or "")
    newer = "3" * 32
    raw.hset(keys.checkpoints(), newer, json.dumps({**own, "seen": own["seen"] + 1}))
    assert main(["doctor", "--url", redis_server.url, "--gen", GEN]) == 0
    told = capsys.readouterr().out
    assert f"now has checkpoint {newer}" in told
    assert f"redis-state purge --gen {GEN}" in told
    assert f"--gen {newer}" not in told


@pytest.mark.usefixtures("planted")
def test_partitions_are_found_without_the_query_hash(
    redis_server: RedisServer,
    raw: redis.Redis,
    checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The hash has another node in a cluster and may be lost alone; the next start writes it."""
    raw.delete(keys.query(GEN))
    assert run("doctor", redis_server, checkpoint) == 0
    assert "all partitions can serve it" in capsys.readouterr().out
    assert run("rewind", redis_server, checkpoint, "--to-batch", "2") == 0


@pytest.mark.usefixtures("planted")
def test_rewind_to_the_oldest_logged_batch_is_refused(
    redis_server: RedisServer, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark reads the plan of the batch before it, too, when it starts."""
    for log in ("offsets", "commits"):
        (checkpoint / log / "0").unlink()
    assert run("rewind", redis_server, checkpoint, "--to-batch", "1", "--yes") == 1
    assert "(they have 2 to 4)" in capsys.readouterr().err
    assert run("rewind", redis_server, checkpoint, "--to-batch", "2", "--yes") == 0


def test_rewind_of_a_single_store_names_the_way(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with new_providers(redis_server.url) as new:
        new(name="alone").get_store(0).commit()
    assert main(["rewind", "alone", "--to-batch", "0", "--url", redis_server.url]) == 1
    assert "it is a single store, whose versions are not batches" in capsys.readouterr().err
