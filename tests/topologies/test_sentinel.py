"""The client behind sentinels, while masters fail."""

from __future__ import annotations

import pytest

from redis_state.errors import ConfigError, UnavailableError
from tests.support.redis_sentinel import SERVICE, SentinelSet
from tests.support.redis_server import free_port
from tests.topologies.conftest import Connect


def test_fail_over_is_followed_within_one_call(sentinels: SentinelSet, connect: Connect) -> None:
    client = connect(url=sentinels.url)
    client.call("writing", [("SET", "k", "before"), ("WAIT", "1", "10000")])
    sentinels.servers[0].kill()
    assert client.transaction("writing", [("APPEND", "k", " and after")]) == [16]
    with sentinels.servers[1].client() as direct:
        assert direct.get("k") == b"before and after"


def test_demoted_master_is_abandoned(sentinels: SentinelSet, connect: Connect) -> None:
    client = connect(url=sentinels.url)
    client.call("writing", [("SET", "k", "before"), ("WAIT", "1", "10000")])
    sentinels.fail_over()
    # Until the old master is told, it takes writes that are lost: docs/topologies.md.
    sentinels.await_roles(b"slave", b"master")
    client.call("writing", [("SET", "k", "after")])
    with sentinels.servers[1].client() as direct:
        assert direct.get("k") == b"after"


def test_stopped_sentinel_is_skipped(sentinels: SentinelSet, connect: Connect) -> None:
    url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{sentinels.port}/{SERVICE}"
    assert connect(url=url).call("reading", [("GET", "k")]) == [None]


def test_no_answer_from_any_sentinel_raises_unavailable(connect: Connect) -> None:
    client = connect(url=f"redis+sentinel://127.0.0.1:{free_port()}/{SERVICE}", deadline="1s")
    with pytest.raises(UnavailableError, match="no sentinel names a master"):
        client.call("reading", [("GET", "k")])


def test_unknown_service_name_raises_config(sentinels: SentinelSet, connect: Connect) -> None:
    client = connect(url=f"redis+sentinel://127.0.0.1:{sentinels.port}/other")
    with pytest.raises(ConfigError, match="no master named 'other'"):
        client.call("reading", [("GET", "k")])


def test_password_is_sent_to_the_servers(connect: Connect) -> None:
    with SentinelSet(password="right-secret") as sentinels:
        client = connect(url=sentinels.url, password="right-secret")
        assert client.call("writing", [("SET", "k", "1")]) == [True]
        wrong = connect(url=sentinels.url, password="wrong-secret")
        with pytest.raises(ConfigError, match="refuses the login") as caught:
            wrong.call("reading", [("GET", "k")])
        assert "secret" not in str(caught.value)
