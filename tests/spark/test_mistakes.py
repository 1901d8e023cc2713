"""Mistakes of users that a query meets: the last sentences that they read are those of the docs."""

from __future__ import annotations

import shutil
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from redis_state import acl
from redis_state.cli.main import main
from tests.spark.streams import Streams
from tests.spark.test_bad_blocks import blocks, plant
from tests.spark.test_checkpoints import NAME, Job, counted, job
from tests.support.errors_page import documented, last_of, shown
from tests.support.redis_server import RedisServer, free_port
from tests.support.waiting import wait_until

__all__ = ["job"]
pytestmark = pytest.mark.spark

SECTION = "queries"
START_LIMIT_S = 60
"""A refused start takes ten seconds at most; the machine may be busy."""

_HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True)
class Place:
    """Fixtures that a mistake needs."""

    job: Job
    conf: Callable[[dict[str, str]], None]
    start: Callable[..., RedisServer]
    folder: Path

    def use(self, url: str, **options: str) -> None:
        self.conf({"url": url, **options})

    def server(self, **options: object) -> RedisServer:
        server = self.start(**options)
        self.use(server.url)
        return server

    def checkpoint(self, name: str = NAME) -> Path:
        return self.job.streams.checkpoint(name)

    def run(self, batches: int) -> None:
        self.job.feed(batches)
        self.job.run()

    def run_and(self, act: Callable[[], object]) -> None:
        """Runs the query; in each batch something happens before its state is loaded."""

        def first_act(batch: DataFrame, _: int) -> None:
            act()
            batch.collect()

        frame = counted(self.job.source, self.job.streams.spark)
        query = (
            frame.writeStream.outputMode("complete")
            .option("checkpointLocation", str(self.checkpoint()))
            .foreachBatch(first_act)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def said(self, run: Callable[[], None] | None = None) -> str:
        """Runs a query that fails; returns its message without the text that Spark adds."""
        self.job.feed(1)
        with pytest.raises(StreamingQueryException) as caught:
            (run or self.job.run)()
        return last_of(str(caught.value))


Mistake = Callable[[Place], str]
MISTAKES: dict[str, Mistake] = {}


def mistake(title: str) -> Callable[[Mistake], Mistake]:
    def keep(function: Mistake) -> Mistake:
        MISTAKES[title] = function
        return function

    return keep


@contextmanager
def listener(handle: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that gives each connection to a function."""

    class OneConnection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            handle(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), OneConnection) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


@mistake("Nothing listens at the address")
def _(place: Place) -> str:
    place.use(f"redis://127.0.0.1:{free_port()}/0", deadline="60s")
    began = time.monotonic()
    said = place.said()
    assert time.monotonic() - began < START_LIMIT_S
    return said


@mistake("Another program than Redis listens there")
def _(place: Place) -> str:
    def speak(connection: socket.socket) -> None:
        connection.recv(1024)
        connection.sendall(_HTTP)

    with listener(speak) as port:
        place.use(f"redis://127.0.0.1:{port}/0")
        return place.said()


@mistake("A `rediss://` URL, and the server has no TLS")
def _(place: Place) -> str:
    server = place.start()
    place.use(server.url.replace("redis://", "rediss://"), deadline="1s", socketTimeout="500ms")
    return place.said()


@mistake("A `redis://` URL, and the server requires TLS")
def _(place: Place) -> str:
    server = place.start(tls=True)
    place.use(server.url.replace("rediss://", "redis://"), deadline="1s")
    return place.said()


@mistake("A certificate of an unknown authority")
def _(place: Place) -> str:
    place.use(place.start(tls=True).url)
    return place.said()


@mistake("No password, and the server requires one")
def _(place: Place) -> str:
    place.use(place.start(password="right").url)
    return place.said()


@mistake("A wrong password")
def _(place: Place) -> str:
    place.use(place.start(password="right").url, password="geheim")
    said = place.said()
    assert "geheim" not in said
    return said


@mistake("A password file that is not there")
def _(place: Place) -> str:
    server = place.start(password="right")
    place.use(server.url, passwordFile=str(place.folder / "no-such-file"))
    return place.said()


@mistake("A right that the user lacks")
def _(place: Place) -> str:
    server = place.start()
    with server.client() as client:
        version = str(client.info("server")["redis_version"])
        rules = acl.rules(acl.Role.JOB, version=version)
        client.execute_command("ACL", "SETUSER", "joe", *rules, "-unlink", ">pw")
    place.use(server.url, username="joe", password="pw")
    return place.said()


@mistake("A database that the server does not have")
def _(place: Place) -> str:
    place.use(place.start().url[:-1] + "9999")
    return place.said()


@mistake("A server that evicts keys")
def _(place: Place) -> str:
    place.server(options={"maxmemory-policy": "allkeys-lru"})
    return place.said()


@mistake("A replica")
def _(place: Place) -> str:
    master = place.start()
    place.server(options={"replicaof": f"127.0.0.1 {master.port}"})
    return place.said()


@mistake("A server without memory")
def _(place: Place) -> str:
    server = place.server()
    place.run(1)
    with server.client() as client:
        client.config_set("maxmemory", "1mb")
        said = place.said()
        client.config_set("maxmemory", "0")
    place.job.run()
    place.job.check()
    return said


@mistake("An option with a typing error")
def _(place: Place) -> str:
    place.conf({"versionToRetain": "5"})
    return place.said()


@mistake("A password in the URL")
def _(place: Place) -> str:
    place.use("redis://user:geheim@127.0.0.1:6379/0")
    said = place.said()
    assert "geheim" not in said
    return said


@mistake("A size without a unit")
def _(place: Place) -> str:
    place.conf({"localMemory": "512"})
    return place.said()


@mistake("A checkpoint folder that was copied or moved")
def _(place: Place) -> str:
    place.run(2)
    shutil.copytree(place.checkpoint(), place.checkpoint("copy"))
    return place.said(lambda: place.job.run("copy"))


@mistake("A checkpoint folder that was deleted in part")
def _(place: Place) -> str:
    place.run(2)
    (place.checkpoint() / "state" / "_redis_state").unlink()
    return place.said()


@mistake("A server that was flushed")
def _(place: Place) -> str:
    server = place.server()
    place.run(2)
    with server.client() as client:
        client.flushall()
    return place.said()


@mistake("A server that was flushed, and the query makes copies")
def _(place: Place) -> str:
    server = place.server()
    place.conf({"copyEveryBatches": "2"})
    place.run(4)
    copies = place.checkpoint() / "state" / "_redis_state_copies"
    wait_until(lambda: any(copies.glob("*/manifest")), "a copy")
    with server.client() as client:
        client.flushall()
    return place.said()


@mistake("A server that came back with older data")
def _(place: Place) -> str:
    folder = place.folder / "rdb"
    folder.mkdir()
    server = place.server(folder=folder)
    place.run(3)
    older = place.folder / "older"
    shutil.copytree(folder, older)
    place.run(2)
    server.kill()
    shutil.rmtree(folder)
    shutil.copytree(older, folder)
    server.restart()
    return place.said()


@mistake("A checkpoint that was purged")
def _(place: Place) -> str:
    server = place.server()
    place.run(2)
    arguments = ["--url", server.url, "--checkpoint", str(place.checkpoint()), "--yes", "--force"]
    assert main(["purge", *arguments]) == 0
    return place.said()


@mistake("Bytes in Redis that something else has changed")
def _(place: Place) -> str:
    server = place.server()
    place.run(2)
    plant(server, {where: block[:-3] for where, block in blocks(server).items()})
    return place.said()


@mistake("A checkpoint that is purged for good while its query runs")
def _(place: Place) -> str:
    server = place.server()
    place.run(1)
    where = ["--url", server.url, "--checkpoint", str(place.checkpoint())]

    def purge() -> None:
        assert main(["purge", *where, "--now", "--yes", "--force"]) == 0

    return place.said(lambda: place.run_and(purge))


@mistake("A server that stops while the query runs")
def _(place: Place) -> str:
    server = place.server()
    place.conf({"deadline": "1s"})
    place.run(1)
    return place.said(lambda: place.run_and(server.kill))


@pytest.mark.parametrize("title", MISTAKES)
def test_error_of_the_query_equals_the_page(
    title: str,
    job: Job,
    redis_conf: Callable[..., None],
    start_redis: Callable[..., RedisServer],
    tmp_path: Path,
) -> None:
    said = MISTAKES[title](Place(job, redis_conf, start_redis, tmp_path))
    assert shown(said) == documented(SECTION).get(title)


def test_page_lists_only_tested_mistakes() -> None:
    assert list(documented(SECTION)) == list(MISTAKES)


def test_changed_shuffle_partitions_setting_changes_nothing(
    job: Job, spark: SparkSession, streams: Streams
) -> None:
    """Spark keeps to the number that the checkpoint was made with."""
    job.feed(2)
    job.run()
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "5")
    try:
        job.feed(1)
        job.run()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))
    job.check()
    assert len(list((streams.checkpoint(NAME) / "state" / "0").glob("[0-9]*"))) == 2


def test_a_start_that_is_refused_writes_nothing_and_can_be_repeated(
    job: Job, redis_conf: Callable[..., None], start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis(options={"maxmemory-policy": "allkeys-lru"})
    redis_conf({"url": server.url})
    job.feed(2)
    with pytest.raises(StreamingQueryException):
        job.run()
    with server.client() as client:
        assert client.dbsize() == 0
        client.config_set("maxmemory-policy", "noeviction")
    job.run()
    job.check()


class Heard(StreamingQueryListener):
    """Counts what it is told of."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: list[str] = []

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's names
        self.started.append(str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        pass

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        self.ended.append(str(event.runId))


def test_refused_start_reaches_other_listeners_from_its_beginning(
    job: Job, spark: SparkSession, redis_conf: Callable[..., None]
) -> None:
    redis_conf({"url": f"redis://127.0.0.1:{free_port()}/0", "deadline": "1s"})
    heard = Heard()
    spark.streams.addListener(heard)
    try:
        job.feed(1)
        with pytest.raises(StreamingQueryException):
            job.run()
        wait_until(lambda: heard.ended != [], "the listener to hear of the end")
    finally:
        spark.streams.removeListener(heard)
    assert heard.started == heard.ended
