"""Parents and forks that are set back behind the batch at which the fork began."""

from __future__ import annotations

from pathlib import Path

import pytest

from redis_state.cli.main import main
from redis_state.live import Reader
from redis_state.maintain.checkpoint import maintain_checkpoint
from redis_state.maintain.report import Policy
from tests.spark.streams import Streams
from tests.spark.test_forks import CASES, Story, by_format, feed, gen_of, reader
from tests.support.redis_server import RedisServer

__all__ = ["by_format", "reader"]
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

AT = 5
COMMON = range(AT + 1)
BACK = 2


def rewind(server: RedisServer, story: Story, batch: int) -> int:
    place = ["--url", server.url, "--checkpoint", str(story.folder)]
    return main(["rewind", *place, "--to-batch", str(batch), "--yes", "--force"])


def delete_logs(folder: Path, *, behind: int) -> None:
    for log in ("offsets", "commits"):
        for path in (folder / log).iterdir():
            number = path.name.removeprefix(".").removesuffix(".crc")
            if number.isdecimal() and int(number) > behind:
                path.unlink()


@pytest.mark.usefixtures("by_format")
@pytest.mark.parametrize("how", ["command", "deleted logs"])
@pytest.mark.parametrize("which", ["aggregation", "stream-stream join"])
def test_fork_keeps_the_rows_of_a_parent_that_went_back(
    streams: Streams, reader: Reader, shared_redis_server: RedisServer, which: str, how: str
) -> None:
    """The parent runs the batches behind its new end again, with other rows in each."""
    case = CASES[which]
    feed(streams, "common", 1, COMMON, case.inputs)
    parent = Story(streams, case, "parent", ("common", "of-parent"))
    parent.run()
    forked, _ = parent.fork("fork", "common", "of-fork", at_batch=AT)
    began = forked.state(reader)
    if how == "command":
        assert rewind(shared_redis_server, parent, BACK) == 0
    else:
        delete_logs(parent.folder, behind=BACK)
    for number in range(AT + 1, AT + 12, 5):
        feed(streams, "of-parent", 2, range(number, number + 5), case.inputs)
        parent.run()
        maintain_checkpoint(reader.client, gen_of(parent.folder), policy=Policy("test"))
    assert parent.state(reader) != began
    assert forked.state(reader) == began

    feed(streams, "of-fork", 3, range(AT + 1, AT + 4), case.inputs)
    forked.run()
    alone = Story(streams, case, "alone", forked.feeds)
    alone.run()
    assert forked.output == alone.behind(AT)
    assert any(forked.output.values())
    assert forked.state(reader) == alone.state(reader)


@pytest.mark.usefixtures("by_format")
def test_fork_goes_back_to_its_first_batch_and_no_further(
    streams: Streams,
    reader: Reader,
    shared_redis_server: RedisServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = CASES["aggregation"]
    feed(streams, "common", 1, COMMON)
    parent = Story(streams, case, "parent", ("common",))
    parent.run()
    forked, _ = parent.fork("fork", "common", "of-fork")
    began = forked.state(reader)
    feed(streams, "of-fork", 3, [AT + 1, AT + 2])
    forked.run()
    assert rewind(shared_redis_server, forked, AT - 1) != 0
    assert f"(they have {AT} to {AT + 2})" in capsys.readouterr().err
    assert rewind(shared_redis_server, forked, AT) == 0
    feed(streams, "of-fork", 3, [AT + 3])
    forked.run()
    alone = Story(streams, case, "alone", forked.feeds)
    alone.run()
    assert forked.state(reader) == alone.state(reader) != began

    delete_logs(forked.folder, behind=AT - 1)
    before = forked.state(reader)
    with pytest.raises(Exception, match=f"batch {AT - 2} doesn't exist"):
        forked.run()
    assert forked.state(reader) == before
    assert parent.state(reader) == began
