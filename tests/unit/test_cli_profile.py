"""Server of a command, from arguments, the environment and profiles."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from redis_state.cli.arguments.checkpoint import folder_of
from redis_state.cli.arguments.connection import add_arguments, command_of, config_of
from redis_state.cli.arguments.profile import profiles_path, storage_options_file
from redis_state.config import Config
from redis_state.errors import ConfigError

PROFILES = """
[production]
url = "redis://redis.example:6379/3"
username = "dashboard"
password_file = "/run/secrets/redis"
key_prefix = "team-a"
deadline = "3s"
connections_max = 4

[other]
url = "redis://other:6379"
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("REDIS_STATE_URL", "REDIS_STATE_PROFILE", "REDIS_STATE_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    path = profiles_path()
    assert path == tmp_path / "redis-state" / "profiles.toml"
    path.parent.mkdir()
    path.write_text(PROFILES, "utf-8")
    return path


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def found(*words: str) -> Config:
    return config_of(parsed(*words))


def refused(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        found(*words)
    return str(caught.value)


def test_profile_sets_all_connection_options() -> None:
    config = found("--profile", "production")
    assert config.url.url == "redis://redis.example:6379/3"
    assert (config.username, config.key_prefix, config.deadline) == ("dashboard", "team-a", 3000)
    assert config.connections_max == 4


def test_an_argument_wins_over_the_profile() -> None:
    config = found("--profile", "production", "--key-prefix", "b", "--deadline", "1s")
    assert (config.key_prefix, config.deadline, config.username) == ("b", 1000, "dashboard")


def test_server_comes_from_a_single_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_STATE_PROFILE", "production")
    assert found().username == "dashboard"
    monkeypatch.setenv("REDIS_STATE_URL", "redis://of-the-environment:1")
    config = found()
    assert (config.url.url, config.username) == ("redis://of-the-environment:1/0", None)
    config = found("--url", "redis://given:2")
    assert (config.url.url, config.username) == ("redis://given:2/0", None)
    # What was typed wins over what the shell happens to have.
    assert found("--profile", "production").url.url == "redis://redis.example:6379/3"
    assert "--url and --profile both name a server" in refused(
        "--url", "redis://a", "--profile", "b"
    )


def test_missing_server_lists_the_ways_to_name_one() -> None:
    message = refused()
    for way in ("--url", "--profile", "REDIS_STATE_URL", "REDIS_STATE_PROFILE"):
        assert way in message


def test_the_deadline_is_ten_seconds_unless_it_is_given() -> None:
    assert found("--url", "redis://a").deadline == 10_000


def test_a_password_file_of_the_profile_wins_over_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REDIS_STATE_PASSWORD", "secret")
    config = found("--profile", "production")
    assert (config.password, config.password_file) == (None, "/run/secrets/redis")
    assert found("--profile", "other").password == "secret"


def test_storage_options_come_from_the_selected_profile(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(PROFILES.replace("[other]", 'storage_options = "s3.json"\n[other]'))
    assert found("--profile", "production").username == "dashboard"
    assert storage_options_file(None, "production") == "s3.json"
    assert storage_options_file(None, "other") is None
    assert storage_options_file("redis://other:6379", None) is None
    monkeypatch.setenv("REDIS_STATE_PROFILE", "production")
    assert storage_options_file(None, None) == "s3.json"
    assert storage_options_file("redis://other:6379", None) is None
    monkeypatch.setenv("REDIS_STATE_URL", "redis://other:6379")
    assert storage_options_file(None, None) is None
    file.write_text(PROFILES.replace("[other]", 'storage_options = {secret = "s"}\n[other]'))
    with pytest.raises(ConfigError, match="storage_options is not a path"):
        storage_options_file(None, "production")


def test_storage_options_of_a_local_folder_are_ignored(file: Path, tmp_path: Path) -> None:
    file.write_text(PROFILES.replace("[other]", 'storage_options = "gone.json"\n[other]'))

    def folder(checkpoint: str) -> str:
        given = {"url": None, "profile": "production", "storage_options": None}
        return str(folder_of(argparse.Namespace(checkpoint=checkpoint, **given)))

    assert folder(str(tmp_path)) == folder(f"file:{tmp_path}") == str(tmp_path)
    with pytest.raises(ConfigError, match=r"storage options in gone\.json"):
        folder("s3a://bucket/flights")


def test_advice_can_be_pasted() -> None:
    words = ("--profile", "production", "--key-prefix", "b")
    assert command_of(parsed(*words)) == " ".join(words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no such profile. Profiles there: none."),
        ("[other]\nurl = 'redis://a'\n", "Profiles there: other."),
        ("[p]\nusername = 'x'\n", "it has no url"),
        ("[p]\nurl = 'redis://a'\nuser_name = 'x'\n", "Did you mean 'username'?"),
        ("[p]\nurl = 'redis://a'\npassword = 'top-secret'\n", 'password_file = "…"'),
        ("[p]\nurl = 'redis://:top-secret@a'\n", "[REDIS_CONFIG]"),
        ("[p]\nurl = ['redis://a']\n", "the value of 'url' is not a text"),
        ("p = 'redis://a'\n", "there is no such profile"),
        ("[p\nurl = 'top-secret'\n", "it is not TOML"),
        ("[p]\nurl = 'redis://a'\nusername = 'a'\nuserName = 'b'\n", "there is no option"),
        (
            "[p]\nurl = 'redis://a'\nkey_prefix = 'a'\nkeyPrefix = 'b'\n",
            "'key_prefix' is given twice",
        ),
        ("#" + "x" * (1 << 20), "larger than 1 MiB"),
    ],
)
def test_malformed_profile_file_is_named(file: Path, text: str, said: str) -> None:
    file.write_text(text, "utf-8")
    message = refused("--profile", "p")
    assert said in message
    assert "top-secret" not in message


def test_unreadable_profile_file_is_named(file: Path) -> None:
    file.write_bytes(b"\xff")
    assert "it is not UTF-8" in refused("--profile", "p")
    file.unlink()
    assert f"{file}; there is no such file" in refused("--profile", "p")
    file.mkdir()
    assert "it cannot be read: Is a directory" in refused("--profile", "p")


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # Which of the two it is depends on the version of Python.
    for name in ("tomli", "tomllib"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "pip install 'redis-state[cli]'" in refused("--profile", "production")


def test_a_folder_that_is_not_absolute_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profiles_path() == tmp_path / ".config" / "redis-state" / "profiles.toml"
