"""Query status from metadata alone: planted queries and real Python stores."""

from __future__ import annotations

import json

from redis_state import keys
from redis_state.cli.main import main
from redis_state.coordinator import StateStoreCoordinator
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.live import Reader
from redis_state.maintain.recall import expire
from redis_state.protocol import checkpoint_gen
from redis_state.protocol.instances import LATELY_MS, Instance
from redis_state.reader import Hold
from redis_state.store.provider import StateStoreProvider
from tests.contract.planting import GEN, QUERY_ID, Planted, uid
from tests.support.redis_server import RedisServer

UA = {"carrier": "UA"}
AA = {"carrier": "AA"}
ONE = {"count": 1, "total": 0.5}
NOW_MS = 1_700_000_000_000


def test_status_lists_a_query_with_its_partitions(planted: Planted, reader: Reader) -> None:
    planted.partitions = 2
    planted.register()
    planted.client.hset(keys.query(GEN), mapping={"run:run": "1 d", "epoch": "1"})
    planted.commit(1, [(UA, ONE), (AA, ONE)])
    planted.commit(2, [(UA, None)])
    planted.commit(3, [(UA, ONE)], confirmed=False)
    planted.client.hset(keys.meta(planted.id(1)), "t", str(NOW_MS))
    served = Instance("host", "7", "run")
    planted.client.set(keys.instance(planted.id(1)), served.encode())
    (status,) = reader.status()
    assert (status.gen, status.id, status.name, status.run) == (GEN, QUERY_ID, "flights", "run")
    assert (status.created_ms, status.started_ms, status.written_ms) == (1, 1, NOW_MS)
    assert (status.confirmed_batch, status.newest_batch) == (1, 2)
    assert (status.rows, status.served, status.problems) == (1, 1, [])
    (store,) = status.stores
    assert (store.operator, store.store, store.name) == (0, "default", "agg")
    assert [one.name for one in store.families] == ["default"]
    first, second = store.partitions
    assert (first.owner, second.owner) == (None, served)
    assert (second.confirmed, second.newest, second.kept, second.oldest) == (2, 3, 3, 1)
    entries = [
        planted.client.hget(keys.meta(planted.id(1)), f"d:{version}:{uid(version)}")
        for version in (1, 2, 3)
    ]
    sizes = [int(entry.split()[4]) for entry in entries if entry is not None]
    assert second.bytes == second.delta_bytes == sum(sizes) > 0
    assert status.bytes == first.bytes + second.bytes == store.bytes
    assert reader.query("flights").status().stores == status.stores


def test_a_batch_counts_once_every_partition_has_confirmed_it(
    planted: Planted, reader: Reader
) -> None:
    planted.partitions = 2
    planted.register()
    planted.commit(1, [(UA, ONE)])
    planted.delta(0, 2, {})
    (status,) = reader.status()
    assert (status.confirmed_batch, status.newest_batch) == (0, 1)


def test_query_without_writes_has_no_batch(planted: Planted, reader: Reader) -> None:
    planted.register()
    (status,) = reader.status()
    assert (status.confirmed_batch, status.newest_batch, status.rows, status.bytes) == (
        None,
        None,
        0,
        0,
    )
    assert [one.held_by for one in status.partitions] == [None] * 4
    assert not status.alive


def test_status_sends_few_commands_and_no_script(planted: Planted, reader: Reader) -> None:
    for number in range(20):
        planted.gen, planted.live = f"{number:032x}", {}
        planted.register()
        planted.commit(1, [(UA, ONE)])
    before = {key: planted.client.dump(key) for key in planted.client.keys("*")}
    planted.client.config_resetstat()
    assert len(reader.status()) == 20
    stats = planted.client.info("commandstats")
    ran = {name[8:]: found["calls"] for name, found in stats.items()}
    # Redis 6.2 does not tell parts of a command apart.
    for name in ("hello", "client|setinfo", "client|setname", "select", "config|resetstat",
                 "config"):  # fmt: skip
        ran.pop(name, None)
    # The list, and that of sizes; a hash a query; a manifest a partition; the owners of a query.
    assert ran == {"time": 1, "hgetall": 2 + 20 + 20 * 4, "mget": 20}
    assert reader.client.round_trips == 3
    assert {key: planted.client.dump(key) for key in planted.client.keys("*")} == before


