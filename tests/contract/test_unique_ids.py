"""Checkpoint format 2: several attempts at one version, each read by its unique id.

The attempts are planted; the version that the query went on with is what `opened` names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest
import redis

from redis_state import config, keys
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.errors import ConfigError, Kind, StateError
from redis_state.format.rows import Value
from redis_state.format.segment import SegmentWriter
from redis_state.live import Reader
from redis_state.maintain import Policy, maintain_checkpoint
from tests.contract.planting import GEN, PLAIN, Planted
from tests.support.redis_server import RedisServer, bytes_of

UA = {"carrier": "UA"}
WORKER = Policy("worker-1", deep=True)


@pytest.fixture
def raw(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


@pytest.fixture
def planted(raw: redis.Redis) -> Planted:
    planted = Planted(raw, partitions=1)
    planted.register()
    return planted


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[Client]:
    client = Client(config.parse({"url": redis_server.url, "deadline": "5s"}))
    yield client
    client.close()


def attempt(planted: Planted, version: int, uid: str, parent: str, count: int) -> None:
    """Commits UA = count as one of several attempts; the one that came last is `latest`."""
    rows: Mapping[bytes, Value] = {
        planted.key(UA): planted.value({"count": count, "total": 0.0}),
        planted.key({"carrier": uid}): planted.value({"count": 0, "total": 0.0}),
    }
    ident = f"d:{version}:{uid}"
    writer = SegmentWriter(ident, [PLAIN], None)
    writer.add(rows)
    entry = writer.finish(ref=parent, live=version + 1, with_families=version == 1)
    meta, segment = keys.meta(planted.id(0)), keys.segment(planted.id(0), ident)
    fields: Mapping[str, bytes] = writer.fields
    planted.client.hset(segment, mapping=dict(fields))  # type: ignore[arg-type]  # its stub
    head: Mapping[str, str] = {
        ident: entry.text,
        "f": "1",
        "e": "1",
        "r": "run",
        "n": "1",
        "c": "2",
        "l": str(version),
        "lu": uid,
    }
    planted.client.hset(meta, mapping=dict(head))  # type: ignore[arg-type]  # its stub
    planted.client.hsetnx(meta, "w", "0")
    planted.client.hsetnx(meta, "o", "0")
    planted.client.hsetnx(meta, "ou", "-")


def go_on_with(planted: Planted, version: int, uid: str) -> None:
    """Sets the fields that `open` of the next batch sets."""
    head: Mapping[str, str] = {"o": str(version), "ou": uid, "l": str(version), "lu": uid}
    planted.client.hset(keys.meta(planted.id(0)), mapping=dict(head))  # type: ignore[arg-type]  # its stub


def segments(planted: Planted) -> set[str]:
    names = planted.client.hkeys(keys.meta(planted.id(0)))
    return {name.decode() for name in map(bytes_of, names) if name[:2] in (b"d:", b"s:")}


def test_each_attempt_reads_as_it_was_committed(planted: Planted, reader: Reader) -> None:
    attempt(planted, 1, "a1", "-", 1)
    attempt(planted, 1, "b1", "-", 10)
    go_on_with(planted, 1, "a1")
    attempt(planted, 2, "a2", "a1", 2)
    attempt(planted, 2, "b2", "a1", 20)
    state = reader.query(GEN).operator()
    read = {
        uid: state.get(UA, version=version, uids=[uid])
        for version, uid in [(1, "a1"), (1, "b1"), (2, "a2"), (2, "b2")]
    }
    assert {uid: value and value["count"] for uid, value in read.items()} == {
        "a1": 1,
        "b1": 10,
        "a2": 2,
        "b2": 20,
    }
    carriers = {key["carrier"] for key, _ in state.items(version=2, uids=["b2"])}
    assert carriers == {"UA", "a1", "b2"}
    # What the query went on with is read without an id, not what came last.
    assert state.get(UA) == state.get(UA, version=1) == {"count": 1, "total": 0.0}


def test_ids_have_to_fit(planted: Planted, reader: Reader) -> None:
    attempt(planted, 1, "a1", "-", 1)
    state = reader.query(GEN).operator()
    with pytest.raises(ConfigError, match="no version has these ids"):
        state.get(UA, uids=["a1"])
    with pytest.raises(ConfigError, match="2 ids were given for 1 partitions"):
        state.get(UA, version=1, uids=["a1", "b1"])
    with pytest.raises(ConfigError, match="an id is malformed"):
        list(state.items(version=1, uids=["a:1"]))
    with pytest.raises(StateError) as lost:
        state.get(UA, version=1, uids=["c1"])
    assert lost.value.kind == Kind.STATE_LOST


def test_the_command_reads_by_id(
    planted: Planted, redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt(planted, 1, "a1", "-", 1)
    attempt(planted, 1, "b1", "-", 10)
    shared = ["get", GEN, "--url", redis_server.url, "--version", "1"]
    for uid, count in (("a1", 1), ("b1", 10)):
        assert main([*shared, "--uid", uid, "carrier=UA"]) == 0
        assert json.loads(capsys.readouterr().out)["count"] == count


def test_retention_keeps_the_lineage_and_attempts_that_may_be_chosen(
    planted: Planted, client: Client, reader: Reader
) -> None:
    parent = "-"
    for version in range(1, 8):
        for branch in "ab":
            attempt(planted, version, f"{branch}{version}", parent, version)
        parent = f"{'ab'[version % 2]}{version}"
        if version < 7:
            go_on_with(planted, version, parent)
    report = maintain_checkpoint(client, GEN, policy=WORKER, name="flights")
    assert (report.snapshots, report.problems) == (1, [])
    left = segments(planted)
    assert {"d:7:a7", "d:7:b7"} <= left, "either may be what Spark logged"
    on_lineage = {f"d:{version}:{'ab'[version % 2]}{version}" for version in range(1, 7)}
    assert {name for name in left if name[0] == "d"} == on_lineage | {"d:7:a7", "d:7:b7"}
    assert {name for name in left if name[0] == "s"} == {"s:6:a6"}
    state = reader.query(GEN).operator()
    for uid in ("a7", "b7"):
        assert {key["carrier"] for key, _ in state.items(version=7, uids=[uid])} == {
            "UA",
            *(name[4:] for name in on_lineage),
            uid,
        }
    with pytest.raises(StateError):
        state.get(UA, version=6, uids=["b6"])
    assert state.get(UA, version=5, uids=["b5"]) == {"count": 5, "total": 0.0}


def test_a_restart_from_an_older_version_leaves_the_other_timeline_until_it_is_passed(
    planted: Planted, client: Client, reader: Reader
) -> None:
    parent = "-"
    for version in range(1, 6):
        attempt(planted, version, f"a{version}", parent, version)
        parent = f"a{version}"
        go_on_with(planted, version, parent)
    go_on_with(planted, 3, "a3")
    attempt(planted, 4, "b4", "a3", 40)
    maintain_checkpoint(client, GEN, policy=WORKER, name="flights")
    state = reader.query(GEN).operator()
    assert state.get(UA, version=5, uids=["a5"]) == {"count": 5, "total": 0.0}
    go_on_with(planted, 4, "b4")
    attempt(planted, 5, "b5", "b4", 50)
    go_on_with(planted, 5, "b5")
    report = maintain_checkpoint(client, GEN, policy=WORKER, name="flights")
    assert report.problems == []
    assert state.get(UA) == {"count": 50, "total": 0.0}
    with pytest.raises(StateError):
        state.get(UA, version=5, uids=["a5"])
