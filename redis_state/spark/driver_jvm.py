"""Calls from Python into classes of our jar on the driver, where there is a JVM and the jar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_class(spark: SparkSession, name: str) -> Any | None:
    """A class of the package `org.apache.spark.sql.redisstate`, or of one inside it.

    Returns:
        ``None`` where the driver is in another process, as with Spark Connect, or lacks our jar.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return None
    from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]  # it ships no types

    found = jvm.org.apache.spark.sql.redisstate
    for part in name.split("."):
        found = getattr(found, part)
    # A name that is not a class is taken for a package.
    return found if isinstance(found, JavaClass) else None
