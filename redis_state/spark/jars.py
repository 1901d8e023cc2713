"""Selection of the packaged jar for a version of Spark."""

from __future__ import annotations

import re
from importlib import metadata, resources
from pathlib import Path

from redis_state import config
from redis_state._version import __version__
from redis_state.errors import ConfigError

SUPPORTED_MINORS = config.spark_minors()
_JAR_NAME = "redis-state-spark-{minor}_2.13-{version}.jar"


def package_version() -> str:
    """Returns the version of this package and its jars."""
    return __version__


def running_pyspark_version() -> str:
    """Returns the version of pyspark in this environment, imported only if necessary.

    Raises:
        ConfigError: pyspark is not installed.
    """
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        pass  # A Spark distribution puts pyspark on PYTHONPATH without package metadata.
    try:
        import pyspark
    except ImportError as error:
        raise ConfigError(
            "finding the version of pyspark",
            found="it is not installed in this environment",
            advice=f"Install pyspark {_supported()}, or name the version (--spark 4.3).",
        ) from error
    return str(pyspark.__version__)


def _supported() -> str:
    return f"{', '.join(SUPPORTED_MINORS[:-1])} or {SUPPORTED_MINORS[-1]}"


def minor_of(version: str) -> str:
    """Returns the supported minor of a Spark version such as ``4.2.1``.

    Raises:
        ConfigError: There is no jar for the version.
    """
    match = re.match(r"(\d+\.\d+)(\.|$)", version)
    if match is None or match[1] not in SUPPORTED_MINORS:
        raise ConfigError(
            "choosing the jar for Spark",
            found=f"version {version} is not supported",
            advice=f"This release supports Spark {_supported()}.",
        )
    return match[1]


def jar_path(spark_version: str) -> Path:
    """Returns the path of the packaged jar for a Spark version.

    Raises:
        ConfigError: The version is not supported, or this is a checkout that was not built.
    """
    name = _JAR_NAME.format(minor=minor_of(spark_version), version=package_version())
    path = Path(str(resources.files("redis_state").joinpath("jars").joinpath(name)))
    if not path.is_file():
        raise ConfigError(
            "choosing the jar for Spark",
            found=f"{name} is not in the package",
            advice="In a checkout run `make build`; otherwise install the package again.",
        )
    return path
