"""Calls from Python into classes of the project's jar, if the driver has a JVM and the jar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_class(spark: SparkSession, name: str) -> Any | None:
    """Returns a class of the package `org.apache.spark.sql.redisstate` or of a subpackage.

    Returns:
        ``None`` if the driver is in another process, as with Spark Connect, or lacks the jar.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return None
    from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]  # it ships no types

    found = jvm.org.apache.spark.sql.redisstate
    for part in name.split("."):
        found = getattr(found, part)
    # py4j returns a package for a name that is not a class.
    return found if isinstance(found, JavaClass) else None
