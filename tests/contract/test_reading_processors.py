"""Live reads of the state variables of `transform_with_state`, as of Spark's operator."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from redis_state import connect
from redis_state.cli.main import main
from redis_state.codec import MSGPACK
from redis_state.errors import ConfigError, NotFoundError, UsageError
from redis_state.reader import OperatorState
from redis_state.testing import ProcessorTest
from tests.contract.processors import INPUT, OUTPUT, Expiring, Variables
from tests.support.exporting import check_round_trip
from tests.support.redis_server import RedisServer
from tests.support.tables import assert_tables_are_items

TYPES = (
    "at timestamp, day date, price decimal(20,2), data binary, none string, "
    "inner struct<a int, more array<struct<b string>>>, by map<string, struct<c long>>"
)
AT = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)


class Typed(StatefulProcessor):
    """A row of many types, by a key of two."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._row = handle.getValueState("row", TYPES)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        inner = (1, [("x",), None])
        self._row.update(
            (key[0], date(2024, 1, 2), Decimal("1.50"), b"\x00\xff", None, inner, {"k": (7,)})
        )
        yield Row(n=1)


def operator(test: ProcessorTest, family: str, reader: Any) -> OperatorState:
    found: OperatorState = reader.query(test.store).operator(0, family=family)
    return found


def test_values_lists_and_maps(
    redis_server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        connect(redis_server.url) as reader,
        ProcessorTest(
            Variables(), key="user", input=INPUT, schema=OUTPUT, time_mode="EventTime",
            event_time="ts", url=redis_server.url,
        ) as test,
    ):  # fmt: skip
        test.run([("ann", AT, 1), ("ann", AT, -2), ("bob", AT, 4)])
        test.keys("count")  # opens the version, which confirms it
        count = operator(test, "count", reader)
        assert count.get({"user": "ann"}) == count.get("ann") == count.get(("ann",)) == {"n": 2}
        assert count.get("nobody") is None
        assert sorted(count.items(), key=str) == [
            ({"user": "ann"}, {"n": 2}),
            ({"user": "bob"}, {"n": 1}),
        ]
        seen = operator(test, "seen", reader)
        assert seen.get_list("ann") == [{"n": 1, "who": "ann"}, {"n": -2, "who": "ann"}]
        assert seen.get_list("nobody") == []
        lengths = {key["user"]: len(found) for key, found in seen.list_items()}
        assert lengths == {"ann": 2, "bob": 1}
        signs = operator(test, "signs", reader)
        minus = {"sign": "minus", "odd": False}
        assert signs.get(("ann", ("minus", False))) == {"n": -2}
        assert signs.get({"key": {"user": "ann"}, "userKey": minus}) == {"n": -2}
        assert signs.get(("ann", ("minus", True))) is None
        assert [
            (key["key"]["user"], key["userKey"].as_dict(), value) for key, value in signs.items()
        ] == [
            ("ann", minus, {"n": -2}),
            ("ann", {"sign": "plus", "odd": True}, {"n": 1}),
            ("bob", {"sign": "plus", "odd": False}, {"n": 4}),
        ]
        assert [assert_tables_are_items(one) for one in (count, seen, signs)] == [2, 3, 3]
        assert seen.get_many(["bob", "nobody"]) == [[{"n": 4, "who": "bob"}], None]
        assert list(seen.scan(prefix="bob")) == [{"user": "bob", "n": 4, "who": "bob"}]
        with pytest.raises(ConfigError, match="key column 'user' of type string"):
            list(seen.scan(prefix=7))
        # The families of ours are not shown.
        check_round_trip(redis_server.url, test.store)
        names = {family.name for family in count.families()}
        assert names == {"count", "seen", "signs"}
        with pytest.raises(NotFoundError, match="'count', 'seen', 'signs'") as caught:
            operator(test, "default", reader).get("ann")
        assert "$" not in str(caught.value)
        for wrong in ({"users": "ann"}, ("ann", "bob")):
            with pytest.raises(ConfigError, match="user"):
                count.get(wrong)
        with pytest.raises(UsageError, match="'user' is string"):
            count.get(7)
        with pytest.raises(ConfigError, match="get_list"):
            seen.get("ann")
        with pytest.raises(ConfigError, match="Omit the codec"):
            reader.query(test.store).operator(0, family="count", codec=MSGPACK).get("ann")

        def printed(family: str, *words: str) -> Any:
            head = ["get", test.store, "--url", redis_server.url, "--family", family]
            status = main([*head, *words])
            return status, json.loads(capsys.readouterr().out)

        assert printed("count", "user=ann") == (0, {"n": 2})
        assert printed("count", "user=cid") == (3, None)
        assert printed("seen", "user=bob") == (0, [{"n": 4, "who": "bob"}])
        user_key = 'userKey:={"sign": "minus", "odd": false}'
        assert printed("signs", 'key:={"user": "ann"}', user_key) == (0, {"n": -2})


