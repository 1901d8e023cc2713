"""One S3 server and one HDFS for all tests of this folder."""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import redis_state
from tests.file_systems.servers import Store, class_path, hdfs, s3
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import application


@pytest.fixture(scope="session")
def s3_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with s3(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture(scope="session")
def hdfs_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as store:
        yield store


@pytest.fixture(params=["s3", "hdfs"])
def store(request: pytest.FixtureRequest) -> Store:
    found: Store = request.getfixturevalue(f"{request.param}_store")
    return found


@pytest.fixture
def options_file(store: Store, tmp_path: Path) -> Path:
    path = tmp_path / "storage.json"
    path.write_text(json.dumps(store.options))
    return path


@pytest.fixture(scope="session")
def spark(
    shared_redis_server: RedisServer,
    s3_store: Store,
    hdfs_store: Store,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SparkSession]:
    settings = {
        f"spark.hadoop.{name}": value
        for store in (s3_store, hdfs_store)
        for name, value in store.conf.items()
    }
    settings["spark.jars"] = class_path("s3a").replace(os.pathsep, ",")
    settings["spark.sql.shuffle.partitions"] = "2"
    settings["spark.sql.streaming.stateStore.maintenanceInterval"] = "2s"
    builder = application(
        "checkpoints", tmp_path_factory.mktemp("spark"), settings, master="local[2]"
    )
    builder = redis_state.configure(builder, url=shared_redis_server.url, copy_every_batches=2)
    with pytest.MonkeyPatch.context() as patch:
        # The owner of what the mini cluster has.
        patch.setenv("HADOOP_USER_NAME", getpass.getuser())
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()
