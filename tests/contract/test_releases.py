"""Python reads the state that each release has left behind (docs/compatibility.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from redis_state import connect
from redis_state.cli.main import main
from tests.support.redis_server import RedisServer
from tests.support.releases import load, put_files, put_keys, rows_of, written


@pytest.mark.parametrize("name", written())
def test_state_of_each_release_is_readable(
    name: str, redis_server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = load(name)
    put_keys(left["keys"], redis_server)
    put_files(left, tmp_path)
    with connect(redis_server.url) as reader:
        assert rows_of(reader, left["gen"]) == left["rows"]
    assert any(left["rows"].values())
    # The folder was made under another path.
    place = ["--url", redis_server.url, "--checkpoint", str(tmp_path), "--gen", left["gen"]]
    assert main(["doctor", *place]) == 0
    assert "all partitions can serve it" in capsys.readouterr().out
    assert main(["maintain", "--url", redis_server.url, "--once", "--deep"]) == 0
    with connect(redis_server.url) as reader:
        assert rows_of(reader, left["gen"]) == left["rows"]


def test_each_kind_of_state_is_captured() -> None:
    names = {name.split("/")[1] for name in written()}
    assert names >= {
        "aggregation",
        "aggregation-in-format-2",
        "full-outer-join-in-format-2",
        "processor",
    }