def test_damaged_query_hides_no_other(planted: Planted, reader: Reader) -> None:
    names = ("whole", "damaged", "without a hash", "foreign", "odd owner", "uncounted", "lost")
    for number, name in enumerate(names):
        planted.gen, planted.name, planted.partitions = f"{number:032x}", name, 1
        planted.live = {}
        planted.register()
        planted.commit(1, [(UA, ONE)])
        meta = keys.meta(planted.id(0))
        if name == "damaged":
            planted.client.hset(meta, f"d:1:{uid(1)}", "- 1 1")
        elif name == "without a hash":
            planted.client.delete(keys.query(planted.gen))
        elif name == "foreign":
            planted.client.hset(meta, "f", "9")
        elif name == "odd owner":
            planted.client.set(keys.instance(planted.id(0)), "[]")
        elif name == "uncounted":
            planted.partitions = 0
            planted.register()
        elif name == "lost":
            planted.client.hdel(meta, f"d:1:{uid(1)}")
    found = {one.name: one.problems for one in reader.status()}
    of = "operator 0 partition 0 store default: "
    assert found == {
        "whole": [],
        "damaged": [f"{of}an entry of its manifest is damaged"],
        "without a hash": ["its hash of operators and runs is missing"],
        "foreign": [f"{of}it is of a format that this release does not know"],
        "odd owner": [f"{of}an instance has no host, executor and run"],
        "uncounted": ["the number of partitions of operator 0 is unknown"],
        "lost": [f"{of}version 1 is missing"],
    }


def test_missing_manifest_of_a_partition_is_a_problem(planted: Planted, reader: Reader) -> None:
    """Eviction takes it; the others serve their versions."""
    planted.register()
    (status,) = reader.status()
    assert status.problems == []
    planted.commit(1, [(UA, ONE)])
    planted.commit(2, [(UA, ONE)])
    planted.client.delete(keys.meta(planted.id(1)))
    (status,) = reader.status()
    assert status.problems == [
        "operator 0 partition 1 store default: its manifest is missing, while other partitions "
        "have theirs"
    ]
    # More tasks than partitions: nothing is known of those at the end.
    planted.client.delete(keys.meta(planted.id(3)))
    (status,) = reader.status()
    assert len(status.problems) == 1


def test_status_names_what_holds_old_versions(planted: Planted, reader: Reader) -> None:
    planted.partitions = 1
    planted.register()

    def held() -> Hold | None:
        return next(reader.query("flights").status().partitions).held_by

    row = {planted.key(UA): planted.value(ONE)}
    for version in (1, 2):
        planted.delta(0, version, row)
    assert held() is Hold.OPTION
    for version in (3, 4, 5):
        planted.delta(0, version, row)
    # Two are wanted, and all stand on the first delta.
    assert held() is Hold.SNAPSHOT
    entry = planted.client.hget(keys.meta(planted.id(0)), f"d:3:{uid(3)}")
    assert isinstance(entry, bytes)
    snapshot = b"w " + b" ".join(entry.split(b" ")[1:])
    planted.client.hset(keys.meta(planted.id(0)), f"s:3:{uid(3)}", snapshot)
    assert held() is Hold.MAINTENANCE
    for version in (1, 2):
        planted.drop(0, f"d:{version}:{uid(version)}")
    assert held() is Hold.OPTION
    status = next(reader.query("flights").status().partitions)
    assert (status.snapshot, status.snapshot_bytes) == (3, int(snapshot.split(b" ")[4]))
    assert status.bytes == status.delta_bytes + status.snapshot_bytes


