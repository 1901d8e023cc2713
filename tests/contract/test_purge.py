"""Immediate purges, judged by raw Redis; the data comes from the vectors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.ids import PartitionId, StoreId
from redis_state.maintain.purge import purge
from tests.support.redis_server import RedisServer

GEN = "0123456789abcdef0123456789abcdef"
OTHER = "fedcba9876543210fedcba9876543210"
HASH = "37a8eec1ce19687d"
SEGMENTS = json.loads((Path(__file__).parents[1] / "vectors" / "segments.json").read_text("utf-8"))[
    "good"
]


@pytest.fixture
def raw(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


def _plant(raw: redis.Redis, gen: str, *, tenant: str = "", partitions: int = 3) -> None:
    operator = {"operator": "", "partitions": partitions, "families": []}
    query = f"{{{tenant}rs:{gen}}}:q"
    raw.hset(query, mapping={"f": "1", "op:0:default": json.dumps(operator)})
    raw.hset(
        f"{{{tenant}rs}}:c", gen, json.dumps({"id": "i", "name": gen, "created": 1, "seen": 2})
    )
    raw.hset(f"{{{tenant}rs}}:c", f"{gen}:0:default", str(partitions))
    raw.set(f"{{{tenant}rs:{gen}}}:i:0:0:{HASH}", "{}")
    for partition in range(partitions):
        tag = f"{{{tenant}rs:{gen}:0:{partition}:{HASH}}}"
        for case in SEGMENTS:
            raw.hset(f"{tag}:m", case["field"], case["entry"])
            if case["fields"]:
                fields: dict[str, Any] = {
                    name: bytes.fromhex(block) for name, block in case["fields"].items()
                }
                raw.hset(f"{tag}:{case['ident']}", mapping=fields)  # type: ignore[arg-type]  # its stub


def _strays(raw: redis.Redis, gen: str) -> None:
    """Staged by a lost attempt or snapshot, of an unknown store, and in a damaged manifest."""
    raw.hset(f"{{rs:{gen}:0:0:{HASH}}}:d:99:lost", "0", b"x")
    raw.hset(f"{{rs:{gen}:7:0:{HASH}}}:s:3:w", "0", b"x")
    raw.hset(f"{{rs:{gen}:0:0:{HASH}}}:n:s:3:w", "0", b"x")
    raw.hset(f"{{rs:{gen}:0:1:{HASH}}}:m", "d:nonsense", "x")


def _keys(raw: redis.Redis) -> set[bytes]:
    return set(raw.scan_iter(count=1000))


def _call(server: RedisServer, *arguments: str) -> int:
    return main(["purge", "--url", server.url, *arguments])


def _purge(server: RedisServer, *arguments: str) -> int:
    """Purges at once, although the planted instance says that the query runs."""
    return _call(server, *arguments, "--yes", "--now", "--force")


def test_no_key_of_the_checkpoint_is_left_and_no_other_is_touched(
    redis_server: RedisServer, raw: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    _plant(raw, OTHER)
    _plant(raw, GEN, tenant="team:")
    raw.set(f"{{rs:{GEN}}}:other", "of somebody else")
    raw.set(f"{{rs:{GEN}x}}:q", "of somebody else")
    before, listed = _keys(raw), raw.hgetall("{rs}:c")
    _plant(raw, GEN)
    _strays(raw, GEN)
    own = len(_keys(raw)) - len(before)
    assert _purge(redis_server, "--gen", GEN) == 0
    assert f"removed {own} keys (3 partitions," in capsys.readouterr().out
    assert _keys(raw) == before
    assert raw.hgetall("{rs}:c") == listed


def test_key_prefix_purges_its_tenant(redis_server: RedisServer, raw: redis.Redis) -> None:
    _plant(raw, GEN)
    before = _keys(raw)
    _plant(raw, GEN, tenant="team:")
    assert _purge(redis_server, "--gen", GEN, "--key-prefix", "team") == 0
    assert _keys(raw) == before


def test_a_dry_run_counts_and_changes_nothing(
    redis_server: RedisServer, raw: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    _plant(raw, GEN)
    _strays(raw, GEN)
    before = _keys(raw)
    assert _call(redis_server, "--gen", GEN, "--dry-run") == 0
    caught = capsys.readouterr()
    assert f"would remove {len(before) - 1} keys" in caught.out
    assert "its users are unknown" in caught.err
    assert _keys(raw) == before


def test_scan_finds_all_keys_without_a_registry(
    redis_server: RedisServer, raw: redis.Redis
) -> None:
    _plant(raw, GEN)
    raw.delete(f"{{rs:{GEN}}}:q")
    assert _purge(redis_server, "--gen", GEN) == 0
    assert _keys(raw) == set()


def test_damaged_registry_does_not_stop_the_purge(
    redis_server: RedisServer, raw: redis.Redis
) -> None:
    _plant(raw, GEN)
    raw.hset(f"{{rs:{GEN}}}:q", "op:0:default", "{")
    assert _purge(redis_server, "--gen", GEN) == 0
    assert _keys(raw) == set()


def test_purge_without_a_terminal_requires_yes(
    redis_server: RedisServer, raw: redis.Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    _plant(raw, GEN)
    before = _keys(raw)
    assert _call(redis_server, "--gen", GEN) == 1
    assert "--yes" in capsys.readouterr().err
    assert _keys(raw) == before


def _checkpoint(
    folder: Path, gen: str, *, path: Path | None = None, file: str = "_redis_state"
) -> Path:
    state = folder / "state"
    state.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(f"file:{path or folder}/state".encode()).hexdigest()
    marker = {"format": 1, "gen": gen, "path": digest}
    (state / file).write_text(json.dumps(marker), "utf-8")
    return folder


def test_marker_identifies_the_purged_checkpoint(
    redis_server: RedisServer, raw: redis.Redis, tmp_path: Path
) -> None:
    _plant(raw, GEN)
    folder = _checkpoint(tmp_path / "checkpoint", GEN)
    assert _purge(redis_server, "--checkpoint", f"file://{folder}") == 0
    assert _keys(raw) == set()


def test_purge_of_a_copied_checkpoint_keeps_the_original(
    redis_server: RedisServer,
    raw: redis.Redis,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _plant(raw, GEN)
    before = _keys(raw)
    folder = _checkpoint(tmp_path / "copy", GEN, path=tmp_path / "original")
    assert _call(redis_server, "--checkpoint", str(folder), "--yes") == 1
    assert "CHECKPOINT_MOVED_OR_COPIED" in capsys.readouterr().err
    assert _keys(raw) == before


def test_the_last_adoption_of_a_moved_checkpoint_counts(
    redis_server: RedisServer,
    raw: redis.Redis,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _plant(raw, GEN)
    before = _keys(raw)
    folder = _checkpoint(tmp_path / "now", GEN, path=tmp_path / "original")
    _checkpoint(folder, GEN, path=tmp_path / "now", file="_redis_state.1")
    _checkpoint(folder, GEN, path=tmp_path / "later", file="_redis_state.2")
    assert _call(redis_server, "--checkpoint", str(folder), "--yes") == 1
    assert "CHECKPOINT_MOVED_OR_COPIED" in capsys.readouterr().err
    _checkpoint(folder, "0" * 32, file="_redis_state.2")
    assert _call(redis_server, "--checkpoint", str(folder), "--yes") == 1
    assert "two checkpoints" in capsys.readouterr().err
    assert _keys(raw) == before
    _checkpoint(folder, GEN, file="_redis_state.2")
    assert _call(redis_server, "--checkpoint", str(folder), "--yes", "--now", "--force") == 0
    assert _keys(raw) == set()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (None, "MARKER_MISSING"),
        ("", "FORMAT"),
        ("[]", "FORMAT"),
        ('{"format": 2, "gen": "x", "path": "y"}', "FORMAT"),
        ('{"format": 1, "gen": "../..", "path": "y"}', "FORMAT"),
    ],
)
def test_a_wrong_marker_is_refused(
    redis_server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    kind: str,
) -> None:
    (tmp_path / "state").mkdir()
    if content is not None:
        (tmp_path / "state" / "_redis_state").write_text(content, "utf-8")
    assert _call(redis_server, "--checkpoint", str(tmp_path), "--yes") == 1
    assert f"[REDIS_{kind}]" in capsys.readouterr().err


def test_malformed_id_is_refused(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _call(redis_server, "--gen", "*", "--yes") == 1
    assert "[REDIS_CONFIG]" in capsys.readouterr().err


@pytest.mark.parametrize("how", [["--yes"], ["--yes", "--now"], ["--dry-run"], ["--recall"]])
def test_unknown_id_raises_not_found(
    redis_server: RedisServer,
    raw: redis.Redis,
    capsys: pytest.CaptureFixture[str],
    how: list[str],
) -> None:
    _plant(raw, OTHER)
    before = _keys(raw)
    assert _call(redis_server, "--gen", GEN, *how) == 1
    told = capsys.readouterr().err
    assert "[REDIS_NOT_FOUND]" in told
    assert GEN in told
    assert _keys(raw) == before


def test_server_restart_during_the_scan_starts_it_again(
    redis_server: RedisServer, raw: redis.Redis
) -> None:
    """The restarted server orders its keys anew, so the old cursor would skip some of them."""
    names = [keys.meta(PartitionId(StoreId(GEN, 0), number)) for number in range(5_000)]
    raw.config_set("appendonly", "yes")
    raw.mset(dict.fromkeys(names, "x"))
    began: list[str] = []

    def progress(what: str, _done: int, _total: int) -> None:
        began.append(what)
        if len(began) == 2:
            redis_server.shutdown()
            redis_server.restart(appendonly="yes")

    client = Client(config.parse({"url": redis_server.url, "deadline": "30s"}))
    purge(client, GEN, progress=progress)
    client.close()
    assert raw.keys("*") == []
