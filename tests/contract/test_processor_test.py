"""`redis_state.testing` drives processors as a query does."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal, localcontext
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

from redis_state.batches.streams import Inputs
from redis_state.codec.typed_row import TypedRow
from redis_state.errors import UsageError
from redis_state.ids import StateStoreId, StateStoreProviderId
from redis_state.spark.processor.columns import ColumnEngine, ColumnState
from redis_state.spark.processor.handle import ProcessorQueryInfo
from redis_state.store.scratch import scratch_store
from redis_state.testing import ProcessorTest, redis_url
from redis_state.types.declared import schema_json
from tests.contract.processors import INPUT, OUTPUT, Expiring, Remembering, Variables
from tests.support.redis_server import RedisServer

__all__ = ["redis_url"]

MINUTE = 60_000
START = int(datetime.fromisoformat("2024-01-01T00:00:00+00:00").timestamp() * 1000)


def variables(url: str | None, **options: Any) -> ProcessorTest:
    return ProcessorTest(
        Variables(),
        key="user",
        input=INPUT,
        schema=OUTPUT,
        time_mode="EventTime",
        event_time="ts",
        delay="1 minute",
        url=url,
        **options,
    )


def expiring(url: str) -> ProcessorTest:
    return ProcessorTest(
        Expiring(),
        key=["user", "site"],
        input="user string, site string",
        schema="user string, site string, n long",
        rows="rows",
        time_mode="ProcessingTime",
        url=url,
    )


def remembering(url: str) -> ProcessorTest:
    return ProcessorTest(
        Remembering(),
        key="user",
        input="user string, n int",
        schema="user string, batches int, batch long",
        rows="arrow",
        url=url,
    )


def given(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    return sorted(frame.itertuples(index=False, name=None))


def test_batches_state_timers_and_the_watermark(redis_url: str) -> None:
    with variables(redis_url) as test:
        rows = [("ann", "2024-01-01 00:10", 1), ("ann", "2024-01-01 00:10", -2)]
        assert given(test.run(rows)) == [("ann", 2, "rows")]
        assert test.watermark_ms == 0
        assert test.value("count", "ann") == (2,)
        assert test.list("seen", "ann") == [(1, "ann"), (-2, "ann")]
        assert test.map("signs", "ann") == {("minus", False): (-2,), ("plus", True): (1,)}
        assert test.timers("ann") == [MINUTE]
        # The watermark passes the timer of the first batch.
        bob = {"user": "bob", "ts": "2024-01-01 00:12", "n": 3}
        assert given(test.run([bob])) == [("ann", 2, "timer"), ("bob", 1, "rows")]
        assert test.watermark_ms == START + 9 * MINUTE
        assert test.value("count", "ann") is None
        assert test.keys("count") == ["bob"]
        assert test.keys("seen") == ["ann", "bob"]
        assert test.timers("ann") == []
        late = pd.DataFrame({"user": ["cid"], "ts": [datetime(2024, 1, 1, 0, 9)], "n": [1]})
        # Its row is not newer than the watermark of the batch before.
        assert given(test.run(late)) == [("bob", 1, "timer")]
        assert test.keys("seen") == ["ann", "bob"]


def test_a_batch_that_is_run_again_is_another_attempt(redis_url: str) -> None:
    with variables(redis_url) as test:
        test.run([("ann", "2024-01-01 00:10", 1)])
        out = test.run([("ann", "2024-01-01 00:20", 2)])
        for _ in range(2):
            pd.testing.assert_frame_equal(test.again(), out)
            test.restart()
        assert given(out) == [("ann", 2, "rows"), ("ann", 2, "timer")]
        assert test.value("count", "ann") is None
        assert test.list("seen", "ann") == [(1, "ann"), (2, "ann")]
        assert test.timers("ann") == [START + 10 * MINUTE]


@pytest.mark.parametrize("after", range(4))
def test_interrupted_batch_changes_nothing(redis_url: str, after: int) -> None:
    rows = [(user, "2024-01-01 00:10", 1) for user in ("ann", "bob", "cid")]
    with variables(redis_url) as test:
        test.run(rows[:1])
        test.cut(rows, after=after)
        assert test.keys("count") == ["ann"]
        assert test.value("count", "ann") == (1,)
        if after % 2:
            test.restart()
        assert given(test.run(rows)) == [
            ("ann", 2, "rows"), ("ann", 2, "timer"), ("bob", 1, "rows"), ("cid", 1, "rows"),
        ]  # fmt: skip


def test_rows_expire_by_the_clock(redis_url: str) -> None:
    with expiring(redis_url) as test:
        assert test.run([("ann", "a"), ("ann", "b")]) == [
            Row(user="ann", site="a", n=1),
            Row(user="ann", site="b", n=1),
        ]
        test.advance(timedelta(seconds=9))
        assert test.run([("ann", "a")]) == [Row(user="ann", site="a", n=2)]
        test.advance("1 second")
        # What has expired is not seen, before a batch takes it out and after it.
        for _ in range(2):
            assert test.keys("count") == [("ann", "a")]
            assert test.value("count", ("ann", "b")) is None
            assert test.run() == []
        test.cut([("ann", "a")], after=0)
        test.advance(60_000)
        # The batch began before.
        assert test.run([("ann", "a")]) == [Row(user="ann", site="a", n=3)]
        assert test.value("count", ("ann", "a")) is None


def test_processor_object_keeps_no_state_between_batches(redis_url: str) -> None:
    with remembering(redis_url) as test:
        for batch in range(2):
            out = test.run(pa.table({"n": pa.array([1, 2]), "user": ["ann", "ann"]}))
            assert out.to_pylist() == [{"user": "ann", "batches": 1, "batch": batch}]
        with pytest.raises(ValueError, match="a row said so"):
            test.run([("bob", 1), ("cid", -1)])
        assert test.keys("rows") == ["ann"]
        assert test.run([("bob", 1)]).to_pylist() == [{"user": "bob", "batches": 1, "batch": 2}]


def test_processor_test_starts_its_own_server() -> None:
    with variables(None) as test:
        assert given(test.run([("ann", None, 1)])) == [("ann", 1, "rows")]
        assert test.url


def test_keys_of_a_processor_test_expire(redis_server: RedisServer) -> None:
    with variables(redis_server.url) as test:
        for minute in range(3):
            test.run([("ann", f"2024-01-01 00:0{minute}", 1)])
            test.keys("count")
        with redis_server.client() as client:
            # All keys of the checkpoint; what lists checkpoints stays.
            of_test = [key for key in client.scan_iter() if not key.startswith(b"{rs}:")]
            assert len(of_test) > 3
            assert [key for key in of_test if client.pttl(key) <= 0] == []


def test_invalid_arguments_are_named(redis_url: str) -> None:
    for changed, message in (
        ({"time_mode": "Event"}, "time_mode is 'Event'"),
        ({"rows": "dicts"}, "rows is 'dicts'"),
        ({"key": "users"}, "no column 'users'"),
        ({"key": []}, "no key column"),
        ({"event_time": None}, "no column has the event time"),
        ({"delay": "a while"}, "it is 'a while'"),
        ({"input": "user strang"}, "'user strang'"),
    ):
        options: dict[str, Any] = {
            "key": "user", "input": INPUT, "schema": OUTPUT, "time_mode": "EventTime",
            "event_time": "ts", **changed,
        }  # fmt: skip
        with pytest.raises(UsageError, match=message):
            ProcessorTest(Variables(), url=redis_url, **options)
    with variables(redis_url) as test:
        with pytest.raises(UsageError, match="no batch was run"):
            test.again()
        for rows, message in (
            ([("ann",)], "a row has 1 values"),
            ("ann", "a str was given"),
            ([1], "a row is a int"),
            ([{"user": "ann", "ts": None}], "column 'n' is missing"),
            ([("ann", None, "one")], "column 'n' is no int64"),
            (pa.table({"user": ["ann"], "ts": [1], "n": ["one"]}), "have other types"),
        ):
            with pytest.raises(UsageError, match=message):
                test.run(rows)
        with pytest.raises(UsageError, match=r"no ListState 'count'.*count \(ValueState\)"):
            test.list("count", "ann")
        with pytest.raises(UsageError, match="no state variable 'counts'"):
            test.keys("counts")
    with remembering(redis_url) as test, pytest.raises(UsageError, match="no time mode"):
        test.timers("ann")


@pytest.mark.usefixtures("new_york")
def test_column_timestamps_keep_their_values() -> None:
    at = pa.array([datetime(2024, 1, 1, 12, tzinfo=timezone.utc)], pa.timestamp("us", "UTC"))
    found: list[Any] = []

    def function(state: ColumnState, table: pa.Table) -> pa.Table:
        state.put(table["at"], pa.table({"seen": table["at"]}))
        state.set_timers(table["at"], [5])
        found.extend([state.get(table["at"])["seen"], state.expired()["at"]])
        return state.get(table["at"])

    inputs = Inputs(["at"], schema_json("at timestamp"), "processingtime", "UTC", "")
    schema = pa.schema([("seen", at.type)])
    engine = ColumnEngine(function, inputs, schema_json("seen timestamp"), schema, "state", schema)
    store = scratch_store(StateStoreProviderId(StateStoreId("columns", 0, 0), "run"))
    list(engine.run(store, pa.table({"at": at}), 1000, 0, ProcessorQueryInfo("", "", 0)))
    assert [one.to_pylist() for one in found] == [at.to_pylist()] * 2


def test_columns_read_rows_from_before_a_column_was_added() -> None:
    keys = pa.array(["a", "b"])
    found: list[pa.Table] = []

    def put(state: ColumnState, table: pa.Table) -> pa.Table:
        state.put(table["k"], pa.table({"n": [7]}))
        return table

    def read(state: ColumnState, table: pa.Table) -> pa.Table:
        state.put(table["k"].slice(1), pa.table({"n": [8], "m": ["new"]}))
        found.append(state.get(keys))
        return table

    inputs = Inputs(["k"], schema_json("k string"), "none", "UTC", "")
    store = scratch_store(StateStoreProviderId(StateStoreId("columns", 0, 0), "run"))
    output = pa.schema([("k", pa.string())])
    older = pa.schema([("n", pa.int64())])
    newer = older.append(pa.field("m", pa.string()))
    first = ColumnEngine(put, inputs, schema_json("n long"), older, "state", output)
    list(first.run(store, pa.table({"k": ["a"]}), 0, 0, ProcessorQueryInfo("", "", 0)))
    second = ColumnEngine(read, inputs, schema_json("n long, m string"), newer, "state", output)
    list(second.run(store, pa.table({"k": keys}), 0, 0, ProcessorQueryInfo("", "", 1)))
    assert found[0].to_pylist() == [{"n": 7, "m": None}, {"n": 8, "m": "new"}]


def test_decimals_keep_all_digits_of_spark() -> None:
    row = TypedRow(schema_json("d decimal(38,18)"))
    largest = Decimal("99999999999999999999.999999999999999999")
    with localcontext() as context:
        context.prec = 5
        for value in (largest, largest.copy_negate(), Decimal("12345678901.5"), Decimal(0)):
            assert row.decode(row.encode([value])) == (value,)
