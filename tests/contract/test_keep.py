"""Kept versions: a name holds a version of a query, whatever retention drops."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

import redis_state
from redis_state import aio, config, keys
from redis_state.backend.client import Client
from redis_state.cli.main import main
from redis_state.errors import (
    ConfigError,
    FormatError,
    Kind,
    NotFoundError,
    RedisStateError,
    StateError,
    UnavailableError,
    UsageError,
)
from redis_state.forks import keep as keeping
from redis_state.forks.keep import drop_kept, keep, kept_versions
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.maintain.checkpoint import maintain_checkpoint
from redis_state.maintain.compaction import add_snapshot
from redis_state.maintain.pinned import GONE_MS, maintain_pins
from redis_state.maintain.report import Policy
from redis_state.protocol.kept import KEEP_FIELD, KeptVersion
from redis_state.protocol.partition import PartitionClient
from redis_state.protocol.pins import FORK, KEEP, keep_owner, pin_all
from redis_state.store.provider import StateStoreProvider
from tests.contract.planting import GEN, Planted, plant_checkpoint, uid
from tests.support.redis_server import RedisServer

NAME = "before-deploy"
CARRIERS = [f"c{number}" for number in range(20)]


class Flights:
    """A planted query whose versions each set all carriers to the number of the version."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.raw: Any = redis.Redis.from_url(url)
        self.planted = Planted(self.raw)
        self.planted.register()
        self.version = 0

    def go_on(self, times: int = 1) -> None:
        for _ in range(times):
            self.version += 1
            rows = [({"carrier": one}, {"count": self.version, "total": 0.5}) for one in CARRIERS]
            # The planter writes a new manifest's fields: a partition with pins is of format 2.
            marks = [self.meta(number) for number in range(self.planted.partitions)]
            self.planted.commit(self.version, rows)
            for number, before in enumerate(marks):
                same = {name: before[name] for name in ("f", "w") if name in before}
                if same:
                    self.raw.hset(keys.meta(self.planted.id(number)), mapping=same)

    def drop_older(self) -> None:
        """Makes one more version; retention drops what only those before the newest two need."""
        ids = [self.planted.id(number) for number in range(self.planted.partitions)]
        with closing(Client(config.parse({"url": self.url}))) as client:
            partitions = [PartitionClient(client, id_, versions_to_retain=1) for id_ in ids]
            for partition in partitions:
                add_snapshot(partition, partition.open("", None))
            self.go_on()
            for id_, partition in zip(ids, partitions, strict=True):
                self.raw.hset(keys.meta(id_), "n", "1")
                partition.retain()
        assert {self.meta(id_.partition)["w"] for id_ in ids} == {str(self.version - 1)}

    def count(self, at: str | int) -> set[int]:
        with redis_state.connect(self.url) as reader:
            state = reader.query("flights").operator(0)
            return {value["count"] for _, value in state.items(at=at)}

    def meta(self, partition: int = 0) -> dict[str, str]:
        found = self.raw.hgetall(keys.meta(self.planted.id(partition)))
        return {name.decode(): value.decode() for name, value in found.items()}


@pytest.fixture
def flights(redis_server: RedisServer) -> Iterator[Flights]:
    made = Flights(redis_server.url)
    made.go_on(3)
    yield made
    made.raw.close()


def test_kept_version_is_read_after_retention_dropped_it(flights: Flights) -> None:
    made = keep(flights.url, "flights", name=NAME)
    assert (made.batch, made.version, made.expires_ms) == (2, 3, 0)
    flights.go_on(3)
    flights.drop_older()
    assert any(name.startswith("z:") for name in flights.meta())
    with pytest.raises(StateError) as refused:
        flights.count(2)
    assert refused.value.kind is Kind.VERSION_EXPIRED
    assert flights.count(NAME) == {3}
    assert flights.count("confirmed") == {7}


