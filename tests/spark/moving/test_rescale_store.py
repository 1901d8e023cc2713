"""A store of Python batches with another number of partitions gives out what it would have."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame

import redis_state
from redis_state import foreach_batch_with_state_store
from redis_state.errors import UsageError
from redis_state.spark.partition_task import BatchStore
from tests.spark.streams import Streams
from tests.spark.test_stateful_processors import OPS, Given, Machine, Queries, batches, same
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("counts", [(2, 5, 1)])
def test_processor_continues_with_other_partitions(
    streams: Streams, shared_redis_server: RedisServer, counts: tuple[int, ...]
) -> None:
    """Value, list and map state and timers; each part of the query has other partitions."""
    queries, url = Queries(streams), shared_redis_server.url
    source = streams.input("in", OPS)
    stays: Given = []
    moves: Given = []
    made = batches(71, count=2 * len(counts))
    for part, count in enumerate(counts):
        for batch in made[2 * part : 2 * part + 2]:
            source.add(batch)
        if part:
            found = redis_state.rescale_store(
                f"{streams.folder} moves", count, url=url, dry_run=True, force=True
            )
            done = redis_state.rescale_store(f"{streams.folder} moves", count, url=url, force=True)
            assert (found.before, found.partitions) == (done.before, done.partitions)
            assert (done.before, done.partitions) == (counts[part - 1], count)
            assert found.new_gen == ""
            assert done.gen != done.new_gen
        for name, given in (("stays", stays), ("moves", moves)):
            wanted = None if part else (3 if name == "stays" else count)
            frame = queries.ours(queries.frame(source), Machine(), name, partitions=wanted)
            queries.start(frame, name, given)
    same(stays, moves)
    assert sum(row[2] < 0 for _, rows in moves for row in rows) > 3, "no timer fired"


def counting() -> Any:
    """A closure travels by value."""

    def count(store: BatchStore, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        seen = {}
        for row in rows:
            key = row["k"], "total"
            store.put(key, (store.get(key) or 0) + row["v"])
            seen[row["k"]] = store.get(key)
        for k, total in sorted(seen.items()):
            yield {"k": k, "total": total}

    return count


def test_user_function_continues_with_other_partitions(
    streams: Streams, shared_redis_server: RedisServer
) -> None:
    url, name = shared_redis_server.url, str(streams.folder)
    source = streams.input("in", "k string, v long")
    found: dict[int, list[str]] = {}

    def write(frame: DataFrame, batch: int) -> None:
        found[batch] = sorted(f"{row.k} {row.total}" for row in frame.collect())

    def run() -> None:
        each = foreach_batch_with_state_store(
            counting(), write, store=name, key="k", schema="k string, total long", url=url
        )
        query = (
            source.stream(streams.spark)
            .writeStream.option("checkpointLocation", str(streams.checkpoint("c")))
            .foreachBatch(each)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    rows = [{"k": f"k{number}", "v": number} for number in range(200)]
    source.add(rows)
    run()
    with pytest.raises(UsageError, match="lies in operator 0 partition"):
        redis_state.rescale_store(name, 3, url=url, force=True, group_of=lambda key: key[1])
    # The keys of the state begin with the key column, which 200 rows in their places prove.
    redis_state.rescale_store(name, 3, url=url, force=True)
    source.add(rows)
    run()
    redis_state.rescale_store(name, 1, url=url, force=True)
    with pytest.raises(UsageError, match="too few, or in one partition"):
        redis_state.rescale_store(name, 2, url=url, force=True)
    redis_state.rescale_store(name, 2, url=url, force=True, group_of=lambda key: key[0])
    source.add(rows)
    run()
    assert found[2] == sorted(f"k{number} {number * 3}" for number in range(200))