def test_changes_of_state_variables(redis_server: RedisServer) -> None:
    with (
        connect(redis_server.url) as reader,
        ProcessorTest(
            Variables(), key="user", input=INPUT, schema=OUTPUT, time_mode="EventTime",
            event_time="ts", url=redis_server.url,
        ) as test,
    ):  # fmt: skip
        test.run([("ann", AT, 1), ("bob", AT, 4)])
        test.run([("ann", AT, 5)])
        test.keys("seen")  # opens the version, which confirms it
        ann, bob, one = {"user": "ann"}, {"user": "bob"}, {"n": 1}
        count = operator(test, "count", reader)
        first, second = count.changes(since=-1)
        assert sorted(first, key=str) == [(ann, one), (bob, one)]
        # A timer of each user removed the count.
        assert sorted(second, key=str) == [(ann, None), (bob, None)]
        gone = [(change.key, change.before, change.after) for change in count.diff(0)]
        assert sorted(gone, key=str) == [(ann, one, None), (bob, one, None)]
        assert [(r.batch, r.value) for r in count.history("ann")] == [(1, None), (0, one)]
        seen = operator(test, "seen", reader)
        values = [{"n": n, "who": "ann"} for n in (1, 5)]
        (batch,) = seen.changes(since=0)
        assert list(batch) == [(ann, values)]
        assert [(c.before, c.after) for c in seen.diff(0)] == [(values[:1], values)]
        assert [revision.value for revision in seen.history("ann")] == [values, values[:1]]
        signs = operator(test, "signs", reader)
        plus = ("ann", ("plus", True))
        assert [revision.value for revision in signs.history(plus)] == [{"n": 5}, {"n": 1}]


def test_values_of_every_type_are_read(redis_server: RedisServer) -> None:
    with (
        connect(redis_server.url) as reader,
        ProcessorTest(
            Typed(), key=["at", "n"], input="at timestamp, n int", schema="n int", rows="rows",
            url=redis_server.url,
        ) as test,
    ):  # fmt: skip
        test.run([(AT, 1), (AT, None)])
        test.keys("row")
        state = operator(test, "row", reader)
        for key in ((AT, 1), {"n": None, "at": AT}):
            found = state.get(key)
            assert {name: found[name] for name in ("at", "day", "price", "data", "none")} == {
                "at": AT, "day": date(2024, 1, 2), "price": Decimal("1.50"), "data": b"\x00\xff",
                "none": None,
            }  # fmt: skip
            assert found["inner"]["more"][0].as_dict() == {"b": "x"}
            assert found["inner"].as_dict() == {"a": 1, "more": [("x",), None]}
            assert found["by"]["k"]["c"] == 7
        assert assert_tables_are_items(state) == 2
        check_round_trip(redis_server.url, test.store)
        assert sorted((key for key, _ in state.items()), key=str) == [
            {"at": AT, "n": 1},
            {"at": AT, "n": None},
        ]


def test_rows_with_a_time_to_live_are_read_until_a_batch_removes_them(
    redis_server: RedisServer,
) -> None:
    with (
        connect(redis_server.url) as reader,
        ProcessorTest(
            Expiring(), key=["user", "site"], input="user string, site string",
            schema="user string, site string, n long", rows="rows", time_mode="ProcessingTime",
            url=redis_server.url,
        ) as test,
    ):  # fmt: skip
        test.run([("ann", "a")])
        expiry = test.now_ms + 10_000
        test.advance("10 seconds")
        assert test.value("count", ("ann", "a")) is None
        count = operator(test, "count", reader)
        found = count.get(("ann", "a"))
        assert found == {"value": (1,), "ttlExpirationMs": expiry}
        assert found["value"]["n"] == 1
        assert assert_tables_are_items(count) == 1
        assert count.to_arrow().column_names == ["user", "site", "value", "ttlExpirationMs"]
        check_round_trip(redis_server.url, test.store)
        test.run()
        test.keys("count")
        assert count.get(("ann", "a")) is None
