"""`configure` and `redis-state conf`: what they set, keep and refuse."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import redis_state
from redis_state import config
from redis_state.cli.main import main
from redis_state.errors import ConfigError
from redis_state.spark import conf as module
from redis_state.spark import jars

URL = "redis://localhost:6379/0"
JARS = "spark.jars"
PREFIX = config.conf_prefix()


@pytest.fixture(autouse=True)
def built_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Jars for both versions in a folder of the test, and no pyspark but 4.3.1."""
    folder = tmp_path / "jars"
    folder.mkdir()
    for minor in jars.SUPPORTED_MINORS:
        name = f"redis-state-spark-{minor}_2.13-{redis_state.__version__}.jar"
        (folder / name).touch()
    monkeypatch.setattr(resources, "files", lambda _package: tmp_path)
    monkeypatch.setattr(module, "running_pyspark_version", lambda: "4.3.1")
    monkeypatch.setattr("redis_state.cli.other.conf.running_pyspark_version", lambda: "4.3.1")
    return folder


class Builder:
    """Stand-in for a `SparkSession.Builder`."""

    def __init__(self) -> None:
        self._options: dict[str, Any] = {}

    def config(self, name: str, value: str) -> Builder:
        self._options[name] = value
        return self

    def getOrCreate(self) -> None:  # noqa: N802 - Spark's name
        raise AssertionError("configure starts no session")


