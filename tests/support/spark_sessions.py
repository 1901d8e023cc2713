"""Settings of the Spark applications that tests start, and of the session that they share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from tools.jvm import OF_A_QUERY


def application(
    name: str, scratch: Path, settings: Mapping[str, str], *, master: str
) -> SparkSession.Builder:
    """An application on loopback, without a UI, that leaves its files in a folder.

    Args:
        settings: More of them.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    ours = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
    }
    builder = SparkSession.builder.master(master).appName(f"redis-state {name}")
    for key, value in {**ours, **settings}.items():
        builder = builder.config(key, value)
    return builder


def two_executors(name: str, scratch: Path, settings: Mapping[str, str]) -> SparkSession.Builder:
    """An application with two executors of one core, which are processes of their own."""
    os.environ["SPARK_HOME"] = str(spark_home(scratch))
    ours = {
        "spark.driver.extraJavaOptions": " ".join(OF_A_QUERY),
        "spark.executor.memory": "768m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": " ".join(OF_A_QUERY),
    }
    return application(name, scratch, {**ours, **settings}, master="local-cluster[2,1,1024]")


def scala_object(spark: SparkSession, name: str) -> Any:
    """An object of Scala, by its full name: no public name leads there."""
    return getattr(getattr(spark.sparkContext._jvm, f"{name}$"), "MODULE$")


def unload_stores(spark: SparkSession) -> None:
    """Closes all stores of the process, which ends their maintenance.

    Maintenance of a store whose server has gone takes its thread until the deadline, and the stores
    of running queries wait.
    """
    scala_object(spark, "org.apache.spark.sql.execution.streaming.state.StateStore").stop()


def spark_home(scratch: Path) -> Path:
    """Links to PySpark's own files: the workers write into the home that they are given."""
    home = scratch / "spark"
    if not home.exists():
        home.mkdir()
        for path in Path(pyspark.__file__).parent.iterdir():
            if path.name != "work":
                (home / path.name).symlink_to(path)
    return home


@contextmanager
def kept(spark: SparkSession, *names: str) -> Iterator[None]:
    """Restores the values of these confs at the end of the context."""
    before = {name: spark.conf.get(name, None) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)
