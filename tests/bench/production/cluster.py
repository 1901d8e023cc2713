"""Redis and an S3 server, each behind its proxy, and a Spark application that uses both."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
from pyspark.sql import SparkSession

import redis_state
from tests.bench.production.proxy_process import ProxyProcess, link, objects
from tests.bench.workloads import PROVIDERS
from tests.file_systems.servers import Store, class_path, s3
from tests.spark.streams import FORMAT
from tests.support.redis_server import RedisServer
from tests.support.spark_sessions import application, spark_home

MANAGERS = {
    "abortable": "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager",
    "rename": "org.apache.spark.sql.execution.streaming.checkpointing"
    ".FileSystemBasedCheckpointFileManager",
}
"""Spark's managers of checkpoint files: one `PUT` a file, or a `PUT` and a rename."""

_MASTER = "local-cluster[2,2,1536]"
_HEAP = "3g"  # with every object of a run


@dataclass(frozen=True, slots=True)
class Network:
    """Distances of the servers.

    Attributes:
        objects_ms: Latency of a request to the object store.
        objects_mb_per_s: Bandwidth of each connection to it, in 10^6 bytes a second.
        redis_ms: What a round trip to Redis takes longer.
    """

    objects_ms: float
    objects_mb_per_s: float
    redis_ms: float


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running application and its servers.

    Attributes:
        store: The S3 server, reached directly.
        direct: A client of Redis that is not behind the link.
        linked: A client of Redis behind the link.
    """

    spark: SparkSession
    store: Store
    object_proxy: ProxyProcess
    redis_link: ProxyProcess
    direct: redis.Redis
    linked: redis.Redis


def bucket_of(provider: str) -> str:
    """Bucket of a provider's checkpoints, by which the proxy tells requests apart."""
    return f"state-{provider}"


@contextmanager
def cluster(
    folder: Path, network: Network, *, manager: str, settings: Mapping[str, str]
) -> Iterator[Cluster]:
    """Everything on loopback; all of it has ended when the context does.

    Args:
        manager: A key of `MANAGERS`.
        settings: More of the application's.
    """
    with ExitStack() as stack:
        for name in ("redis", "s3", "spark"):
            (folder / name).mkdir()
        server = RedisServer(folder=folder / "redis", options={"appendfsync": "everysec"})
        stack.enter_context(server)
        store = stack.enter_context(s3(folder / "s3", heap=_HEAP))
        for provider in PROVIDERS:
            store.admin.call_s3("create_bucket", Bucket=bucket_of(provider))
        far = stack.enter_context(link(server.port, network.redis_ms))
        distant = objects(
            int(store.conf["fs.s3a.endpoint"].rpartition(":")[2]),
            network.objects_ms,
            network.objects_mb_per_s,
        )
        object_proxy = stack.enter_context(distant)
        conf = {**store.conf, "fs.s3a.endpoint": f"http://127.0.0.1:{object_proxy.port}"}
        builder = _builder(folder / "spark", conf, manager, settings)
        url = f"redis://127.0.0.1:{far.port}/0"
        spark = redis_state.configure(builder, url=url).getOrCreate()
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("ERROR")
        direct = stack.enter_context(server.client())
        linked = stack.enter_context(server.client(port=far.port))
        yield Cluster(spark, store, object_proxy, far, direct, linked)


def _builder(
    folder: Path, conf: Mapping[str, str], manager: str, settings: Mapping[str, str]
) -> SparkSession.Builder:
    os.environ["SPARK_HOME"] = str(spark_home(folder))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    jars = os.pathsep.join([class_path("s3a"), class_path("cloud")])
    ours = {
        **{f"spark.hadoop.{name}": value for name, value in conf.items()},
        "spark.jars": jars.replace(os.pathsep, ","),
        "spark.driver.memory": "1g",
        "spark.executor.memory": "1g",
        "spark.executor.cores": "2",
        "spark.log.level": "ERROR",
        "spark.executor.syncLogLevel.enabled": "true",
        "spark.deploy.maxExecutorRetries": "-1",  # executors are killed on purpose
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.sql.streaming.stateStore.maintenanceInterval": "10s",
        "spark.sql.streaming.stateStore.maintenanceShutdownTimeout": "10",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "4",
        "spark.sql.streaming.checkpointFileManagerClass": MANAGERS[manager],
        FORMAT: "1",  # HDFSBacked has no other
    }
    return application("production", folder, {**ours, **settings}, master=_MASTER)
