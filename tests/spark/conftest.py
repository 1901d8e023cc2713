"""One Spark session for all tests of this folder: starting it takes most of the time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import redis_state
from tests.spark.streams import FORMAT, PREFIX, Streams
from tests.support.redis_server import RedisServer


@pytest.fixture(scope="session")
def spark(
    shared_redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("redis-state tests")
        .config("spark.driver.memory", "3g")  # for a value above the limit of 64 MiB
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        # A machine that is busy starts Python late.
        .config("spark.python.authenticate.socketTimeout", "200s")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        # HDFSBacked, which many tests compare with, has no other.
        .config(FORMAT, "1")
        .config("spark.sql.streaming.stateStore.maintenanceInterval", "2s")
        .config("spark.sql.streaming.stateStore.maintenanceShutdownTimeout", "10")
        .config("spark.sql.streaming.stateStore.maintenanceForceShutdownTimeout", "10")
    )
    session = redis_state.configure(
        builder, url=shared_redis_server.url, deadline="3s", versions_to_retain=20
    ).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def streams(spark: SparkSession, tmp_path: Path) -> Streams:
    return Streams(spark, tmp_path)


@pytest.fixture
def redis_conf(spark: SparkSession) -> Iterator[Callable[..., None]]:
    """Sets options for the queries of one test."""
    before = {name: value for name, value in spark.conf.getAll.items() if name.startswith(PREFIX)}
    changed: set[str] = set()

    def use(options: dict[str, str]) -> None:
        for name, value in options.items():
            changed.add(PREFIX + name)
            spark.conf.set(PREFIX + name, value)

    yield use
    for name in changed:
        if name in before:
            spark.conf.set(name, before[name])
        else:
            spark.conf.unset(name)


@pytest.fixture
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Runs queries without whole-stage code: no batch of a few rows is worth its compilation."""
    name = "spark.sql.codegen.wholeStage"
    before = spark.conf.get(name)
    assert before is not None
    spark.conf.set(name, "false")
    yield
    spark.conf.set(name, before)
