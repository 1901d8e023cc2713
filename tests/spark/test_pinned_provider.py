"""Spark pins the provider in a checkpoint: a query without Redis must not look as if it used it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark.streams import HDFS, PROVIDER, Streams
from tests.spark.test_checkpoints import Job
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

LISTENER = "org.apache.spark.sql.redisstate.RedisStateQueryListener"


@pytest.fixture
def warnings(spark: SparkSession) -> Iterator[Callable[[], str]]:
    """Captures what the listener logs from here on."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    log4j = jvm.org.apache.logging.log4j
    written = jvm.java.io.StringWriter()
    layout = log4j.core.layout.PatternLayout.createDefaultLayout()
    appender = log4j.core.appender.WriterAppender.createAppender(
        layout, None, written, "warnings", False, False
    )
    appender.start()
    logger = log4j.LogManager.getLogger(LISTENER)
    log4j.core.config.Configurator.setLevel(LISTENER, log4j.Level.WARN)
    logger.addAppender(appender)
    yield written.toString
    logger.removeAppender(appender)
    appender.stop()


def test_checkpoint_of_another_provider_logs_a_warning(
    streams: Streams,
    warnings: Callable[[], str],
    redis_conf: Callable[..., None],
    redis_server: RedisServer,
) -> None:
    redis_conf({"url": redis_server.url})
    job = Job(streams)
    job.feed(2)
    frame = job.source.stream(streams.spark).groupBy("k").count()
    streams.run(frame, "pinned", provider=HDFS)
    assert warnings() == ""

    job.feed(1)
    streams.run(frame, "pinned")
    assert "does NOT keep its state in Redis" in warnings()
    assert HDFS in warnings()
    assert str(streams.checkpoint("pinned")) in warnings()
    assert "stateStore.redis.adopt=true" in warnings()
    with redis_server.client() as client:
        assert client.dbsize() == 0
    assert streams.spark.conf.get(PROVIDER) != HDFS


def test_checkpoint_of_this_provider_logs_no_warning(
    streams: Streams, warnings: Callable[[], str]
) -> None:
    job = Job(streams)
    for _ in range(2):
        job.feed(1)
        job.run()
    assert warnings() == ""