class Conf:
    """Stand-in for a `SparkConf`."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, name: str, value: str) -> Conf:
        self.values[name] = value
        return self

    def getAll(self) -> list[tuple[str, str]]:  # noqa: N802 - Spark's name
        return list(self.values.items())


def expected(folder: Path, minor: str = "4.3") -> dict[str, str]:
    name = f"redis-state-spark-{minor}_2.13-{redis_state.__version__}.jar"
    package = "org.apache.spark.sql.redisstate"
    return {
        **({} if minor == "4.0" else {module.FORMAT_CONF: "2"}),
        "spark.jars": str(folder / name),
        "spark.sql.streaming.stateStore.providerClass": f"{package}.RedisStateStoreProvider",
        "spark.sql.streaming.streamingQueryListeners": f"{package}.RedisStateQueryListener",
        "spark.sql.extensions": f"{package}.RedisStateSparkExtension",
        PREFIX + "url": URL,
        PREFIX + "versionsToRetain": "20",
    }


def test_all_three_targets_get_the_same_settings(built_jars: Path) -> None:
    a_dict: dict[str, str] = {}
    builder, conf = Builder(), Conf()
    for target in (a_dict, builder, conf):
        assert redis_state.configure(target, url=URL, versions_to_retain=20) is target
    assert a_dict == builder._options == conf.values == expected(built_jars)


def test_existing_settings_are_kept_without_duplicates(built_jars: Path) -> None:
    conf = {JARS: "a.jar, b.jar", module.LISTENERS_CONF: "x.Listener", PREFIX + "deadline": "9s"}
    for _ in range(2):
        redis_state.configure(conf, url=URL)
    assert conf[JARS] == f"a.jar,b.jar,{expected(built_jars)[JARS]}"
    assert conf[module.LISTENERS_CONF] == f"x.Listener,{module.LISTENER_CLASS}"
    assert conf[PREFIX + "deadline"] == "9s"


@pytest.mark.parametrize("target", [Builder, Conf])
def test_jars_of_spark_submit_are_kept(
    target: type[Builder | Conf], built_jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = {JARS: "a.jar", PREFIX + "deadline": "9s"}
    monkeypatch.setattr(module, "_launched_conf", lambda: launched)
    made = redis_state.configure(target(), url=URL)
    values = made._options if isinstance(made, Builder) else made.values
    assert values[JARS] == f"a.jar,{expected(built_jars)[JARS]}"
    assert values[PREFIX + "deadline"] == "9s"


def test_argument_overrides_an_existing_setting() -> None:
    conf = {PREFIX + "deadline": "9s"}
    redis_state.configure(conf, url=URL, deadline="8s")
    assert conf[PREFIX + "deadline"] == "8s"


def test_requested_checkpoint_format_is_kept() -> None:
    conf = {module.FORMAT_CONF: "1"}
    redis_state.configure(conf, url=URL)
    assert conf[module.FORMAT_CONF] == "1"


def test_real_time_names_no_provider(built_jars: Path) -> None:
    conf: dict[str, str] = {}
    redis_state.configure(conf, url=URL, versions_to_retain=20, real_time=True)
    wanted = expected(built_jars) | {PREFIX + "realTime": "true"}
    del wanted[module.PROVIDER_CONF]
    assert conf == wanted


def test_real_time_is_refused_where_a_provider_is_named() -> None:
    conf = {module.PROVIDER_CONF: "org.example.Provider"}
    with pytest.raises(ConfigError, match="Leave that setting out"):
        redis_state.configure(conf, url=URL, real_time=True)
    assert conf == {module.PROVIDER_CONF: "org.example.Provider"}


@pytest.mark.parametrize("minor", ["4.0", "4.1", "4.2"])
def test_real_time_is_refused_for_a_spark_without_it(minor: str) -> None:
    with pytest.raises(ConfigError, match="takes no stateful query"):
        module.conf_settings(
            {"url": URL, "realTime": True}, spark_version=f"{minor}.0", existing={}
        )


@pytest.mark.parametrize("minor", jars.SUPPORTED_MINORS)
def test_each_spark_gets_the_format_that_all_operators_support(
    minor: str, built_jars: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["conf", "--url", URL, "--spark", minor, "--option", "versionsToRetain=20"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert dict(line.split("=", 1) for line in lines) == expected(built_jars, minor)


def test_a_wrong_option_changes_nothing() -> None:
    conf: dict[str, str] = {}
    with pytest.raises(ConfigError, match="Did you mean 'deadline'"):
        redis_state.configure(conf, url=URL, dead_line="8s")  # type: ignore[call-arg]  # that is it
    assert conf == {}
    with pytest.raises(ConfigError, match="no option 'nope'"):
        redis_state.configure({PREFIX + "nope": "1"}, url=URL)


@pytest.mark.parametrize("option", ["password_file", "signing_key_file"])
def test_unreadable_file_raises_at_once(option: str, tmp_path: Path) -> None:
    made = Builder()
    absent: Any = {option: tmp_path / "absent"}
    with pytest.raises(ConfigError, match="there is no such file"):
        redis_state.configure(made, url=URL, **absent)
    assert made._options == {}
    # What is written into a dict may be for another machine.
    assert redis_state.configure({}, url=URL, **absent)


def test_a_foreign_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="a list was given"):
        redis_state.configure([], url=URL)


@pytest.mark.parametrize("version", ["3.5.1", "4.4.0", "4.20.0", "5.0", "nonsense"])
def test_other_versions_of_spark_are_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "running_pyspark_version", lambda: version)
    with pytest.raises(ConfigError, match=r"is not supported.*4\.0, 4\.1, 4\.2 or 4\.3"):
        redis_state.configure({}, url=URL)


def test_a_missing_jar_names_the_remedy(built_jars: Path) -> None:
    for path in built_jars.iterdir():
        path.unlink()
    with pytest.raises(ConfigError, match="make build"):
        redis_state.configure({}, url=URL)


def test_conf_command_prints_the_same_settings(
    built_jars: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["conf", "--url", URL, "--spark", "4.2", "--option", "versionsToRetain=20"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert dict(line.split("=", 1) for line in lines) == expected(built_jars, "4.2")


def test_conf_command_escapes_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conf", "--url", URL, "--option", "password=a\\b=c:d #é"]) == 0
    assert f"{PREFIX}password=a\\\\b=c:d #é" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--option", "password"],
        ["--option", "geheim=1"],
        ["--option", "deadline=1s", "--option", "deadline=2s"],
        ["--option", "url=redis://h"],
        ["--spark", "3.5"],
    ],
)
def test_conf_command_explains_errors(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conf", "--url", URL, *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("[REDIS_CONFIG] ")


def test_version_and_help_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for argument in ("--version", "--help"):
        with pytest.raises(SystemExit) as ended:
            main([argument])
        assert ended.value.code == 0
    out = capsys.readouterr().out
    assert f"redis-state {redis_state.__version__}" in out
    assert "conf" in out
