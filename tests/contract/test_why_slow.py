"""Reports of executors and stores on a real Redis, and what `why-slow` makes of them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from redis_state import acl, connect, keys
from redis_state.cli.main import main
from redis_state.cli.operate.maintain import PROBLEMS_STATUS
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.protocol.instances import Instance, find_counted
from redis_state.reader import SlowCauseKind, Slowness
from redis_state.store.provider import StateStoreProvider
from tests.contract.planting import GEN, Planted
from tests.support.redis_server import RedisServer

RECENT: Mapping[str, Any] = {
    "ms": 9_000, "opens": 20, "openUs": 8_000, "loads": 1, "loadUs": 1_000, "commits": 20,
    "commitUs": 40_000, "encodeUs": 10_000, "workUs": 400_000, "rows": 2_000, "bytesSent": 60_000,
    "roundTrips": 41, "redisUs": 30_000, "versions": 20, "openTimes": [4, 30, 6],
}  # fmt: skip


class Scene:
    """A planted query whose executors report."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.client = server.client()
        self.planted = Planted(self.client, partitions=2)
        self.planted.register()
        self.planted.commit(1, [({"carrier": "UA"}, {"count": 1, "total": 0.5})])

    def report(self, executor: str = "1", **changes: Any) -> None:
        instance = Instance("worker-1", executor, "run")
        members = {**instance.members, "recent": {**RECENT, **changes}}
        for partition in range(2):
            self.client.hset(keys.totals(GEN), f"0:{partition}:default", json.dumps(members))

    def diagnosed(self, **options: Any) -> Slowness:
        with connect(self.server.url, **options) as reader:
            return reader.query("flights").why_slow()


@pytest.fixture
def scene(redis_server: RedisServer) -> Scene:
    return Scene(redis_server)


def kinds(found: Slowness) -> list[SlowCauseKind]:
    return [one.kind for one in found.causes]


def test_report_without_anything_odd_has_no_cause(scene: Scene) -> None:
    scene.report()
    found = scene.diagnosed()
    assert (found.causes, found.unknown) == ((), ())
    assert [(one.part, round(one.ms, 2)) for one in found.times] == [
        ("open", 0.35), ("load", 0.05), ("miss", 0), ("task", 20), ("encode", 0.5),
        ("publish", 1.5), ("background", 0),
    ]  # fmt: skip


def test_executors_that_come_and_go_are_named(scene: Scene) -> None:
    scene.report("41", loads=12, loadUs=600_000, openUs=700_000)
    assert kinds(scene.diagnosed()) == [SlowCauseKind.LOST_EXECUTORS]


def test_partitions_that_move_are_named(scene: Scene) -> None:
    scene.report(loads=12, loadUs=600_000, openUs=700_000, versions=40)
    (cause,) = scene.diagnosed().causes
    assert (cause.kind, cause.partitions) == (SlowCauseKind.MOVING_PARTITIONS, (0, 1))


def test_slow_commands_of_others_are_named_without_their_arguments(scene: Scene) -> None:
    script = "local n = 0; for i = 1, 5e7 do n = n + i end; return n"
    end = time.monotonic() + 1
    while time.monotonic() < end:
        scene.client.eval(script, 0, "secret")
    scene.report(
        openUs=400_000, commitUs=400_000, redisUs=900_000, openTimes=[10, 0, 0, 0, 0, 0, 0, 0, 9]
    )
    (cause,) = scene.diagnosed().causes
    assert cause.kind is SlowCauseKind.SERVER_BUSY
    assert ": eval " in cause.found
    assert "secret" not in str(cause)


def test_silent_query_is_unknown(scene: Scene) -> None:
    found = scene.diagnosed()
    assert (found.times, found.causes) == ((), ())
    assert "no process has reported" in found.unknown[0]


@pytest.mark.parametrize(
    "raw",
    ["", "[]", "5", '"recent"', '{"host": "h", "executor": "1", "run": "r", "recent": 5}'],
)
def test_damaged_report_is_unknown(scene: Scene, raw: str) -> None:
    scene.client.hset(keys.totals(GEN), "0:0:default", raw)
    found = scene.diagnosed()
    assert (found.times, found.causes) == ((), ())


@pytest.mark.parametrize("times", [5, [1] * 17, ["1"], [-1], None])
def test_damaged_times_are_left_out(scene: Scene, times: object) -> None:
    scene.report(openTimes=times, rows="many", commitUs=-5)
    found = scene.diagnosed()
    assert {one.part for one in found.times} >= {"open", "task"}
    assert found.causes == ()


def test_reader_without_further_rights_learns_what_reports_say(scene: Scene) -> None:
    rules = acl.rules(acl.Role.READER, version="7.0")
    setuser = ("ACL", "SETUSER", "watcher", *rules, ">secret")
    scene.client.execute_command(*setuser)  # type: ignore[no-untyped-call]  # it has no types
    scene.report(retries=9)
    found = scene.diagnosed(username="watcher", password="secret")
    assert kinds(found) == [SlowCauseKind.RETRIES]
    rights = [line.rpartition(" ")[2] for line in found.unknown]
    assert rights == ["SLOWLOG", "INFO", "PING"]


def test_older_release_reports_totals_alone(scene: Scene) -> None:
    members = {**Instance("worker-1", "1", "run").members, "opens": 9, "openMs": 90}
    members |= {"commits": 9, "commitMs": 90}
    scene.client.hset(keys.totals(GEN), "0:0:default", json.dumps(members))
    found = scene.diagnosed()
    assert [(one.part, one.ms) for one in found.times] == [("open", 10), ("publish", 10)]
    assert "stores of Python and older releases" in found.unknown[0]


def test_totals_are_what_they_are_without_the_window(scene: Scene) -> None:
    """Readers that do not know the member `recent` go on with the others."""
    scene.report()
    with connect(scene.server.url) as reader:
        (counted,) = find_counted(reader.client, [GEN])
    assert all(not one.counts for one in counted.totals.values())
    assert all(one.open_times == (4, 30, 6) for one in counted.totals.values())


def test_store_of_python_says_what_it_does_not_report(redis_server: RedisServer) -> None:
    id_ = StateStoreProviderId(StateStoreId("python", 0, 0), "run")
    with closing(StateStoreProvider(id_, config=redis_server.url)) as provider:
        for version in range(6):
            store = provider.get_store(version)
            store.put("a", version)
            store.commit()
        with connect(redis_server.url) as reader:
            found = reader.query("python").why_slow()
    assert found.causes == ()
    assert any("store default" in line for line in found.unknown)


def test_diagnosis_changes_nothing(scene: Scene) -> None:
    scene.report()
    before = {key: scene.client.dump(key) for key in scene.client.keys("*")}
    scene.diagnosed()
    assert {key: scene.client.dump(key) for key in scene.client.keys("*")} == before


def test_command_prints_times_and_causes_and_sets_its_status(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["why-slow", "flights", "--url", scene.server.url]
    scene.report()
    assert main(arguments) == 0
    assert {json.loads(line)["type"] for line in capsys.readouterr().out.splitlines()} == {"time"}
    scene.report(retries=9)
    assert main(arguments) == PROBLEMS_STATUS
    *_, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (last["type"], last["kind"], last["operator"]) == ("cause", "retries", None)
    assert main([*arguments, "--format", "table"]) == PROBLEMS_STATUS
    shown = capsys.readouterr().out
    assert shown.startswith("operator 0: a batch of one partition\n")
    assert "\nretries\n  Executor 1 on worker-1 sent 9 calls" in shown
