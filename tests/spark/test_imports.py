"""All servers are lost, and the query goes on from what was exported while it ran."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from redis_state import connect
from redis_state.cli.main import main
from tests.spark.streams import Streams
from tests.spark.test_checkpoint_format_2 import format_of
from tests.spark.test_checkpoints import NAME, Job, job, use_server
from tests.spark.test_copies import Joined
from tests.support.redis_server import RedisServer

__all__ = ["job", "use_server"]
pytestmark = pytest.mark.spark


def exported(server: RedisServer, folder: Path, batch: int) -> None:
    with connect(server.url) as reader:
        (info,) = [one for one in reader.queries() if one.gen]
        assert reader.export(info.gen, folder, at=batch).batch == batch


def bring_back(server: RedisServer, folder: Path, checkpoint: Path) -> None:
    given = ["import", str(folder), "--url", server.url, "--checkpoint", str(checkpoint)]
    assert main(given) == 0
    assert main([*given, "--yes", "--force"]) == 0
    assert main(["doctor", "--url", server.url, "--checkpoint", str(checkpoint)]) == 0


@pytest.mark.parametrize("number", ["1", "2"])
def test_query_continues_after_the_exported_batch(
    job: Job, use_server: Callable[..., RedisServer], tmp_path: Path, number: str
) -> None:
    with format_of(job.streams.spark, number):
        checkpoint = job.streams.checkpoint(NAME)
        server = use_server()
        job.feed(6)
        job.run()
        exported(server, tmp_path / "export", 3)
        server.stop()
        empty = use_server()
        bring_back(empty, tmp_path / "export", checkpoint)
        job.output.clear()
        job.feed(1)
        job.run()
        assert min(job.output) == 4
        job.check()
        job.feed(1)
        job.run()
        job.check()


def test_join_continues_after_the_exported_batch(
    streams: Streams, use_server: Callable[..., RedisServer], tmp_path: Path
) -> None:
    """Four stores a partition, which have to be of one version."""
    calm, struck = Joined(streams, "calm"), Joined(streams, "struck")
    with format_of(streams.spark, "2"):
        use_server()
        calm.run(0, 1, 2)
        calm.run(3)
        server = use_server()
        struck.run(0, 1, 2)
        # The batch after it has rows: Spark begins no run with a batch without any.
        exported(server, tmp_path / "export", 1)
        server.stop()
        bring_back(use_server(), tmp_path / "export", streams.checkpoint(struck.name))
        struck.output = {n: rows for n, rows in struck.output.items() if n <= 1}
        struck.run()
        struck.run(3)
    assert struck.output == calm.output
