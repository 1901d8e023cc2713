"""The URL grammar, on the vectors that the JVM adapter is tested on too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from redis_state.errors import ConfigError
from redis_state.url import Address, ClusterEndpoint, SentinelEndpoint, SocketEndpoint, parse_url

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).parent.parent.joinpath("vectors", "urls.json").read_text("utf-8")
)
GOOD = VECTORS["good"] + VECTORS["pythonOnly"]
BAD = VECTORS["bad"] + VECTORS["badForPython"]


@pytest.mark.parametrize("vector", GOOD, ids=lambda v: v["text"])
def test_url_round_trips_in_full_form(vector: dict[str, str]) -> None:
    found = parse_url(vector["text"])
    assert found.url == vector["url"]
    assert parse_url(found.url) == found


@pytest.mark.parametrize("vector", BAD, ids=lambda v: v["text"])
def test_wrong_url_is_explained_without_quoting_it(vector: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(vector["text"])
    assert vector["found"] in str(caught.value)
    assert "geheim" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_url_with_too_many_servers_is_refused() -> None:
    with pytest.raises(ConfigError, match="more than 64 servers"):
        parse_url("redis+cluster://" + ",".join(["h"] * 65))


def test_each_url_form_parses_to_its_endpoint() -> None:
    assert parse_url("redis+sentinel://a,b:1/m/2") == SentinelEndpoint(
        (Address("a", 26379), Address("b", 1)), "m", 2, tls=False
    )
    assert parse_url("rediss+cluster://a") == ClusterEndpoint((Address("a", 6379),), tls=True)
    assert parse_url("unix:///a/b?db=7") == SocketEndpoint("/a/b", 7)
