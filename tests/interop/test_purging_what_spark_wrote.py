"""The command `purge` on a checkpoint that Spark made, judged by the keys of the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sf

from redis_state.cli.main import main
from redis_state.live import Reader
from redis_state.maintain import purge_vanished, vanished_checkpoints
from tests.contract.test_coordinator_thread import until
from tests.spark.streams import PROVIDER, REDIS, Streams
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

ROWS = [{"k": f"k{number}", "v": number} for number in range(200)]


def _run(streams: Streams, name: str, *, join: bool = False) -> str:
    """One more batch; the id of the checkpoint."""
    sources = [streams.input(f"{name}{side}", "k string, v long") for side in range(2)]
    for source in sources:
        source.add(ROWS)
    left, right = (source.stream(streams.spark) for source in sources)
    frame = (
        left.join(right.select(sf.col("k").alias("r")), sf.expr("k = r"))
        if join
        else left.groupBy("k").agg(sf.sum("v").alias("total"))
    )
    streams.run(frame, name, mode="append" if join else "update")
    marker = streams.checkpoint(name) / "state" / "_redis_state"
    gen: str = json.loads(marker.read_text("utf-8"))["gen"]
    return gen


def _keys(server: RedisServer, gen: str) -> list[bytes]:
    """All but who serves it and what it counts, which a heartbeat may enter at any time."""
    with server.client() as client:
        found = [key for key in client.scan_iter(count=1000) if gen.encode() in key]
    return sorted(key for key in found if b"}:i:" not in key and not key.endswith(b"}:t"))


def _purge(server: RedisServer, checkpoint: Path, *arguments: str) -> int:
    return main(["purge", "--url", server.url, "--checkpoint", str(checkpoint), *arguments])


@pytest.mark.parametrize("join", [False, True])
def test_all_keys_expire_or_are_removed_and_the_neighbour_stays(
    streams: Streams,
    reader: Reader,
    shared_redis_server: RedisServer,
    capsys: pytest.CaptureFixture[str],
    join: bool,
) -> None:
    stays, gone = _run(streams, "stays"), _run(streams, "gone", join=join)
    before = _keys(shared_redis_server, stays)
    assert _keys(shared_redis_server, gone)
    checkpoint = streams.checkpoint("gone")
    assert _purge(shared_redis_server, checkpoint, "--dry-run") == 0
    assert "0 strays" in capsys.readouterr().out
    # A run that began just now may live, though no executor has reported yet.
    assert _purge(shared_redis_server, checkpoint, "--yes") == 1
    told = capsys.readouterr().err
    assert "its newest run was registered" in told
    assert "a partition was written" in told
    assert _purge(shared_redis_server, checkpoint, "--yes", "--force") == 0
    with shared_redis_server.client() as client:
        assert all(client.pttl(key) > 0 for key in _keys(shared_redis_server, gone))
    assert gone not in [info.gen for info in reader.queries()]
    assert _purge(shared_redis_server, checkpoint, "--yes", "--now", "--force") == 0
    assert _keys(shared_redis_server, gone) == []
    assert gone not in [info.gen for info in reader.queries()]
    assert _keys(shared_redis_server, stays) == before
    state = reader.query(stays).operator(0)
    assert state.get({"k": "k7"}, version=1) == {"sum": 7}


def test_purged_query_is_refused_by_name_and_continues_after_a_recall(
    streams: Streams, reader: Reader, shared_redis_server: RedisServer
) -> None:
    gen = _run(streams, "again")
    checkpoint = streams.checkpoint("again")
    assert _purge(shared_redis_server, checkpoint, "--yes", "--force") == 0
    source = streams.input("again0", "k string, v long")
    (source.folder / "more.json").write_text('{"k": "k7", "v": 1}\n', "utf-8")
    frame = source.stream(streams.spark).groupBy("k").agg(sf.sum("v").alias("total"))
    advice = f"REDIS_STATE_LOST.*redis-state purge --gen {gen} --recall"
    with pytest.raises(StreamingQueryException, match=advice):
        streams.run(frame, "again")
    assert _purge(shared_redis_server, checkpoint, "--recall") == 0
    streams.run(frame, "again")
    assert reader.query(gen).operator(0).get({"k": "k7"}, version=2) == {"sum": 8}
    with shared_redis_server.client() as client:
        assert all(client.pttl(key) == -1 for key in _keys(shared_redis_server, gen))
    assert _purge(shared_redis_server, checkpoint, "--yes", "--now", "--force") == 0
    (source.folder / "still.json").write_text('{"k": "k7", "v": 1}\n', "utf-8")
    with pytest.raises(StreamingQueryException, match="REDIS_STATE_LOST"):
        streams.run(frame, "again")


def test_the_driver_of_a_query_that_waits_for_data_is_a_sign_of_life(
    streams: Streams,
    reader: Reader,
    shared_redis_server: RedisServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The query began and wrote long ago, and its executors were given up."""
    source = streams.input("waits", "k string, v long")
    source.add(ROWS)
    streams.spark.conf.set(PROVIDER, REDIS)
    query = (
        source.stream(streams.spark)
        .groupBy("k")
        .agg(sf.sum("v").alias("total"))
        .writeStream.outputMode("update")
        .queryName("waits")
        .foreachBatch(lambda batch, _: print(batch.count()))
        .option("checkpointLocation", str(streams.checkpoint("waits")))
        .start()
    )
    jvm: Any = streams.spark._jvm
    pulse = jvm.org.apache.spark.sql.redisstate.query.RunPulse
    try:
        query.processAllAvailable()
        (gen,) = [info.gen for info in reader.queries() if info.name == "waits"]
        _age(shared_redis_server, gen)
        assert pulse.beatAll() == 1
        checkpoint = streams.checkpoint("waits")
        assert _purge(shared_redis_server, checkpoint, "--yes") == 1
        assert "the driver of its run reported" in capsys.readouterr().err
        assert purge_vanished(reader.client, age_ms=86_400_000).purged == 0
        assert vanished_checkpoints(reader.client, age_ms=86_400_000) == []
    finally:
        query.stop()
    until(lambda: pulse.beatAll() == 0)


def _age(server: RedisServer, gen: str) -> None:
    """Nothing but its driver shows that it lives."""
    with server.client() as client:
        for key in _keys(server, gen):
            if key.endswith(b"}:m"):
                client.hset(key, "t", "1")
        client.hset(f"{{rs:{gen}}}:q", "epoch", "1")
        entry = json.loads(client.hget("{rs}:c", gen))
        client.hset("{rs}:c", gen, json.dumps(entry | {"seen": 1}))


def test_the_key_is_printed(
    streams: Streams, shared_redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    gen = _run(streams, "printed")
    connection = [gen, "--url", shared_redis_server.url]
    assert main(["get", *connection, "--version", "1", "k=k5"]) == 0
    assert json.loads(capsys.readouterr().out) == {"sum": 5}
