"""SQL over live state: the answers of DuckDB over whole tables, from as few rows as may be."""

# The names and arguments of a processor's methods are Spark's.
# ruff: noqa: N802, N803, ARG002

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import redis_state
from redis_state import StateStoreId, StateStoreProviderId, keys
from redis_state.cli.main import main
from redis_state.errors import ConfigError, NotFoundError, StateError, UnreadableError, UsageError
from redis_state.live import Reader
from redis_state.reader import Query
from redis_state.reader.lookup.asked_keys import AskedKeys
from redis_state.reader.state_table import StateTable
from redis_state.reader.table_columns import columns_of
from redis_state.rows.typed_rows import TypedRowCodec
from redis_state.sql.database import Database
from redis_state.store.provider import StateStoreProvider
from redis_state.testing import ProcessorTest
from tests.contract.planting import Planted, family, schema, uid
from tests.contract.processors import INPUT, OUTPUT, Variables
from tests.support.redis_server import RedisServer

NOON = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)
WINDOW = json.loads(schema(start="timestamp", end="timestamp"))
DAYS = family(schema(day="date", n="byte", kind="string"), schema(total="long"))
HOURS = family(
    json.dumps(
        {
            "type": "struct",
            "fields": [
                {"name": "window", "type": WINDOW, "nullable": True, "metadata": {}},
                {"name": "k", "type": "string", "nullable": True, "metadata": {}},
            ],
        }
    ),
    schema(count="long", k="string"),
)
FLIGHTS = [(f"c{n}", n % 7, n / 2) for n in range(300)] + [(None, 1, 1.0), ("it's", 2, None)]


@pytest.fixture(scope="module")
def server(shared_redis_server: RedisServer) -> Iterator[RedisServer]:
    client = shared_redis_server.client()
    client.flushdb()
    flights = Planted(client)
    flights.register()
    flights.commit(1, [({"carrier": c}, {"count": n, "total": t}) for c, n, t in FLIGHTS])
    flights.commit(
        2, [({"carrier": "c1"}, {"count": 100, "total": 0.0}), ({"carrier": "c2"}, None)]
    )
    days = Planted(client, DAYS, gen="1" * 32, name="days", partitions=2)
    days.register()
    rows = [
        ({"day": date(2024, 1, 1 + n % 3), "n": n, "kind": f"c{n % 2}"}, {"total": n})
        for n in range(20)
    ]
    days.commit(1, rows)
    hours = Planted(client, HOURS, gen="1" * 32, name="days", partitions=2, operator=1)
    hours.register()
    hours.commit(
        1,
        [
            (
                {
                    "window": {
                        "start": NOON + timedelta(hours=n),
                        "end": NOON + timedelta(hours=n + 1),
                    },
                    "k": "a",
                },
                {"count": n, "k": "v"},
            )
            for n in range(5)
        ],
    )
    yield shared_redis_server
    client.flushdb()


@pytest.fixture
def reader(server: RedisServer) -> Iterator[Reader]:
    with redis_state.connect(server.url, deadline="5s") as reader:
        yield reader


def database(reader: Reader, **options: Any) -> Database:
    def query_of(info: Any) -> Query:
        return reader.query(info.gen)

    return Database(reader.client, reader.queries(), query_of, memory="200MB", **options)


def whole(reader: Reader) -> dict[str, pa.Table]:
    return {
        "flights": reader.query("flights").operator(0).to_arrow(),
        "days": reader.query("days").operator(0).to_arrow(),
        "days_1": reader.query("days").operator(1).to_arrow(),
    }


