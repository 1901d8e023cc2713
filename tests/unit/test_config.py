"""The options in Python: names, types, ranges, and the errors for wrong ones."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from redis_state import config
from redis_state.cli.other import options_doc
from redis_state.config import Config, normalize, parse
from redis_state.errors import ConfigError
from redis_state.url import Endpoint, parse_url

URL = "redis://localhost:6379/0"
DOCS = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def test_fields_and_defaults_match_the_table() -> None:
    assert [f.name for f in fields(Config)] == [
        *(o.python_name for o in config.options().values()),
        "state_ttls",  # of `stateTtl.<operator id>`
    ]
    assert parse({"url": URL}) == Config(url=Endpoint("localhost", 6379, 0, tls=False))


def test_configuration_page_is_current() -> None:
    """The page is renewed by `redis-state options-doc > docs/configuration.md`."""
    assert DOCS.read_text("utf-8") == options_doc.page()


def test_option_is_found_in_three_spellings() -> None:
    for name in ("tls.caFile", "tls_ca_file", config.conf_prefix() + "tls.caFile"):
        assert config.option_named(name).name == "tls.caFile"
    for name in ("stateTtl.3", "state_ttl_3", config.conf_prefix() + "stateTtl.3"):
        assert config.option_named(name).name == "stateTtl.3"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("versionToRetain", "versionsToRetain"),
        ("passwordfile", "passwordFile"),
        ("socket_time_out", "socket_timeout"),
        ("tls.ca", "tls.caFile"),
        ("keyprefix", "keyPrefix"),
    ],
)
def test_unknown_option_suggests_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"no option '{name}'. Did you mean '{nearest}'"):
        parse({"url": URL, name: "x"})


def test_unknown_option_without_a_near_name_lists_all() -> None:
    with pytest.raises(ConfigError, match=r"no option 'zzz'\. Options: url, "):
        parse({"url": URL, "zzz": "x"})


@pytest.mark.parametrize(
    ("name", "given", "text", "value"),
    [
        ("deadline", "90s", "90s", 90_000),
        ("deadline", timedelta(minutes=2), "120000ms", 120_000),
        ("deadline", 10, "10000ms", 10_000),
        ("deadline", 1.5, "1500ms", 1_500),
        ("socket_timeout", "500ms", "500ms", 500),
        ("local_memory", "2g", "2g", 2 << 30),
        ("local_memory", "512MB", "512MB", 512 << 20),
        ("local_memory", "auto", "auto", "auto"),
        ("versions_to_retain", 20, "20", 20),
        ("versions_to_retain", " 20 ", "20", 20),
        ("ephemeral", True, "true", True),
        ("ephemeral", "FALSE", "FALSE", False),
        ("on_path_change", "adopt", "adopt", "adopt"),
        ("key_prefix", "team-1", "team-1", "team-1"),
        ("password_file", Path("/run/secret"), "/run/secret", "/run/secret"),
    ],
)
def test_valid_values_are_parsed(name: str, given: object, text: str, value: object) -> None:
    options = {"url": URL, name: given}
    assert normalize(options)[config.option_named(name).name] == text
    assert getattr(parse(options), name) == value


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deadline": "60"}, "'60' is not a duration"),
        ({"deadline": "1 day"}, "not a duration"),
        ({"deadline": "60 s"}, "not a duration"),
        ({"deadline": "2h"}, "out of range"),
        ({"socketTimeout": "6s"}, "out of range"),
        ({"deadline": True}, "a Python bool"),
        ({"deadline": -1}, "not a duration"),
        ({"deadline": float("nan")}, "not a duration"),
        ({"localMemory": "lots"}, "not a size"),
        ({"localMemory": "1k"}, "out of range"),
        ({"versionsToRetain": "1"}, "out of range"),
        ({"versionsToRetain": "ten"}, "not a whole number"),
        ({"versionsToRetain": True}, "a Python bool"),
        ({"ephemeral": "yes"}, "not a truth value"),
        ({"durability": "disk"}, "This release accepts: none, replicas:n, aof"),
        ({"onPathChange": "fork"}, "fail, adopt"),
        ({"keyPrefix": "a{b"}, "not a key prefix"),
        ({"keyPrefix": ""}, "not a key prefix"),
        ({"username": "joe"}, "'password' or 'passwordFile' is missing"),
        ({"password": "a", "passwordFile": "f"}, "Give one of the two"),
        ({"tls.caFile": "f"}, "Use a rediss:// URL"),
        ({"url": "rediss://h", "tls.certFile": "f"}, "'tls.keyFile' is missing"),
        ({"url": "rediss://h", "tls.keyFile": "f"}, "'tls.certFile' is missing"),
        ({"deadline": "9s", config.conf_prefix() + "deadline": "8s"}, "given twice"),
        ({"url": None}, "'url'; it is missing"),
    ],
)
def test_wrong_values_raise_config(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse({"url": URL, **options})


@pytest.mark.parametrize("password", ["", "geheim\n", " geheim", b"geheim", 7])
def test_a_password_is_never_shown(password: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({"url": URL, "password": password})
    assert "geheim" not in str(caught.value)
    assert "geheim" not in repr(parse({"url": URL, "password": "geheim"}))


def test_password_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    made = parse({"url": URL, "username": "joe", "password_file": path})
    with pytest.raises(ConfigError, match="there is no such file"):
        made.read_password()
    path.write_text("\n")
    with pytest.raises(ConfigError, match="empty"):
        made.read_password()
    path.write_text("two words \n")
    assert made.read_password() == "two words "
    assert parse({"url": URL, "password": "x"}).read_password() == "x"
    assert parse({"url": URL}).read_password() is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis://localhost", Endpoint("localhost", 6379, 0, tls=False)),
        ("redis://10.0.0.1:7000/", Endpoint("10.0.0.1", 7000, 0, tls=False)),
        ("rediss://redis.example.com:1/15", Endpoint("redis.example.com", 1, 15, tls=True)),
        ("redis://[::1]:6380/2", Endpoint("::1", 6380, 2, tls=False)),
    ],
)
def test_valid_urls_are_parsed(text: str, expected: Endpoint) -> None:
    assert parse_url(text) == expected
    assert parse_url(expected.url) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("redis://joe:geheim@h", "Remove the part before '@'"),
        ("redis://:geheim@h", "passwordFile"),
        ("http://geheim", "begin with redis://"),
        ("localhost:6379", "begin with redis://"),
        ("", "begin with redis://"),
        ("redis://", "host is missing"),
        ("redis://h:geheim", "not a number up to 65535"),
        ("redis://h:70000", "not a number up to 65535"),
        ("redis://h:0", "is 0"),
        ("redis://h:", "missing after"),
        ("redis://[::1", "malformed"),
        ("redis://h/geheim", "database number"),
        ("redis://h/01", "database number"),
        ("redis://h/-1", "database number"),
        ("redis://h/0/1", "database number"),
        ("redis://h?password=geheim", "after '\\?'"),
        ("redis://h/0#geheim", "after '\\?'"),
        ("redis://a,b", "a host name cannot have"),
        ("redis://a b", "a blank"),
    ],
)
def test_wrong_url_is_explained_without_quoting_it(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse({"url": text})
    assert "geheim" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("folder", ["s3a://bucket/disk", "file:/mnt/disk1", "disk1", "~/disk1"])
def test_local_disk_has_an_absolute_path_and_no_address(folder: str) -> None:
    options = {"url": "redis://localhost:6379/0", "local_disk": "1g"}
    assert parse({**options, "local_disk_folder": "/mnt/disk1"}).local_disk_folder == "/mnt/disk1"
    with pytest.raises(ConfigError, match=r"localDiskFolder.*no absolute path"):
        parse({**options, "local_disk_folder": folder})
