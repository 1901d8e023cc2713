"""State by columns of keys that belong to other partitions: whose later rows would not find it."""

from __future__ import annotations

import sys
import uuid

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException

import redis_state
from redis_state.spark.processor.columns import ColumnState
from tests.spark.streams import Streams
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.spark

# Python workers cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("deed", ["put", "get", "remove", "set_timers", "delete_timers"])
def test_keys_of_other_partitions_are_refused(
    streams: Streams, shared_redis_server: RedisServer, deed: str
) -> None:
    """A later row of such a key would come to its own partition, and find nothing there."""

    def give_to_all(state: ColumnState, table: pa.Table) -> None:
        keys = pa.array([f"k{number}" for number in range(20)])
        if not table.num_rows:
            return
        if deed == "put":
            state.put(keys, pa.table({"n": [1] * 20}))
        elif deed in ("get", "remove"):
            getattr(state, deed)(keys)
        else:
            getattr(state, deed)(keys, [1] * 20)

    source = streams.input("in", "k string, v long")
    source.add([{"k": "k1", "v": 1}])
    made = redis_state.transform_columns_with_state(
        source.stream(streams.spark), give_to_all, store=uuid.uuid4().hex, key="k",
        state="n long", schema="n long", time_mode="ProcessingTime", url=shared_redis_server.url,
    )  # fmt: skip
    with pytest.raises(StreamingQueryException, match="keys do not belong to this partition"):
        streams.run(made, "to all")


def test_own_keys_are_accepted(streams: Streams, shared_redis_server: RedisServer) -> None:
    """Whatever the type: those of the rows, and those of timers that are due."""

    def count(state: ColumnState, table: pa.Table) -> pa.Table:
        due = state.expired()
        state.remove(due.select(["k", "d"]))
        new = table.group_by(["k", "d"]).aggregate([("v", "sum")])
        keys = new.select(["k", "d"])
        assert state.get(keys).num_rows == new.num_rows
        state.put(keys, pa.table({"n": new["v_sum"]}))
        state.set_timers(keys, [state.times.processing_ms - 1] * new.num_rows)
        return pa.table({"n": [due.num_rows]})

    source = streams.input("in", "k string, d double, v long")
    rows = [{"k": f"k{at % 7}", "d": (-1) ** at * (at // 7) / 2, "v": at} for at in range(30)]
    source.add(rows)
    source.add([])
    made = redis_state.transform_columns_with_state(
        source.stream(streams.spark), count, store=uuid.uuid4().hex, key=["k", "d"],
        state="n long", schema="n long", time_mode="ProcessingTime", url=shared_redis_server.url,
    )  # fmt: skip
    output: dict[int, list[str]] = {}
    streams.run(made, "own", output=output)
    fired = sum(int(row.removeprefix("Row(n=").removesuffix(")")) for row in output[1])
    assert fired == len({(row["k"], row["d"]) for row in rows})
