"""Copies of the state in the checkpoint: all servers are lost, and the query goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import redis_state
from redis_state.cli.main import main
from redis_state.files import folder_at
from redis_state.recovery.copies import copies_of, read_copy
from redis_state.recovery.copies.files import FOLDER, version_of
from tests.spark.streams import Output, Streams
from tests.spark.test_checkpoint_format_2 import format_of
from tests.spark.test_checkpoints import NAME, Job, failure, job, use_server
from tests.spark.test_operators import EVENTS, joined, two_inputs
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

__all__ = ["job", "use_server"]
pytestmark = pytest.mark.spark

EVERY = 2
KEPT = 2


@pytest.fixture
def copying(redis_conf: Callable[..., None]) -> None:
    redis_conf({"copyEveryBatches": str(EVERY)})


def versions(checkpoint: Path) -> list[int]:
    return [version_of(folder) for folder in copies_of(folder_at(str(checkpoint)))]


def wait_for_copy(checkpoint: Path, version: int) -> None:
    """The newest one is finished when the query has ended, and older ones are gone."""
    folder = checkpoint / FOLDER

    def is_there() -> bool:
        newest = versions(checkpoint)[:1] == [version]
        return newest and len(list(folder.iterdir())) == len(versions(checkpoint)) <= KEPT

    wait_until(is_there, f"a copy of version {version}")


def told_of(server: RedisServer) -> tuple[int, int]:
    """Interval of copies, and the newest copied version, as Redis has them."""
    with redis_state.connect(server.url) as reader:
        (found,) = reader.status()
        return found.copy_every, found.copied_version


def restore(server: RedisServer, checkpoint: Path) -> None:
    place = ["--url", server.url, "--checkpoint", str(checkpoint)]
    assert main(["restore", *place]) == 0
    with server.client() as client:
        assert not client.keys("*}:m")
    # The start that failed is younger than three minutes.
    assert main(["restore", *place, "--yes", "--force"]) == 0
    assert main(["doctor", *place]) == 0


@pytest.mark.parametrize(("number", "is_bounded"), [("1", False), ("2", True)])
def test_state_survives_the_loss_of_its_server(
    job: Job,
    use_server: Callable[..., RedisServer],
    redis_conf: Callable[..., None],
    tmp_path: Path,
    number: str,
    *,
    is_bounded: bool,
) -> None:
    folder = tmp_path / "segments"
    bounds = {"redisMemory": "64m", "placesFolder": f"file:{folder}"} if is_bounded else {}
    redis_conf({"copyEveryBatches": str(EVERY)} | bounds)
    with format_of(job.streams.spark, number):
        checkpoint = job.streams.checkpoint(NAME)
        server = use_server()
        job.feed(6)
        job.run()
        wait_for_copy(checkpoint, 4)
        wait_until(lambda: told_of(server) == (EVERY, 4), "the copy to be told of")
        server.stop()
        empty = use_server()
        job.feed(1)
        assert "REDIS_STATE_LOST" in failure(job.run)
        if is_bounded:
            # No segment has left Redis yet, so nobody has made the folder.
            (folder / "other").mkdir(parents=True)
        restore(empty, checkpoint)
        assert bool(list(folder.rglob("*.seg"))) == is_bounded
        with empty.client() as client:
            assert not client.keys("*}:[ds]:*")
        job.output.clear()
        job.run()
        assert min(job.output) == 4
        job.check()
        job.feed(2)
        job.run()
        job.check()
        wait_for_copy(checkpoint, 6)


@pytest.mark.usefixtures("copying")
@pytest.mark.parametrize("number", ["1", "2"])
def test_copy_of_a_fork_needs_no_parent(
    job: Job, use_server: Callable[..., RedisServer], number: str
) -> None:
    """The copy also has the segments that the fork reads from its parent."""
    with format_of(job.streams.spark, number):
        server = use_server()
        job.feed(4)
        job.run()
        parent, folder = (job.streams.checkpoint(name) for name in (NAME, "forked"))
        made = redis_state.fork(server.url, str(parent), to=str(folder), at_batch=2)
        job.feed(3)
        job.run("forked")
        job.check()
        with redis_state.connect(server.url) as reader:
            assert reader.query(made.gen).status().foreign_bytes > 0
        wait_for_copy(folder, 6)
        server.stop()
        restore(use_server(), folder)
        job.output.clear()
        job.run("forked")
        assert min(job.output) == 6
        job.check()


@pytest.mark.usefixtures("copying")
def test_join_continues_after_the_loss_of_its_server(
    streams: Streams, use_server: Callable[..., RedisServer]
) -> None:
    """Four stores a partition, which have to be of one version."""
    calm, struck = Joined(streams, "calm"), Joined(streams, "struck")
    with format_of(streams.spark, "2"):
        server = use_server()
        for query in (calm, struck):
            query.run(0, 1, 2)
        checkpoint = streams.checkpoint(struck.name)
        wait_for_copy(checkpoint, max(struck.output) // EVERY * EVERY)
        copy = read_copy(copies_of(folder_at(str(checkpoint)))[0])
        assert len({part.store for part in copy.parts}) == 4
        calm.run(3)
        server.stop()
        restore(use_server(), checkpoint)
        struck.output = {n: rows for n, rows in struck.output.items() if n <= copy.batch}
        struck.run()
        struck.run(3)
    assert struck.output == calm.output


class Joined:
    """A full outer join and what it gave out."""

    def __init__(self, streams: Streams, name: str) -> None:
        self.name = name
        self.output: Output = {}
        self._streams = streams
        self._inputs = [streams.input(f"{name}{side}", EVENTS) for side in "lr"]

    def run(self, *batches: int) -> None:
        for number in batches:
            for source, rows in zip(self._inputs, two_inputs(6)[number], strict=True):
                source.add(rows)
        frame = joined([one.stream(self._streams.spark) for one in self._inputs], "full_outer")
        self._streams.run(frame, self.name, mode="append", output=self.output)


@pytest.mark.usefixtures("copying")
def test_rewound_query_makes_its_own_copies(job: Job) -> None:
    job.feed(6)
    job.run()
    checkpoint = job.streams.checkpoint(NAME)
    wait_for_copy(checkpoint, 4)
    (abandoned, *_) = copies_of(folder_at(str(checkpoint)))
    job.rewind_to(1)
    job.output.clear()
    job.run()  # The file source gives out in one batch what it had seen before.
    job.feed(2)
    job.run()
    wait_until(
        lambda: not Path(abandoned.path).exists(), "the copy of the abandoned timeline to go"
    )
    wait_for_copy(checkpoint, 4)
    job.check()


@pytest.mark.usefixtures("copying")
def test_failed_copy_fails_no_batch(job: Job) -> None:
    checkpoint = job.streams.checkpoint(NAME)
    job.feed(1)
    job.run()
    (checkpoint / FOLDER).write_text("where copies would go")
    job.feed(3)
    job.run()
    job.check()
    (checkpoint / FOLDER).unlink()
    job.feed(1)
    job.run()
    wait_for_copy(checkpoint, 4)
    job.check()


def test_without_the_option_nothing_is_copied(job: Job) -> None:
    job.feed(3)
    job.run()
    assert not (job.streams.checkpoint(NAME) / FOLDER).exists()