ALL = {"flights": 301, "days": 20, "days_1": 5}
HOUR = "TIMESTAMPTZ '2024-01-01 13:00:00+00'"
STATEMENTS: list[tuple[str, list[Any], dict[str, int]]] = [
    # One key, or some.
    ("select * from flights where carrier = 'c7'", [], {"flights": 1}),
    ("select f.total from FLIGHTS f where 'c7' = F.Carrier and total > 1", [], {"flights": 1}),
    ("select count from flights where carrier in ('c1', 'c2', 'none')", [], {"flights": 1}),
    ("select * from flights where carrier = 'it''s'", [], {"flights": 1}),
    ("select total from flights where carrier = ?", ["c9"], {"flights": 1}),
    ("select total from flights where carrier in ($2, $1)", ["c9", "c8"], {"flights": 2}),
    ("select count(*) from flights where carrier = 'none'", [], {"flights": 0}),
    ("select 'x' as carrier from flights where carrier = 'c3'", [], {"flights": 1}),
    ("select flights from flights where carrier = 'c3'", [], {"flights": 1}),
    (
        "select * from days where day = DATE '2024-01-02' and n in (1, 4) and kind = 'c0'",
        [],
        {"days": 1},
    ),
    ("select * from days where day = '2024-01-02' and n = 4 and kind = 'c0'", [], {"days": 1}),
    (
        "select * from days where day = ? and n = ? and kind = ?",
        [date(2024, 1, 2), 4, "c0"],
        {"days": 1},
    ),
    ("select * from days where day = '2024-01-02' and n = 4000 and kind = 'c0'", [], {"days": 0}),
    (
        f"select * from days_1 d where d.window.start = {HOUR} and k = 'a' "
        f"and d.window.end = {HOUR} + interval 1 hour",
        [],
        {"days_1": 5},
    ),
    (
        f"select * from days_1 d where d.window.start = {HOUR} and d.k = 'a' "
        "and d.window.end = '2024-01-01 14:00:00'",
        [],
        {"days_1": 1},
    ),
    # Several places that name a table.
    (
        "select * from flights a join flights b using (count) where a.carrier = 'c7' "
        "and b.carrier in ('c7', 'c14')",
        [],
        {"flights": 4},
    ),
    (
        "select carrier from flights where carrier = 'c1' union all "
        "select carrier from flights where carrier = 'c1'",
        [],
        {"flights": 2},
    ),
    (
        "select * from flights where carrier = 'c1' union all select * from flights",
        [],
        {"flights": 602},
    ),
    (
        "with few as (select * from flights where carrier = 'c5') select * from few, days "
        "where few.count = days.n",
        [],
        {"flights": 1, "days": 20},
    ),
    ("with flights as (select 1 as carrier) select * from flights", [], {"flights": 0}),
    (
        "select d.total, f.count from days d left join flights f on f.carrier = d.kind "
        "where f.carrier = 'c1'",
        [],
        {"days": 20, "flights": 1},
    ),
    (
        "select kind from days d where exists (select 1 from flights f where f.carrier = 'c1' "
        "and f.carrier = d.kind)",
        [],
        {"days": 20, "flights": 1},
    ),
    ("select (select max(count) from flights where carrier = 'c1') as m", [], {"flights": 1}),
    # What a key alone does not tell.
    ("select * from flights where carrier = 'c1' or count = 3", [], {"flights": 301}),
    ("select * from flights where not (carrier = 'c1')", [], {"flights": 301}),
    ("select * from flights where carrier = 'c1' using sample 400 rows", [], {"flights": 301}),
    ("select * from flights tablesample 400 rows where carrier = 'c1'", [], {"flights": 301}),
    ("select * from flights where carrier is null", [], {"flights": 301}),
    ("select * from flights where carrier = null", [], {"flights": 0}),
    ("select * from flights where carrier like 'c1%'", [], {"flights": 301}),
    ("select * from flights where carrier = 7::varchar", [], {"flights": 0}),
    ("select sum(total), count from flights group by all order by all", [], {"flights": 301}),
    ("select * from days where day = '2024-01-02' and n = 4", [], {"days": 20}),
    ("select * from days where day = '2024-01-02' and n = 4.0 and kind = 'c0'", [], {"days": 20}),
    (
        "select * from days d asof join flights f on d.total >= f.count where f.carrier = 'c1'",
        [],
        {"days": 20, "flights": 301},
    ),
    ("select * from (select * from flights) t where carrier = 'c1'", [], {"flights": 301}),
    ("select * from flights t(a, b, c) where a = 'c1'", [], {"flights": 301}),
    (
        "select count(*) from flights anti join days on carrier = kind",
        [],
        {"flights": 301, "days": 20},
    ),
    ("select unnest([carrier]) from flights where carrier = 'c1'", [], {"flights": 1}),
    ("select * from query_table('flights') where carrier = 'c1'", [], {"flights": 301}),
    (
        "select count from flights where carrier = 'c1' union all "
        "select count from query_table('flights')",
        [],
        {"flights": 602},
    ),
    (
        "select x from flights, unnest([count, 2]) u(x) where flights.carrier = 'c3'",
        [],
        {"flights": 1},
    ),
]