def test_replaced_checkpoint_names_its_successor(planted: Planted, reader: Reader) -> None:
    listed = keys.checkpoints()
    for gen, seen in ((GEN, 1), ("f" * 32, 2)):
        planted.gen = gen
        planted.register()
        entry = json.dumps({"path": "ab", "id": gen, "name": "n", "created": seen, "seen": seen})
        planted.client.hset(listed, gen, entry)
    assert [one.replaced_by for one in reader.status()] == ["f" * 32, ""]
    assert reader.query(GEN).status().replaced_by == "f" * 32


def test_batches_of_a_processor_are_counted_from_its_first(
    planted: Planted, reader: Reader
) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE)])
    planted.commit(2, [(UA, ONE)])
    query, layout = keys.query(GEN), '"key k: string; a processor"'
    for text, first, newest in (
        (f"8 7 4 run {layout}", 7, 8),
        (f'7 7 4 run {layout[:-1]} with an initial state"', 7, 7),
    ):
        planted.client.hset(query, "batch:0:default", text)
        (status,) = reader.status()
        assert status.stores[0].first_batch == first
        assert (status.confirmed_batch, status.newest_batch) == (newest, newest)
    planted.client.hset(query, "begun:0:default", f"7 run {NOW_MS} {NOW_MS - 5}")
    (store,) = reader.status()[0].stores
    assert (store.watermark_ms, store.began_ms) == (NOW_MS - 5, NOW_MS)
    planted.client.hset(query, "batch:0:default", "seven")
    assert reader.status()[0].problems == ["the newest batch of a store is malformed"]


def test_seen_time_decides_whether_a_query_is_alive(planted: Planted, reader: Reader) -> None:
    planted.register()
    seconds, _ = planted.client.time()
    query = keys.query(GEN)
    assert (reader.status()[0].driver_alive, reader.status()[0].alive) == (None, False)
    planted.client.hset(query, "seen", str(seconds * 1000 - 2 * LATELY_MS))
    assert (reader.status()[0].driver_alive, reader.status()[0].alive) == (False, False)
    planted.client.hset(query, "seen", str(seconds * 1000))
    assert (reader.status()[0].driver_alive, reader.status()[0].alive) == (True, True)


def test_running_python_store_is_listed(redis_server: RedisServer, reader: Reader) -> None:
    id_ = StateStoreProviderId(StateStoreId("visits", 0, 0), "run-1")
    provider = StateStoreProvider(id_, url=redis_server.url)
    coordinator = StateStoreCoordinator(redis_server.url, threaded=False)
    try:
        for version in range(3):
            store = provider.get_store(version)
            store.put(f"user {version}", version)
            store.commit()
        coordinator.reference("visits").report_active_instance(id_, "here", "1")
        coordinator.heartbeat.tick()
        status = reader.query("visits").status()
        (one,) = status.partitions
        assert (one.confirmed, one.newest, one.rows, one.kept) == (2, 3, 2, 3)
        assert one.owner == Instance("here", "1", "run-1")
        # Versions of a store that counts no batches are none.
        assert (status.confirmed_batch, status.newest_batch, status.driver_alive) == (
            None,
            None,
            None,
        )
        assert status.alive
        assert one.run == status.run
        gen = checkpoint_gen(reader.client, "visits")
        assert gen is not None
        expire(reader.client, gen)
        assert status.now_ms > 0
        assert reader.status() == []
    finally:
        coordinator.stop()
        provider.close()


def test_status_of_a_purged_query_raises(
    planted: Planted, redis_server: RedisServer, reader: Reader
) -> None:
    planted.register()
    planted.commit(1, [(UA, ONE)])
    query = reader.query("flights")
    assert main(["purge", "--url", redis_server.url, "--gen", GEN, "--yes", "--force"]) == 0
    assert "purged" in query.status().problems[0]
