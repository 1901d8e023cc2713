"""Advice that queries and `doctor` print is carried out, and the query continues."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
import redis
from pyspark.sql import DataFrame

import redis_state
from redis_state import config as options_table
from redis_state import keys
from redis_state.backend.client import Client
from redis_state.cli.arguments.profile import URL_VARIABLE
from redis_state.cli.main import main
from redis_state.errors import StateError
from redis_state.maintain.recall import expire
from redis_state.protocol import checkpoint_gen
from tests.contract.query_scene import commands_in, follow
from tests.spark.streams import Streams
from tests.spark.test_checkpoints import NAME, Job, failure, job, use_server
from tests.spark.test_copies import copying, wait_for_copy
from tests.support.redis_server import RedisServer

__all__ = ["copying", "job", "use_server"]
pytestmark = pytest.mark.spark

IN = "k string, v long"
OUT = "k string, total long"
BATCHES = 5
ENDS = 7


def carried_out(text: str) -> list[str]:
    """The names of the commands in a message, each of which ended well."""
    found = commands_in(text)
    for command in found:
        status = follow(command)
        # `doctor` has steps to print.
        assert status == (4 if command[0] == "doctor" else 0), command
    return [command[0] for command in found]


def test_purged_query_runs_after_the_printed_recall(
    job: Job, use_server: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = use_server()
    monkeypatch.setenv(URL_VARIABLE, server.url)
    job.feed(3)
    job.run()
    with redis_state.connect(server.url) as reader:
        (info,) = reader.queries()
    assert main(["purge", "--gen", info.gen, "--yes", "--force"]) == 0
    client = server.client()
    query = keys.query(info.gen)
    before = client.hgetall(query)
    job.feed(1)
    said = failure(job.run)
    assert "[REDIS_STATE_LOST]" in said
    # Neither driver nor tasks have renewed or listed it.
    assert client.hgetall(query) == before
    assert client.pttl(query) > 0
    assert not client.hgetall(keys.checkpoints())
    commands = {tuple(command) for command in commands_in(said)}
    assert commands == {("purge", "--gen", info.gen, "--recall")}
    assert main(list(commands.pop())) == 0
    job.run()
    job.check()


@pytest.mark.usefixtures("copying")
def test_printed_commands_restore_lost_state(
    job: Job, use_server: Callable[..., RedisServer]
) -> None:
    server = use_server()
    job.feed(6)
    job.run()
    wait_for_copy(job.streams.checkpoint(NAME), 4)
    server.stop()
    use_server()
    job.feed(1)
    said = failure(job.run)
    first, second = list(dict.fromkeys(map(tuple, commands_in(said))))[:2]
    assert carried_out(f"`redis-state {shlex.join(first)}`") == ["doctor"]
    assert carried_out(f"`redis-state {shlex.join(second)}`") == ["restore"]
    job.output.clear()
    job.run()
    job.check()


class Sums:
    """Sums by key, in a processor and in a function of foreachBatch."""

    def __init__(self, streams: Streams, url: str) -> None:
        self.streams, self.url = streams, url
        self.source = streams.input("events", IN)
        self.names = [f"{streams.folder} {kind}" for kind in ("processor", "batches")]
        self.written: dict[int, dict[str, int]] = {}

    def feed(self, until: int) -> None:
        for number in range(self.source._files, until):
            self.source.add([{"k": f"k{at}", "v": number * 10 + at} for at in range(6)])

    def expected(self, batch: int) -> dict[str, int]:
        return {f"k{at}": sum(n * 10 + at for n in range(batch + 1)) for at in range(6)}

    def run(self) -> None:
        """The totals of both kinds have to be the same in each batch."""
        spark = self.streams.spark
        options: dict[str, Any] = {"url": self.url, "versions_to_retain": 20, "partitions": 2}
        frame = redis_state.transform_with_state(
            self.source.stream(spark), _processor(), store=self.names[0], key="k",
            schema="k string, total long, v long", **options,
        )  # fmt: skip

        def write(mapped: DataFrame, batch_id: int) -> None:
            rows = mapped.collect()
            assert all(row["total"] == row["other"] for row in rows)
            self.written[batch_id] = {row["k"]: row["total"] for row in rows}

        each = redis_state.foreach_batch_with_state_store(
            _adding(), write, store=self.names[1], key="k",
            schema="k string, total long, other long", **options,
        )  # fmt: skip
        writer = frame.writeStream.outputMode("update").foreachBatch(each)
        checkpoint = str(self.streams.checkpoint("sums"))
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()

    def check(self, until: int) -> None:
        """After so many files: a source that saw some before a rewind gives them out at once."""
        assert self.written[max(self.written)] == self.expected(until - 1)

    @property
    def place(self) -> list[str]:
        return ["--url", self.url, "--checkpoint", str(self.streams.checkpoint("sums"))]


def _processor() -> Any:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Total(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "total long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: ARG002, N802, N803 - Spark's names
            added = int(sum(frame["v"].sum() for frame in rows))
            found = self.total.get()
            total = added + (found[0] if found is not None else 0)
            self.total.update((total,))
            yield pd.DataFrame({"k": [key[0]], "total": [total], "v": [added]})

        def close(self) -> None:
            return None

    return Total()


def _adding() -> Any:
    """Made in a function: workers do not have this module."""

    def add(store: Any, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for row in rows:
            other = (store.get(row["k"]) or 0) + row["v"]
            store.put(row["k"], other)
            yield {"k": row["k"], "total": row["total"], "other": other}

    return add


@pytest.fixture
def sums(streams: Streams, shared_redis_server: RedisServer) -> Sums:
    made = Sums(streams, shared_redis_server.url)
    made.feed(BATCHES)
    made.run()
    made.check(BATCHES)
    return made


def test_processors_and_foreach_batch_start_after_a_rewind(sums: Sums) -> None:
    command = ["rewind", *sums.place, "--to-batch", "1", "--yes", "--force"]
    assert main(command) == 0
    sums.written.clear()
    sums.feed(ENDS)
    sums.run()
    assert min(sums.written) == 2
    sums.check(ENDS)


@pytest.mark.parametrize("number", [0, 1], ids=["the processor", "foreachBatch"])
def test_doctor_steps_for_lost_versions_lead_to_a_start(
    sums: Sums, number: int, shared_redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    raw: redis.Redis = shared_redis_server.client()
    config = options_table.parse({"url": sums.url})
    client = Client(config)
    gen = checkpoint_gen(client, sums.names[number])
    client.close()
    assert gen is not None
    for version in (BATCHES, BATCHES - 1):
        (segment,) = raw.keys(f"{{rs:{gen}:0:1:*}}:d:{version}:*")
        raw.unlink(segment)
    capsys.readouterr()
    assert main(["doctor", *sums.place]) == 4
    assert carried_out(capsys.readouterr().out) == ["rewind"]
    assert main(["doctor", *sums.place]) == 0
    sums.written.clear()
    sums.feed(ENDS)
    sums.run()
    sums.check(ENDS)


def test_purged_store_is_recalled_without_renewed_expiries(
    sums: Sums, shared_redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, sums.url)
    raw = shared_redis_server.client()
    config = options_table.parse({"url": sums.url})
    client = Client(config)
    gen = checkpoint_gen(client, sums.names[0])
    assert gen is not None
    expire(client, gen)
    client.close()
    sums.feed(ENDS)
    with pytest.raises(StateError, match="was purged") as told:
        sums.run()
    assert not [field for field in raw.hkeys(keys.checkpoints()) if gen.encode() in field]
    assert raw.pttl(keys.query(gen)) > 0
    assert main(commands_in(str(told.value))[0]) == 0
    sums.run()
    sums.check(ENDS)