@pytest.mark.parametrize(("statement", "parameters", "rows"), STATEMENTS)
def test_the_answer_is_that_over_whole_tables(
    reader: Reader, statement: str, parameters: list[Any], rows: dict[str, int]
) -> None:
    with duckdb.connect() as connection:
        for name, table in whole(reader).items():
            connection.register(name, table)
        connection.execute("set TimeZone = 'UTC'")
        wanted = connection.sql(statement, params=parameters or None).to_arrow_table()
    live = database(reader)
    found = live.run(statement, parameters)
    assert found.schema == wanted.schema
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, wanted.to_pylist()))
    assert {name: table.rows for name, table in live.tables.items()} == rows


def test_the_public_call_gives_a_table(reader: Reader) -> None:
    found = reader.sql("select carrier, count from flights where carrier = ?", ["c1"])
    assert found.to_pylist() == [{"carrier": "c1", "count": 100}]


def test_all_tables_are_listed_and_described(reader: Reader) -> None:
    assert reader.sql("show tables").column("name").to_pylist() == ["days", "days_1", "flights"]
    found = reader.sql("describe days_1").to_pylist()
    assert [row["column_name"] for row in found] == ["window", "k", "count", "value.k"]
    catalogue = "select table_name from information_schema.tables order by all"
    assert reader.sql(catalogue).column(0).to_pylist() == ["days", "days_1", "flights"]


def test_an_earlier_batch_is_read_by_name(reader: Reader) -> None:
    found = reader.sql("select count from flights where carrier in ('c1', 'c2')", at=0)
    assert sorted(found.column(0).to_pylist()) == [1, 2]
    with pytest.raises(StateError):
        reader.sql("select * from flights", at=7)


def test_tables_of_one_query_are_of_one_version(reader: Reader) -> None:
    live = database(reader)
    live.run("select * from days, days_1")
    assert len(live._views) == 1


@pytest.mark.parametrize(
    ("statement", "kind", "words"),
    [
        ("select * from flight", NotFoundError, "table 'flight'.*Queries: days, flights"),
        ("select * from days_7", NotFoundError, "table 'days_7'"),
        ("select carier from flights", UsageError, "carier"),
        ("selec 1", UsageError, "syntax error"),
        ("select 1; select 2", UsageError, "2 statements"),
        ("", UsageError, "0 statements"),
        ("insert into flights values ('x', 1, 1)", UsageError, "INSERT"),
        ("create table t as select 1", UsageError, "CREATE"),
        ("set memory_limit = '100GB'", UsageError, "SET"),
        ("copy (select 1) to '/tmp/x.csv'", UsageError, "COPY"),
        ("attach '/tmp/x.db'", UsageError, "ATTACH"),
        ("install httpfs", UsageError, "LOAD"),
        ("select * from read_text('/etc/passwd')", UsageError, "file"),
        ("select * from glob('/etc/*')", UsageError, "file"),
        ("select * from '/etc/passwd'", NotFoundError, "/etc/passwd"),
        ("select carrier::int from flights", UsageError, "ConversionException.*try_cast"),
        ("select ? from flights", UsageError, "1 parameters, and 0 values"),
        ("select $k from flights", UsageError, r"\$k has a name"),
        (
            "select count(distinct range::varchar || repeat('a', 40)) from range(20000000)",
            UsageError,
            "more memory",
        ),
    ],
)
def test_refused_statement_names_the_reason(
    reader: Reader, statement: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=f"(?s){words}") as caught:
        database(reader).run(statement)
    assert "c299" not in str(caught.value)


def test_the_hour_that_comes_twice_is_two_keys(redis_server: RedisServer) -> None:
    layout = family(schema(at="timestamp"), schema(n="long"))
    planted = Planted(redis_server.client(), layout, partitions=1)
    planted.register()
    # In New York both are half past one.
    halves = [datetime(2024, 11, 3, hour, 30, tzinfo=timezone.utc) for hour in (5, 6)]
    planted.commit(1, [({"at": at}, {"n": n}) for n, at in enumerate(halves)])
    zone = ZoneInfo("America/New_York")
    given = [at.astimezone(zone) for at in halves]
    last = datetime.max.replace(tzinfo=timezone(-timedelta(hours=5)))
    with redis_state.connect(redis_server.url, deadline="5s") as reader:
        live = database(reader)
        found = live.run("select n from flights f where f.at in (?, ?) order by n", given)
        assert found.column("n").to_pylist() == [0, 1]
        found = live.run("select n from flights f where f.at = ?", [given[1]])
        assert found.column("n").to_pylist() == [1]
        assert live.tables["flights"].rows == 1
        assert live.run("select n from flights f where f.at = ?", [last]).num_rows == 0


