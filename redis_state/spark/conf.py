"""`configure`: sets up a Spark job to keep its state in Redis, in one call."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from redis_state import config
from redis_state.backend.start import check_start
from redis_state.errors import ConfigError
from redis_state.spark.jars import jar_path, minor_of, running_pyspark_version
from redis_state.url import SocketEndpoint, parse_url

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11

    from redis_state.option_types import Options

PROVIDER_CLASS = "org.apache.spark.sql.redisstate.RedisStateStoreProvider"
LISTENER_CLASS = "org.apache.spark.sql.redisstate.RedisStateQueryListener"
EXTENSION_CLASS = "org.apache.spark.sql.redisstate.RedisStateSparkExtension"
PROVIDER_CONF = "spark.sql.streaming.stateStore.providerClass"
LISTENERS_CONF = "spark.sql.streaming.streamingQueryListeners"
EXTENSIONS_CONF = "spark.sql.extensions"
FORMAT_CONF = "spark.sql.streaming.stateStore.checkpointFormatVersion"
JARS_CONF = "spark.jars"

_WITHOUT_REAL_TIME = ("4.0", "4.1", "4.2")
_FORMAT_1_ONLY = ("4.0",)
"""Minors that have format 2 but refuse it for a stateful operator of one partition."""

Configured = TypeVar("Configured")


def configure(
    target: Configured, *, url: str, check: bool = False, **options: Unpack[Options]
) -> Configured:
    """Configures a job to keep the state of its streaming queries in Redis.

    The configuration applies to queries with a new checkpoint: Spark writes the provider into a
    checkpoint and keeps it. From Spark 4.1 on, this sets checkpoint format 2, unless the target
    already has a format.

    Args:
        target: A `SparkSession.Builder`, a `SparkConf` or a dict of Spark configuration.
        url: The server without user name and password; see docs/topologies.md.
        check: Checks now, from this process, that the server can serve a job: address, login,
            version, settings and rights, within ten seconds. Each query also checks at its start.
        **options: Options of `docs/configuration.md` in snake case: ``password_file=…``,
            ``tls_ca_file=…``, ``versions_to_retain=20``.

    Returns:
        The same object, with jar, provider, listener, extension, checkpoint format and options
        added to its content.

    Raises:
        ConfigError: An option is wrong, pyspark's version is not supported, the jar is missing, or
            the file of the password or of the signing key cannot be read. With `check`, also if the
            server is unsuitable for state or the user lacks a right.
        UnavailableError: With `check`: the server does not answer.
    """
    conf = _adapter(target)
    redis_options = {**_redis_options(conf.items()), **_named({"url": url, **options})}
    if not isinstance(conf, _DictTarget):
        # This process becomes the driver, which also needs the files; a dict may be for another
        # machine.
        checked = config.parse(redis_options)
        checked.read_password()
        checked.read_signer()
    if check:
        check_start(config.parse(redis_options))
    settings = conf_settings(
        redis_options,
        spark_version=running_pyspark_version(),
        existing=conf.items(),
    )
    conf.update(settings)
    if not isinstance(target, (dict, MutableMapping)):
        _reach_running_spark(settings[JARS_CONF])
    return target


def conf_settings(
    options: Mapping[str, object], *, spark_version: str, existing: Mapping[str, str]
) -> dict[str, str]:
    """Returns the Spark configuration that keeps state in Redis, as names and values.

    Args:
        options: Options under any of their names; must contain ``url``.
        spark_version: Selects the jar.
        existing: Configuration whose jars, listeners, extensions and checkpoint format are kept.

    Raises:
        ConfigError: See `configure`.
    """
    checked = config.normalize(options)
    if isinstance(parse_url(checked["url"]), SocketEndpoint):
        raise ConfigError(
            "option 'url'",
            found="unix:// is not supported by the JVM adapter",
            advice="Configure a loopback port of the server as well, and use a redis:// URL.",
        )
    real_time = checked.get("realTime") == "true"
    if real_time:
        _check_real_time(spark_version, existing)
    jar = str(jar_path(spark_version))
    settings = {
        JARS_CONF: _appended(existing.get(JARS_CONF, ""), jar),
        **({} if real_time else {PROVIDER_CONF: PROVIDER_CLASS}),
        LISTENERS_CONF: _appended(existing.get(LISTENERS_CONF, ""), LISTENER_CLASS),
        EXTENSIONS_CONF: _appended(existing.get(EXTENSIONS_CONF, ""), EXTENSION_CLASS),
    }
    if FORMAT_CONF not in existing and minor_of(spark_version) not in _FORMAT_1_ONLY:
        settings[FORMAT_CONF] = "2"
    settings.update(_confs(checked))
    return settings


def _check_real_time(spark_version: str, existing: Mapping[str, str]) -> None:
    """Raises if Spark has no real-time mode for stateful queries, or a provider is named."""
    what = "option 'realTime'"
    if minor_of(spark_version) in _WITHOUT_REAL_TIME:
        raise ConfigError(
            what,
            found=f"real-time mode of Spark {spark_version} takes no stateful query",
            advice="Use Spark 4.3, or leave the option out.",
        )
    if PROVIDER_CONF in existing:
        raise ConfigError(
            what,
            found=f"{PROVIDER_CONF} is set, and Spark refuses real-time mode then",
            advice="Leave that setting out: the option takes its place for every query.",
        )


def redis_confs(options: Mapping[str, object]) -> dict[str, str]:
    """Returns the options of a server under the names of Spark's configuration.

    Args:
        options: Options of `configure`, including ``url``.

    Raises:
        ConfigError: An option is wrong.
    """
    return _confs(config.normalize(_named(options)))


def _confs(checked: Mapping[str, str]) -> dict[str, str]:
    prefix = config.conf_prefix()
    return {prefix + name: value for name, value in checked.items()}


def _named(options: Mapping[str, object]) -> dict[str, object]:
    return {config.option_named(name).name: value for name, value in options.items()}


def _redis_options(existing: Mapping[str, str]) -> dict[str, object]:
    prefix = config.conf_prefix()
    return {
        config.option_named(name).name: value
        for name, value in existing.items()
        if name.startswith(prefix)
    }


def _appended(list_text: str, item: str) -> str:
    items = [entry.strip() for entry in list_text.split(",") if entry.strip()]
    return ",".join(items if item in items else [*items, item])


class _DictTarget:
    def __init__(self, target: MutableMapping[str, Any]) -> None:
        self._target = target

    def items(self) -> dict[str, str]:
        return {name: str(value) for name, value in self._target.items()}

    def update(self, settings: Mapping[str, str]) -> None:
        self._target.update(settings)


class _ConfTarget:
    """`SparkConf`: `set` and `getAll`."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def items(self) -> dict[str, str]:
        return {**_launched_conf(), **dict(self._target.getAll())}

    def update(self, settings: Mapping[str, str]) -> None:
        for name, value in settings.items():
            self._target.set(name, value)


