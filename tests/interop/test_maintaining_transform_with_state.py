"""A worker without Spark maintains state with column families, ordered ones and lists."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame

from redis_state.live import Reader
from tests.interop.test_maintaining_what_spark_wrote import only_snapshots, partitions
from tests.spark.streams import REDIS, ROCKSDB, Output, Streams
from tests.spark.test_operators import EVENTS, events
from tests.spark.test_transform_with_state import OUT, Everything
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark


def test_query_continues_from_the_workers_snapshots(
    streams: Streams, reader: Reader, shared_redis_server: RedisServer
) -> None:
    def build(frame: DataFrame) -> DataFrame:
        grouped = frame.withWatermark("ts", "1 minute").groupBy("k")
        return grouped.transformWithStateInPandas(
            Everything(), outputStructType=OUT, outputMode="Update", timeMode="EventTime"
        )

    outputs: dict[str, Output] = {}
    batches = events(7, rows=16, keys=5)
    half = len(batches) // 2
    for provider in (ROCKSDB, REDIS):
        label = provider.rsplit(".", 1)[-1]
        source = streams.input(label, EVENTS)
        output: Output = {}
        for part in (batches[:half], batches[half:]):
            for batch in part:
                source.add(batch[0])
            frame = build(source.stream(streams.spark))
            ran = streams.run(frame, label, provider=provider, output=output)
            if provider == REDIS and part == batches[:half]:
                # Found by the query's id, although Python workers write outside of a task.
                ids = partitions(reader.query(str(ran.id)))
                assert [id_.partition for id_ in ids] == [0, 1]
                assert only_snapshots(reader, shared_redis_server, ids) == 2
        outputs[label] = output
    first, second = outputs.values()
    assert second == first
    assert any("timer" in row for rows in second.values() for row in rows)