def test_values_are_no_text_and_no_mapping(reader: Reader) -> None:
    for wrong in ("c1", b"c1", {"k": 1}, 7):
        with pytest.raises(UsageError, match="Give a list or tuple"):
            reader.sql("select * from flights where carrier = ?", wrong)  # type: ignore[arg-type]  # refused


def test_columns_whose_names_differ_in_case(redis_server: RedisServer) -> None:
    """DuckDB would read the first of them for both."""
    layout = family(schema(k="long"), schema(n="long", K="long", N="long"))
    planted = Planted(redis_server.client(), layout, partitions=1)
    planted.register()
    planted.commit(1, [({"k": 1}, {"n": 1, "K": 2, "N": 3})])
    with redis_state.connect(redis_server.url, deadline="5s") as reader:
        for names in ("*", "n", '"N"', '"K"', "k"):
            with pytest.raises(UsageError, match="which SQL does not distinguish"):
                reader.sql(f"select {names} from flights")
        assert reader.sql("show tables").column("name").to_pylist() == ["flights"]


@pytest.mark.parametrize("sign", [1, -1])
def test_interval_beyond_what_duckdb_counts_is_refused_by_column(
    redis_server: RedisServer, sign: int
) -> None:
    """DuckDB gives intervals in nanoseconds, and those of more than 292 years as others."""
    layout = family(schema(k="long"), schema(wait="interval day to second", n="long"))
    planted = Planted(redis_server.client(), layout, partitions=1)
    planted.register()
    longest = timedelta(microseconds=sign * (((1 << 63) - 1) // 1000))
    longer = longest + sign * timedelta(microseconds=1000)
    planted.commit(1, [({"k": 1}, {"wait": longest, "n": 1})])
    with redis_state.connect(redis_server.url) as reader:
        (found,) = reader.sql("select wait from flights").to_pylist()
        assert found["wait"].nanoseconds == longest // timedelta(microseconds=1) * 1000
        planted.commit(2, [({"k": 2}, {"wait": longer, "n": 2})])
        with pytest.raises(
            UnreadableError, match="column 'wait' of type day-time; SQL has no place"
        ):
            reader.sql("select wait from flights")
        assert reader.sql("select sum(n) as n from flights").to_pylist() == [{"n": 3}]


def test_a_variable_of_python_is_no_table(reader: Reader) -> None:
    outside = pa.table({"a": [1]})
    with pytest.raises(NotFoundError, match="outside"):
        reader.sql("select * from outside")
    assert outside.num_rows == 1


def test_a_malformed_amount_of_memory_is_named(reader: Reader) -> None:
    with pytest.raises(ConfigError, match="memory as '1GB'"):
        reader.sql("select 1", memory="much")


def test_damage_ends_the_statement_with_its_own_error(redis_server: RedisServer) -> None:
    planted = Planted(redis_server.client())
    planted.register()
    planted.commit(1, [({"carrier": "UA"}, {"count": 1, "total": 0.5})])
    number = planted.partition({"carrier": "UA"})
    with redis_state.connect(redis_server.url, deadline="5s") as reader:
        assert reader.sql("select count from flights").num_rows == 1
        planted.client.delete(keys.segment(planted.id(number), f"d:1:{uid(1)}"))
        for statement in ("select * from flights", "select * from flights where carrier = 'UA'"):
            with pytest.raises(StateError, match="STATE_LOST"):
                reader.sql(statement)


def test_a_store_of_python_has_json_texts(redis_server: RedisServer) -> None:
    id_ = StateStoreProviderId(StateStoreId("orders 1", 0, 0), "run")
    provider = StateStoreProvider(id_, config=redis_server.url)
    store = provider.get_store(0)
    store.put(("de", 7), {"status": "ü", "lines": [1, None]})
    store.put("x", None)
    provider.get_store(store.commit()).abort()
    provider.close()
    with redis_state.connect(redis_server.url) as reader:
        found = reader.sql("""select key, value ->> '$.status' as s from "orders 1" order by 1""")
        assert found.to_pylist() == [{"key": '"x"', "s": None}, {"key": '["de", 7]', "s": "ü"}]
        one = reader.sql("""select key from "orders 1" where key = '"x"'""")
        assert one.to_pylist() == [{"key": '"x"'}]


def test_state_variables_are_tables(redis_server: RedisServer) -> None:
    with (
        ProcessorTest(
            Variables(), key="user", input=INPUT, schema=OUTPUT, time_mode="EventTime",
            event_time="ts", url=redis_server.url,
        ) as test,
        redis_state.connect(redis_server.url) as reader,
    ):  # fmt: skip
        test.run([("ann", NOON, 1), ("ann", NOON, -2), ("bob", NOON, 4)])
        test.keys("count")  # opens the version, which confirms it
        names = reader.sql("show tables").column("name").to_pylist()
        assert names == [f"{test.store}_{one}" for one in ("count", "seen", "signs")]
        counts, seen, signs = (f'"{name}"' for name in names)
        found = reader.sql(f"select c.n, s.n as m from {counts} c join {seen} s using (user)")
        assert sorted(map(tuple, map(dict.values, found.to_pylist()))) == [(1, 4), (2, -2), (2, 1)]
        live = database(reader)
        live.run(
            f"select * from {signs} s, {seen} t where s.key.user = 'ann' and t.user = 'bob' "
            "and s.userKey.sign = 'minus' and not s.userKey.odd and s.userKey.odd = false"
        )
        assert [one.rows for one in live.tables.values()] == [1, 1]


class Lasting(StatefulProcessor):
    """Counts that live for ten seconds, or for ever."""

    def __init__(self, ttl_ms: int | None) -> None:
        self._ttl_ms = ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n long", ttlDurationMs=self._ttl_ms)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        self._count.update((sum(row.n for row in rows),))
        yield Row(n=1)


def test_a_variable_that_had_a_time_to_live(redis_server: RedisServer) -> None:
    with (
        ProcessorTest(
            Lasting(10_000), key="user", input="user string, n long", schema="n long",
            rows="rows", time_mode="ProcessingTime", url=redis_server.url,
        ) as test,
        redis_state.connect(redis_server.url) as reader,
    ):  # fmt: skip
        test.run([("ann", 1)])
        expiry = test.now_ms + 10_000
        test._processor = Lasting(None)
        test.restart()
        test.run([("bob", 2)])
        test.keys("count")  # opens the version, which confirms it
        name = f'"{test.store}_count"'
        wanted = [({"n": 1}, expiry), ({"n": 2}, None)]
        for where in ("", "where user in ('ann', 'bob')"):
            found = reader.sql(f"select * exclude user from {name} {where} order by all")
            assert [(row["value"], row["ttlExpirationMs"]) for row in found.to_pylist()] == wanted
        view = reader.query(test.store).view()
        table = StateTable(reader.client, view, 0, "default", "count")
        (value, ends), there = table.look_up(AskedKeys(["bob", "cid", "ann"]), table.value_names)
        assert value.to_pylist() == [{"n": 2}, None, {"n": 1}]
        assert ends.to_pylist() == [None, None, expiry]
        assert there.to_pylist() == [True, False, True]
        # Where the schema is that of a partition in which no row ends any more.
        plain = StateTable(reader.client, view, 0, "default", "count")
        assert isinstance(plain._codec, TypedRowCodec)
        plain._codec = replace(plain._codec, expires=False)
        plain._columns = columns_of(plain._codec)
        (numbers,), _ = plain.look_up(AskedKeys(["ann", "bob"]), ["n"])
        assert numbers.to_pylist() == [1, 2]


def test_the_command_prints_rows(server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*words: str) -> tuple[int, str, str]:
        status = main(["sql", "--url", server.url, *words])
        return (status, *capsys.readouterr())

    one = "select day, kind, 0.5 as half, [n] as list from days where n = 1"
    line = '{"day": "2024-01-02", "kind": "c1", "half": "0.5", "list": [1]}\n'
    assert printed(one) == (0, line, "")
    table = "day,kind,half,list\n2024-01-02,c1,0.5,[1]\n"
    assert printed("--format", "csv", one) == (0, table, "")
    assert printed("--at", "0", "select count from flights where carrier = 'c1'") == (
        0,
        '{"count": 1}\n',
        "",
    )
    status, out, error = printed("selec")
    assert (status, out) == (1, "")
    assert "REDIS_" in error
    assert "syntax error" in error
    assert printed("--at", "so on", "select 1")[0] == 1