def test_every_way_of_reading_takes_the_name(flights: Flights, tmp_path: Path) -> None:
    keep(flights.url, "flights", name=NAME)
    flights.go_on(3)
    flights.drop_older()
    key = {"carrier": "c3"}
    with redis_state.connect(flights.url) as reader:
        state = reader.query("flights").operator(0)
        assert state.get(key, at=NAME) == {"count": 3, "total": 0.5}
        assert state.get_many([key, {"carrier": "none"}], at=NAME)[1] is None
        assert state.count(at=NAME) == len(CARRIERS)
        assert {row["count"] for row in state.scan(at=NAME)} == {3}
        assert state.to_arrow(at=NAME).column("count").to_pylist() == [3] * len(CARRIERS)
        view = reader.query("flights").view(at=NAME)
        assert (view.version, view.batch) == (3, 2)
        answer = reader.sql("select distinct count from flights", at=NAME)
        assert answer.to_pylist() == [{"count": 3}]
        export = reader.export("flights", tmp_path / "export", at=NAME)
        assert (export.batch, export.rows) == (2, len(CARRIERS))

    async def awaited() -> object:
        async with await aio.connect(flights.url) as twin:
            return await (await twin.query("flights")).operator(0).get(key, at=NAME)

    assert asyncio.run(awaited()) == {"count": 3, "total": 0.5}


