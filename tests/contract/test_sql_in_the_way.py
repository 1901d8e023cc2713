"""SQL over live state: names, values and tables that stand in each other's way, and Control-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from datetime import datetime, timezone

import pytest

import redis_state
from redis_state import keys
from redis_state.errors import StateError, UsageError
from tests.contract.planting import Planted, family, schema, uid
from tests.contract.test_sql import database
from tests.support.redis_server import RedisServer


@pytest.mark.parametrize(("kind", "zone"), [("timestamp_ntz", None), ("timestamp", timezone.utc)])
def test_equal_times_of_a_repeated_hour_are_one_key(
    redis_server: RedisServer, kind: str, zone: timezone | None
) -> None:
    """`fromtimestamp` marks the second of two equal times of a clock."""
    planted = Planted(
        redis_server.client(), family(schema(at=kind), schema(n="long")), partitions=1
    )
    planted.register()
    at = datetime(2024, 11, 3, 1, 30)
    planted.commit(1, [({"at": at.replace(tzinfo=zone)}, {"n": 1})])
    statement = "select n from flights f where f.at = ?"
    with redis_state.connect(redis_server.url, deadline="5s") as reader:
        live = database(reader)
        found = live.run(f"{statement} union all {statement}", [at, at.replace(fold=1)])
        assert found.column("n").to_pylist() == [1, 1]
        assert live.tables["flights"].rows == 2


def test_text_does_not_equal_a_number_of_any_size(redis_server: RedisServer) -> None:
    """DuckDB's BIGNUM comes to Python as a text, and is equal to more texts than that."""
    planted = Planted(redis_server.client(), family(schema(k="string"), schema(n="long")))
    planted.register()
    planted.commit(1, [({"k": k}, {"n": n}) for n, k in enumerate(("1", "01", "001", "2"))])
    with redis_state.connect(redis_server.url, deadline="5s") as reader:
        for constant in ("1::bignum", "'1'::bignum", "1"):
            found = reader.sql(f"select n from flights where k = {constant} order by n")
            assert found.column("n").to_pylist() == [0, 1, 2]


def test_query_name_that_prefixes_another_breaks_no_statement(
    redis_server: RedisServer,
) -> None:
    client = redis_server.client()
    layout = family(schema(k="string"), schema(n="long"))
    days = Planted(client, layout, gen="1" * 32, name="orders_by_day", partitions=1)
    orders = Planted(client, layout, gen="2" * 32, name="orders", partitions=1)
    for one in (days, orders):
        one.register()
        one.commit(1, [({"k": "a"}, {"n": 1})])
    days.commit(2, [({"k": "a"}, {"n": 2})])
    days.commit(3, [({"k": "a"}, {"n": 3})])
    with redis_state.connect(redis_server.url, deadline="5s") as reader:
        read = "select n from orders_by_day"
        assert reader.sql(read, at=1).column("n").to_pylist() == [2]
        client.delete(keys.segment(orders.id(0), f"d:1:{uid(1)}"))
        assert reader.sql(read).column("n").to_pylist() == [3]
        with pytest.raises(StateError, match="STATE_LOST"):
            reader.sql("select n from orders")
        with pytest.raises(StateError, match="STATE_LOST"):
            reader.sql("select n from orders_7")


def test_unreadable_table_hides_no_other(redis_server: RedisServer) -> None:
    client = redis_server.client()
    layouts = {
        "good": schema(n="long"),
        "odd": "no schema",
        "semistructured": schema(v="variant"),
        "duckdb_tables": schema(n="int"),
    }
    for number, (name, values) in enumerate(layouts.items()):
        layout = family(schema(k="string"), schema(n="long"))
        planted = Planted(client, layout, gen=str(number) * 32, name=name, partitions=1)
        planted.register()
        planted.family = family(schema(k="string"), values)
        planted.commit(1, [])
    with redis_state.connect(redis_server.url, deadline="5s") as reader:
        assert reader.sql("show tables").column("name").to_pylist() == ["good", "semistructured"]


def test_table_outside_the_catalogue_is_matched_in_capitals(
    redis_server: RedisServer,
) -> None:
    client = redis_server.client()
    for number, name in enumerate(("Odd", "DUCKDB_TABLES")):
        layout = family(schema(k="long"), schema(n="long", N="long"))
        planted = Planted(client, layout, gen=str(number) * 32, name=name, partitions=1)
        planted.register()
        planted.commit(1, [({"k": 1}, {"n": 1, "N": 2})])
    with redis_state.connect(redis_server.url, deadline="5s") as reader:
        assert reader.sql("show tables").column("name").to_pylist() == ["Odd"]
        with pytest.raises(UsageError, match="which SQL does not distinguish"):
            reader.sql('select o.n from information_schema.tables t, "Odd" o')


@pytest.mark.parametrize("name", ["Größe ÄB", "ÉTÉ", "İstanbul", "Orders"])
def test_names_are_case_folded_as_in_duckdb(redis_server: RedisServer, name: str) -> None:
    layout = family(schema(k="string"), schema(Ä="long", ä="long"))
    planted = Planted(redis_server.client(), layout, name=name, partitions=1)
    planted.register()
    planted.commit(1, [({"k": "a"}, {"Ä": 1, "ä": 2})])
    with redis_state.connect(redis_server.url, deadline="5s") as reader:
        found = reader.sql(f'select "Ä", "ä" from "{name}" where k = \'a\'')
        assert found.to_pylist() == [{"Ä": 1, "ä": 2}]


@pytest.mark.parametrize("text", [
    "select count(*) from range(3000000) a, range(3000000) b where a.range + b.range < 0",
    "select count(*) from flights a, range(300000000) b where a.count + b.range < 0",
])  # fmt: skip
def test_control_c_ends_a_statement(redis_server: RedisServer, text: str) -> None:
    planted = Planted(redis_server.client(), partitions=1)
    planted.register()
    planted.commit(1, [({"carrier": f"c{n}"}, {"count": n, "total": 0.5}) for n in range(300)])
    command = [sys.executable, "-c", _INTERRUPTED, redis_server.url, text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        while child.poll() is None:
            child.send_signal(signal.SIGINT)
            time.sleep(0.5)
        assert child.stdout.read() == "KeyboardInterrupt\n"


_INTERRUPTED = """
import sys
import redis_state
with redis_state.connect(sys.argv[1], deadline="5s") as reader:
    try:
        reader.sql("select 1")
        print("begun", flush=True)
        reader.sql(sys.argv[2])
    except BaseException as error:
        import os
        os.write(1, (type(error).__name__ + "\\n").encode())
        os._exit(0)
"""
