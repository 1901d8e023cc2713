"""The log of a query that goes well: no stack trace, and no warning that nobody has to act on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.test_checkpoints import Job, job
from tests.support.redis_server import RedisServer

__all__ = ["job"]
pytestmark = pytest.mark.spark

PATTERN = "%p %c: %m%replace{%ex}{[\\r\\n]+}{ | }%n"
"""One line for each event, its stack trace included."""

OURS = ("org.redisstate", "org.apache.spark.sql.redisstate")


def about(url: str, text: str) -> list[str]:
    """Returns the lines without those about servers of earlier tests."""
    lines = [line for line in text.splitlines() if line.strip()]
    return [line for line in lines if url in line or "redis://" not in line]


@pytest.fixture
def logged(spark: SparkSession) -> Iterator[Callable[[str], list[str]]]:
    """Captures what our code logs from here on, with stack traces."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    log4j = jvm.org.apache.logging.log4j
    written = jvm.java.io.StringWriter()
    layout = log4j.core.layout.PatternLayout.newBuilder().withPattern(PATTERN).build()
    appender = log4j.core.appender.WriterAppender.createAppender(
        layout, None, written, "ours", False, False
    )
    appender.start()
    loggers = []
    for name in OURS:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.WARN)
        loggers.append(log4j.LogManager.getLogger(name))
        loggers[-1].addAppender(appender)
    yield lambda url: about(url, written.toString())
    for logger in loggers:
        logger.removeAppender(appender)
    for name in OURS:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR)
    appender.stop()


def test_first_batches_log_no_warning(
    job: Job,
    redis_conf: Callable[..., None],
    start_redis: Callable[..., RedisServer],
    logged: Callable[[str], list[str]],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "aof"
    folder.mkdir()
    server = start_redis(folder=folder)
    redis_conf({"url": server.url})
    for _ in range(2):
        job.feed(2)
        job.run()
    job.check()
    assert logged(server.url) == []


def test_missing_server_feature_is_logged_once(
    job: Job,
    redis_conf: Callable[..., None],
    redis_server: RedisServer,
    logged: Callable[[str], list[str]],
) -> None:
    redis_conf({"url": redis_server.url})
    for _ in range(2):
        job.feed(1)
        job.run()
    (line,) = logged(redis_server.url)
    assert line.endswith(
        f"{redis_server.url} keeps no append-only file: when it stops, every write since its "
        "last RDB save is lost"
    )
