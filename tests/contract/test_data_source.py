"""The data source without a session: what it plans, which keys it takes, what a task reads."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import StructType

from pyspark_redis_state import DefaultSource
from redis_state import StateStoreId, StateStoreProviderId, keys
from redis_state.errors import ConfigError, NotFoundError, StateError, UsageError
from redis_state.spark.worker import WORKER
from redis_state.store.provider import StateStoreProvider
from tests.contract.planting import Planted, family, schema, uid
from tests.contract.test_previews import CARRIERS, Running
from tests.support.redis_server import RedisServer

PASSWORD = "REDIS_STATE_PASSWORD"


@pytest.fixture(autouse=True)
def no_connection_is_left() -> Iterator[None]:
    yield
    WORKER.close()


@pytest.fixture
def planted(redis_server: RedisServer) -> Planted:
    planted = Planted(redis_server.client())
    planted.register()
    rows = [({"carrier": f"c{n}"}, {"count": n, "total": n / 2}) for n in range(50)]
    planted.commit(1, rows)
    planted.commit(2, [({"carrier": "c1"}, {"count": 100, "total": 0.0})])
    return planted


def source(server: RedisServer, **options: str) -> DefaultSource:
    return DefaultSource({"url": server.url, "query": "flights", **options})


def struct(kind: str) -> StructType:
    columns = dict(column.split() for column in kind.split(", "))
    return StructType.fromJson(json.loads(schema(**columns)))


def reader(made: DefaultSource, kind: str | None = None) -> Any:
    wanted = made.schema() if kind is None else struct(kind)
    return made.reader(wanted)


def rows(made: Any) -> list[tuple[Any, ...]]:
    """Reads the tasks of a plan, each with a copy of the reader as in another process."""
    found = []
    for part in made.partitions():
        for batch in pickle.loads(pickle.dumps(made)).read(pickle.loads(pickle.dumps(part))):
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return sorted(found)


def test_rows_and_columns_of_the_state(redis_server: RedisServer, planted: Planted) -> None:
    made = source(redis_server)
    assert made.name() == "redis_state"
    assert made.schema().simpleString() == "struct<carrier:string,count:bigint,total:double>"
    plan = reader(made)
    assert len(plan.partitions()) == planted.partitions
    wanted = [(f"c{n}", 100 if n == 1 else n, 0.0 if n == 1 else n / 2) for n in range(50)]
    assert rows(plan) == sorted(wanted)
    assert rows(reader(source(redis_server, at="0"), "carrier string, count integer")) == sorted(
        (f"c{n}", n) for n in range(50)
    )


def test_plan_reads_one_version_despite_later_commits(
    redis_server: RedisServer, planted: Planted
) -> None:
    plan = reader(source(redis_server), "count long")
    parts = plan.partitions()
    planted.commit(3, [({"carrier": f"c{n}"}, {"count": 7, "total": 0.0}) for n in range(50)])
    found = [row["count"] for part in parts for one in plan.read(part) for row in one.to_pylist()]
    assert sorted(found) == sorted(100 if n == 1 else n for n in range(50))
    for number in range(planted.partitions):
        for version in (1, 2):
            planted.drop(number, f"d:{version}:{uid(version)}")
    with pytest.raises(StateError, match="version 2"):
        list(plan.read(parts[0]))


def test_rows_of_the_running_batch_are_read_on_request(redis_server: RedisServer) -> None:
    running = Running(redis_server.client())
    running.begin()
    place = running.place("UA")
    running.preview(place, running.slice(place, 1, {"UA": 2}))
    for at, changed in (("uncommitted", 2), ("latest", 1)):
        plan = reader(source(redis_server, at=at), "carrier string, count long")
        assert rows(plan) == sorted((one, changed if one == "UA" else 1) for one in CARRIERS)


@pytest.mark.usefixtures("planted")
def test_named_keys_are_read_by_one_task(redis_server: RedisServer) -> None:
    for given, wanted in (
        ('["c1"]', [("c1", 100)]),
        ('[{"carrier": "c1"}, "c2", "none", "c1"]', [("c1", 100), ("c2", 2)]),
        ('["none", null]', []),
        ("[]", []),
    ):
        plan = reader(source(redis_server, Keys=given), "carrier string, count long")
        assert len(plan.partitions()) == 1
        assert rows(plan) == wanted
    for wrong, told in (
        ("c1", "JSON list"),
        ('{"carrier": "c1"}', "JSON list"),
        ('[{"carrier": "c1", "count": 1}]', "key column 'carrier'"),
        ("[[1]]", "key column 'carrier'"),
        (json.dumps(["x"] * 10_001), "too many"),
    ):
        with pytest.raises(ConfigError, match=told):
            reader(source(redis_server, keys=wrong)).partitions()
    with pytest.raises(ConfigError, match=r"'keys' is for spark\.read"):
        source(redis_server, keys="[]", since="start").streamReader(struct("batch long"))


def test_reader_pushes_no_filters(redis_server: RedisServer, planted: Planted) -> None:
    """Up to Spark 4.3, what one use of a DataFrame has planned is kept for the others."""
    assert len(rows(reader(source(redis_server)))) == 50
    assert type(reader(source(redis_server))).pushFilters is DataSourceReader.pushFilters
    assert planted.partitions == 4


def test_key_with_several_types_is_read(redis_server: RedisServer) -> None:
    kinds = schema(at="timestamp", n="integer")
    planted = Planted(redis_server.client(), family(kinds, schema(v="string")), partitions=2)
    planted.register()
    noon = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)
    planted.commit(1, [({"at": noon, "n": n}, {"v": f"v{n}"}) for n in range(9)])
    given = [{"at": "2024-01-01T13:00:00+01:00", "n": n} for n in (1, 2, 77)]
    plan = reader(source(redis_server, keys=json.dumps(given)))
    assert [row[1:] for row in rows(plan)] == [(1, "v1"), (2, "v2")]
    for wrong in ([{"at": "2024-01-01T12:00:00Z"}], [{"at": "noon", "n": 1}], ["noon"]):
        with pytest.raises(ConfigError, match="key"):
            reader(source(redis_server, keys=json.dumps(wrong))).partitions()


@pytest.mark.parametrize(
    ("value", "given", "asked"),
    [
        (0.1, "double", "float"),
        (1e300, "double", "float"),
        (5, "long", "boolean"),
        (5, "integer", "date"),
        (datetime(2024, 1, 1, tzinfo=timezone.utc), "timestamp", "timestamp_ntz"),
        (datetime(2024, 1, 1, tzinfo=timezone.utc), "timestamp", "long"),
        (1 << 40, "long", "integer"),
        (0.5, "double", "long"),
    ],
)
def test_lossy_column_cast_is_refused(
    redis_server: RedisServer, value: Any, given: str, asked: str
) -> None:
    planted = Planted(redis_server.client(), family(schema(k="string"), schema(v=given)))
    planted.register()
    planted.commit(1, [({"k": "a"}, {"v": value})])
    with pytest.raises(UsageError, match="column 'v'"):
        rows(reader(source(redis_server), f"v {asked}"))


@pytest.mark.parametrize(
    ("value", "given", "asked"),
    [(0.5, "double", "float"), (float("nan"), "double", "float"), (None, "double", "float"),
     (5, "long", "byte"), (5, "long", "double"), (True, "boolean", "integer"),
     (5, "long", "string")],
)  # fmt: skip
def test_lossless_column_cast_is_applied(
    redis_server: RedisServer, value: Any, given: str, asked: str
) -> None:
    planted = Planted(redis_server.client(), family(schema(k="string"), schema(v=given)))
    planted.register()
    planted.commit(1, [({"k": "a"}, {"v": value})])
    ((found,),) = rows(reader(source(redis_server), f"v {asked}"))
    assert str(found) == str(value) or found == value


def test_python_store_is_read(redis_server: RedisServer) -> None:
    id_ = StateStoreProviderId(StateStoreId("orders", 0, 0), "run")
    provider = StateStoreProvider(id_, config=redis_server.url)
    store = provider.get_store(0)
    store.put("a", 1)
    store.put("b", 2)
    provider.get_store(store.commit()).abort()
    provider.close()
    made = source(redis_server, query="orders")
    assert made.schema().simpleString() == "struct<key:string,value:string>"
    assert rows(reader(made)) == [('"a"', "1"), ('"b"', "2")]
    assert rows(reader(made, "value integer")) == [(1,), (2,)]
    with pytest.raises(UsageError, match="date32"):
        rows(reader(made, "value date"))


def test_empty_state_has_no_rows_and_no_partitions(redis_server: RedisServer) -> None:
    planted = Planted(redis_server.client())
    planted.register()
    planted.commit(1, [])
    assert rows(reader(source(redis_server))) == []
    from pyspark.sql.datasource import InputPartition

    assert list(reader(source(redis_server)).read(InputPartition(None))) == []


def test_passwords_come_from_a_file_or_the_environment(
    start_redis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_redis(password="geheim")
    planted = Planted(server.client())
    planted.register()
    planted.commit(1, [({"carrier": "UA"}, {"count": 1, "total": 0.5})])
    file = tmp_path / "password"
    file.write_text("geheim\n")
    for options in ({"passwordFile": str(file)}, {"PASSWORD_FILE": str(file)}):
        plan = reader(source(server, **options))
        assert rows(plan) == [("UA", 1, 0.5)]
        assert b"geheim" not in pickle.dumps(plan) + pickle.dumps(plan.partitions())
    with pytest.raises(ConfigError, match="password"):
        source(server, deadline="2s").schema()
    monkeypatch.setenv(PASSWORD, "geheim")
    plan = reader(source(server))
    assert rows(plan) == [("UA", 1, 0.5)]
    assert b"geheim" not in pickle.dumps(plan) + pickle.dumps(plan.partitions())
    with pytest.raises(ConfigError, match="passwordFile") as caught:
        source(server, password="geheim").schema()
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"query": ""}, ConfigError, "no query is named"),
        ({"query": "flight"}, NotFoundError, "Did you mean 'flights'"),
        ({"operator": "first"}, ConfigError, "operator.*not a whole number"),
        ({"operator": "7"}, NotFoundError, "operator 7"),
        ({"at": "no w"}, ConfigError, "'latest', 'uncommitted' or a name"),
        ({"at": "99"}, StateError, "version 100"),
        ({"queri": "x"}, ConfigError, "no option 'queri'.*query, operator"),
        ({"family": "x"}, NotFoundError, "family 'x'"),
        ({"url": "http://x"}, ConfigError, "url"),
    ],
)
def test_wrong_option_is_named(
    redis_server: RedisServer,
    planted: Planted,  # noqa: ARG001  # makes the state
    options: dict[str, str],
    kind: type[Exception],
    words: str,
) -> None:
    with pytest.raises(kind, match=f"(?s){words}"):
        source(redis_server, **options).schema()


def test_missing_columns_are_named(redis_server: RedisServer, planted: Planted) -> None:
    with pytest.raises(UsageError, match=r"no column 'carier'.*carrier, count, total"):
        rows(reader(source(redis_server), "carier string"))
    with pytest.raises(UsageError, match="'carrier' is of type string, and int64"):
        rows(reader(source(redis_server), "carrier long"))
    number = planted.partition({"carrier": "c1"})
    planted.client.delete(keys.segment(planted.id(number), f"d:1:{uid(1)}"))
    with pytest.raises(StateError, match="STATE_LOST"):
        rows(reader(source(redis_server), "carrier string"))