def test_commands_take_the_name(flights: Flights, capsys: pytest.CaptureFixture[str]) -> None:
    def run(command: str) -> list[dict[str, object]]:
        assert main([*shlex.split(command), "--url", flights.url]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    (made,) = run(f"keep flights --name {NAME} --at-batch 1 --for 30d --json")
    assert (made["name"], made["batch"], made["version"]) == (NAME, 1, 2)
    assert run("keep flights --list --json") == [made]
    flights.go_on(3)
    flights.drop_older()
    assert run(f"get flights carrier=c1 --at {NAME} --json") == [{"count": 2, "total": 0.5}]
    rows = run(f"scan flights --at {NAME} --json")
    assert len(rows) == len(CARRIERS)
    assert run(f"sql 'select max(count) as m from flights' --at {NAME} --json") == [{"m": 2}]
    (gone,) = run(f"keep flights --drop {NAME} --json")
    assert gone == made
    assert run("keep flights --list --json") == []
    assert not [name for name in flights.meta() if name[:2] in ("x:", "y:")]


def test_unknown_name_lists_the_names(flights: Flights) -> None:
    keep(flights.url, "flights", name=NAME)
    with pytest.raises(NotFoundError, match=r"no kept version.*'before-deploy' \(batch 2\)"):
        flights.count("after-deploy")


def test_older_batch_is_kept_if_redis_has_it(flights: Flights) -> None:
    flights.go_on(3)
    flights.drop_older()
    with pytest.raises(StateError, match="batches 5 to 6 can be kept"):
        keep(flights.url, "flights", name=NAME, at_batch=1)
    with pytest.raises(StateError, match="batches 5 to 6 can be kept"):
        keep(flights.url, "flights", name=NAME, at_batch=9)
    assert not [name for name in flights.meta() if name[:2] in ("x:", "y:")]
    assert keep(flights.url, "flights", name=NAME, at_batch=5).version == 6


def test_taken_name_is_refused_with_its_batch(flights: Flights) -> None:
    keep(flights.url, "flights", name=NAME)
    flights.go_on()
    before = flights.meta()
    with pytest.raises(UsageError, match=r"of batch 2 already, since \d{4}-") as refused:
        keep(flights.url, "flights", name=NAME)
    assert flights.meta() == before
    (advised,) = re.findall(r"`redis-state ([^`]+)`", str(refused.value))
    assert main([*shlex.split(advised), "--url", flights.url]) == 0
    assert keep(flights.url, "flights", name=NAME).batch == 3


def test_failing_partition_keeps_no_pin(flights: Flights) -> None:
    flights.raw.hdel(keys.meta(flights.planted.id(3)), f"d:2:{uid(2)}")
    with pytest.raises(RedisStateError):
        keep(flights.url, "flights", name=NAME)
    for number in range(4):
        assert not [name for name in flights.meta(number) if name[:2] in ("x:", "y:")]
    assert kept_versions(flights.url, "flights") == []


def test_full_partition_ends_the_pins_of_the_others(flights: Flights) -> None:
    with closing(Client(config.parse({"url": flights.url}))) as client:
        for number in range(64):
            pin_all(client, [flights.planted.id(3)], f"{number:032x}", 3, kind=FORK)
    with pytest.raises(RedisStateError, match="which is the limit"):
        keep(flights.url, "flights", name=NAME)
    assert not [name for name in flights.meta(0) if name[:2] in ("x:", "y:")]


def test_interrupted_call_is_finished_by_the_next(flights: Flights) -> None:
    with closing(Client(config.parse({"url": flights.url}))) as client:
        ids = [flights.planted.id(number) for number in (0, 1)]
        pin_all(client, ids, keep_owner(NAME), 2, kind=KEEP)
    assert keep(flights.url, "flights", name=NAME).version == 3
    flights.go_on(3)
    flights.drop_older()
    assert flights.count(NAME) == {3}


def test_dropped_name_lets_retention_remove_the_segments(flights: Flights) -> None:
    keep(flights.url, "flights", name=NAME)
    flights.go_on(3)
    flights.drop_older()
    assert drop_kept(flights.url, "flights", NAME).batch == 2
    with closing(Client(config.parse({"url": flights.url}))) as client:
        for number in range(4):
            PartitionClient(client, flights.planted.id(number), versions_to_retain=1).retain()
    assert flights.meta()["f"] == "1"
    with pytest.raises(NotFoundError, match="Kept versions: none"):
        drop_kept(flights.url, "flights", NAME)


def test_expired_name_is_absent(flights: Flights) -> None:
    keep(flights.url, "flights", name=NAME, keep_ms=3_600_000)
    query = keys.query(GEN)
    entry = json.loads(flights.raw.hget(query, f"keep:{NAME}") or b"")
    assert entry["expires"] == entry["at"] + 3_600_000
    entry["expires"] = 1
    flights.raw.hset(query, f"keep:{NAME}", json.dumps(entry))
    with pytest.raises(NotFoundError, match="it has expired"):
        flights.count(NAME)
    assert kept_versions(flights.url, "flights") == []
    assert flights.raw.hexists(query, f"keep:{NAME}"), "a list changes nothing"
    assert keep(flights.url, "flights", name=NAME).batch == 2


def test_lost_pin_is_reported_and_not_read_as_empty(flights: Flights) -> None:
    owner = keep(flights.url, "flights", name=NAME).owner
    flights.raw.hdel(keys.meta(flights.planted.id(2)), f"x:{owner}")
    with pytest.raises(StateError, match="does not hold it any more"):
        flights.count(NAME)


@pytest.mark.parametrize(
    "name", ["41", "-1", "1e5", "latest", "Opened", "confirmed", "a b", "x" * 51, ""]
)
def test_name_that_could_be_another_version_is_refused(flights: Flights, name: str) -> None:
    with pytest.raises(ConfigError):
        keep(flights.url, "flights", name=name)


def test_ephemeral_purged_and_moved_checkpoints_are_refused(flights: Flights) -> None:
    meta = keys.meta(flights.planted.id(0))
    flights.raw.pexpire(meta, 3_600_000)
    with pytest.raises(UsageError, match="ephemeral"):
        keep(flights.url, "flights", name=NAME)
    flights.raw.persist(meta)
    flights.raw.hset(keys.query(GEN), "moved:0:default", "x")
    with pytest.raises(StateError, match="number of partitions"):
        keep(flights.url, "flights", name=NAME)
    flights.raw.hdel(keys.query(GEN), "moved:0:default")
    flights.raw.hset(meta, "f", f"purged:{GEN}")
    with pytest.raises(StateError, match="purged"):
        keep(flights.url, "flights", name=NAME)


def test_query_without_confirmed_batch_is_refused(redis_server: RedisServer) -> None:
    planted = Planted(redis_server.client())
    planted.register()
    with pytest.raises(UsageError, match="no batch of it is confirmed"):
        keep(redis_server.url, "flights", name=NAME)


def test_store_of_python_keeps_each_partition_and_grows(redis_server: RedisServer) -> None:
    def commit(partition: int, value: int) -> None:
        id_ = StateStoreProviderId(StateStoreId("orders", 0, partition))
        provider = StateStoreProvider(id_, config=redis_server.url, versions_to_retain=2)
        store = provider.get_store(provider.latest() or 0)
        store.put(f"k{partition}", value)
        provider.get_store(store.commit()).abort()
        provider.close()

    def rows(at: str) -> dict[str, int]:
        with redis_state.connect(redis_server.url) as reader:
            return dict(reader.query("orders").operator(0).items(at=at))

    commit(0, 1)
    commit(2, 1)
    commit(2, 2)
    made = keep(redis_server.url, "orders", name=NAME)
    assert set(made.pins["0:default"]) == {0, 2}
    commit(1, 9)
    commit(2, 9)
    assert rows(NAME) == {"k0": 1, "k2": 2}
    assert rows("confirmed") == {"k0": 1, "k1": 9, "k2": 9}


def rewind(flights: Flights, checkpoint: Path, *more: str) -> int:
    words = ["rewind", "--url", flights.url, "--checkpoint", str(checkpoint), *more]
    return main(words)


def test_query_is_set_back_to_a_kept_version(
    flights: Flights, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(flights.url, "flights", name=NAME, at_batch=1)
    checkpoint = plant_checkpoint(tmp_path, batches=3)
    assert rewind(flights, checkpoint, "--to", NAME, "--yes", "--force") == 0
    assert "batch 1 is the newest now" in capsys.readouterr().out
    assert {one.name for one in (checkpoint / "commits").iterdir() if one.name[0] != "."} == {
        "0",
        "1",
    }


def test_unreachable_kept_version_lists_the_reachable_batches(
    flights: Flights, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(flights.url, "flights", name=NAME)
    flights.go_on(3)
    flights.drop_older()
    checkpoint = plant_checkpoint(tmp_path, batches=7)
    assert rewind(flights, checkpoint, "--to", NAME) != 0
    told = capsys.readouterr().err
    assert "retention has dropped versions" in told
    assert "Batches that can be reached: 5, 6." in told
    assert "--at" in told
    for log in ("offsets", "commits"):
        for batch in range(4):
            (checkpoint / log / str(batch)).unlink()
    assert rewind(flights, checkpoint, "--to", NAME) != 0
    assert "logs lack its batch 2" in capsys.readouterr().err
    assert rewind(flights, checkpoint, "--to", "nothing") != 0
    assert "no kept version" in capsys.readouterr().err


def test_rewind_to_an_abandoned_kept_version_is_refused(
    flights: Flights, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(flights.url, "flights", name=NAME)
    for number in range(4):
        meta = keys.meta(flights.planted.id(number))
        entry = flights.raw.hget(meta, f"d:3:{uid(3)}")
        assert entry is not None
        flights.raw.hset(meta, mapping={f"d:3:{uid(33)}": entry, "lu": uid(33), "ou": uid(33)})
        segment = keys.segment(flights.planted.id(number), f"d:3:{uid(3)}")
        if flights.raw.exists(segment):
            flights.raw.copy(segment, keys.segment(flights.planted.id(number), f"d:3:{uid(33)}"))
    checkpoint = plant_checkpoint(tmp_path, batches=3)
    assert rewind(flights, checkpoint, "--to", NAME) != 0
    assert "wrote batch 2 again" in capsys.readouterr().err


def test_late_call_with_one_name_leaves_the_pins_of_the_faster_one(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower call chose an older version before the faster one began."""
    choose = keeping._Keeping._chosen
    made: list[KeptVersion] = []

    def late(self: Any, batch: int | None) -> Any:
        found = choose(self, batch)
        if not made:
            monkeypatch.setattr(keeping._Keeping, "_chosen", choose)
            flights.go_on()
            made.append(redis_state.keep(flights.url, "flights", name="both"))
        return found

    monkeypatch.setattr(keeping._Keeping, "_chosen", late)
    with pytest.raises(UsageError, match="kept version 'both'"):
        redis_state.keep(flights.url, "flights", name="both")
    wanted = flights.count(made[0].batch)
    flights.drop_older()
    flights.drop_older()
    assert flights.count("both") == wanted


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("at", range(9))
def test_two_calls_with_one_name_leave_the_version_of_one(
    flights: Flights, monkeypatch: pytest.MonkeyPatch, at: int, fails: bool
) -> None:
    """The faster call runs between two steps of the slower one, which may then lose its server."""
    exchange = Client._exchange
    made: list[KeptVersion] = []
    left = at

    def slow(self: Client, attempted: str, commands: Any) -> Any:
        nonlocal left
        left -= 1
        if left == -1:
            with monkeypatch.context() as patch, suppress(UsageError):
                patch.setattr(Client, "_exchange", exchange)
                made.append(keep(flights.url, "flights", name="both"))
            if fails:
                raise UnavailableError("a test", found="the server is gone", advice="Wait.")
        return exchange(self, attempted, commands)

    with monkeypatch.context() as patch, suppress(UsageError, UnavailableError):
        patch.setattr(Client, "_exchange", slow)
        made.append(keep(flights.url, "flights", name="both"))
    assert left < 0
    kept = kept_versions(flights.url, "flights")
    assert len(made) == len(kept) == 1 or (fails and len(kept) == 1)
    flights.go_on()
    flights.drop_older()
    flights.drop_older()
    assert flights.count("both") == {3}
    assert drop_kept(flights.url, "flights", "both") == kept[0]


def test_pins_of_an_interrupted_call_end_after_two_looks(flights: Flights) -> None:
    id_ = flights.planted.id(0)
    with closing(Client(config.parse({"url": flights.url}))) as client:
        owner = keep_owner(NAME)
        pin_all(client, [id_], owner, 2, kind=KEEP)
        named = keep(flights.url, "flights", name=NAME).owner

        def maintain() -> int:
            return maintain_pins(client, id_, flights.raw.hgetall(keys.meta(id_)))

        assert maintain() == 0
        (note,) = flights.raw.hkeys(keys.looks())
        assert note.decode() == f"{GEN}:{owner}"
        assert maintain() == 0
        at = json.loads(flights.raw.hget(keys.looks(), note))["at"]
        flights.raw.hset(keys.looks(), note, json.dumps({"at": at - GONE_MS}))
        assert maintain() == 1
    assert [name for name in flights.meta() if name[:2] == "x:"] == [f"x:{named}"]
    assert flights.count(NAME) == {3}


def test_damaged_entry_is_named_and_can_be_dropped(flights: Flights) -> None:
    keep(flights.url, "flights", name="good")
    flights.raw.hset(keys.query(GEN), f"keep:{NAME}", '{"batch": 1}')
    with pytest.raises(FormatError, match=f"--drop {NAME}"):
        kept_versions(flights.url, "flights")
    with pytest.raises(FormatError):
        drop_kept(flights.url, "flights", "good")
    assert drop_kept(flights.url, "flights", NAME).name == NAME
    assert [one.name for one in kept_versions(flights.url, "flights")] == ["good"]


def test_drop_ends_pins_of_a_call_that_was_killed(flights: Flights) -> None:
    """Such pins have no name, and a purge refuses the checkpoint because of them."""
    ids = [flights.planted.id(number) for number in range(flights.planted.partitions)]
    with closing(Client(config.parse({"url": flights.url}))) as client:
        pin_all(client, ids, keep_owner("half"), 3, kind=KEEP)
    assert any(name.startswith("x:keep.half.") for name in flights.meta())
    drop_kept(flights.url, "flights", "half")
    assert not any(name.startswith("x:") for name in flights.meta())
    with pytest.raises(NotFoundError):
        drop_kept(flights.url, "flights", "half")


def test_maintenance_removes_expired_names_whose_pins_have_ended(flights: Flights) -> None:
    """An executor ends expired pins, and removes no name."""
    keep(flights.url, "flights", name=NAME)
    made = keep(flights.url, "flights", name="short", keep_ms=60_000)
    query = keys.query(flights.planted.id(0).store.gen)
    entry = json.loads(flights.raw.hget(query, made.field))
    flights.raw.hset(query, made.field, json.dumps({**entry, "expires": 1}))
    for number in range(flights.planted.partitions):
        flights.raw.hdel(keys.meta(flights.planted.id(number)), f"x:{made.owner}")
    with closing(Client(config.parse({"url": flights.url}))) as client:
        maintain_checkpoint(client, flights.planted.id(0).store.gen, policy=Policy("worker"))
    assert flights.raw.hexists(query, KEEP_FIELD + NAME)
    assert not flights.raw.hexists(query, made.field)