class _BuilderTarget:
    """`SparkSession.Builder`: writes by `config`; its options are readable only as an attribute."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def items(self) -> dict[str, str]:
        own = getattr(self._target, "_options", {})
        return {**_launched_conf(), **{name: str(value) for name, value in own.items()}}

    def update(self, settings: Mapping[str, str]) -> None:
        for name, value in settings.items():
            self._target.config(name, value)


def _adapter(target: object) -> _DictTarget | _ConfTarget | _BuilderTarget:
    if isinstance(target, MutableMapping):
        return _DictTarget(target)
    if hasattr(target, "config") and hasattr(target, "getOrCreate"):
        return _BuilderTarget(target)
    if hasattr(target, "set") and hasattr(target, "getAll"):
        return _ConfTarget(target)
    raise ConfigError(
        "configuring Spark",
        found=f"a {type(target).__name__} was given",
        advice="Give a SparkSession.Builder, a SparkConf or a dict.",
    )


def _gateway_jvm() -> Any | None:
    """Returns the JVM of `spark-submit` or of an earlier session; ``None`` before the first."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ and "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    # pyspark has no public name for its JVM.
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()
    return SparkContext._jvm


def _launched_conf() -> dict[str, str]:
    """Returns the options of `spark-submit`, whose `--jars` a program's `spark.jars` replaces."""
    if _gateway_jvm() is None:
        return {}
    from pyspark import SparkConf

    return dict(SparkConf().getAll())


def _reach_running_spark(jars: str) -> None:
    """Makes the classes visible in a JVM that was started without the jar.

    `spark.jars` set by the program itself reaches executors. But it does not reach the driver's
    class loader if the JVM is already running, as under `spark-submit app.py`.
    """
    jvm = _gateway_jvm()
    if jvm is None:
        return
    from pyspark import SparkContext

    active = SparkContext._active_spark_context
    if active is not None:
        warnings.warn(
            "redis_state.configure was called while a Spark session runs: its executors do not "
            "get the jar, and settings of the session stay as they are. Call configure first, or "
            "stop the session.",
            RuntimeWarning,
            stacklevel=3,
        )
        return
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if not hasattr(loader, "addURL"):
        return
    for path in jars.split(","):
        if Path(path).is_file():
            loader.addURL(jvm.java.io.File(path).toURI().toURL())
