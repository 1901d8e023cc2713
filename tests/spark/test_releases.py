"""A query goes on from the checkpoint that each release has left behind, with the same output."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from redis_state.cli.main import main
from tests.spark.streams import REDIS, Output, Streams
from tests.spark.test_checkpoint_format_2 import format_of
from tests.spark.test_checkpoints import use_server
from tests.support.redis_server import RedisServer
from tests.support.releases import load, put_files, put_keys, written
from tests.upgrades.job import run

__all__ = ["use_server"]
pytestmark = pytest.mark.spark


@pytest.mark.parametrize("name", written())
def test_query_continues_from_each_release(
    name: str,
    streams: Streams,
    use_server: Callable[..., RedisServer],
    redis_conf: Callable[..., None],
) -> None:
    left = load(name)
    server, checkpoint = use_server(), streams.checkpoint(left["query"])
    put_keys(left["keys"], server)
    put_files(left, checkpoint, folder=streams.folder)
    redis_conf({"onPathChange": "adopt"})
    output: Output = {}
    with format_of(streams.spark, left["format"]):
        run(streams, left["query"], 1, REDIS, output)
    assert {str(n): lines for n, lines in output.items()} == left["later"]
    assert main(["doctor", "--url", server.url, "--checkpoint", str(checkpoint)]) == 0
