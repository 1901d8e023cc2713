"""Every type of Spark, nested two deep, through every way out of live reads (docs/reading.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from redis_state.cli.main import main
from redis_state.errors import UnreadableError
from redis_state.live import Reader
from redis_state.reader import OperatorState, Query
from redis_state.rows.json_values import to_json
from redis_state.types.schema import CalendarInterval
from tests.spark.streams import Streams, run_to_end
from tests.support.redis_server import RedisServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

CONFS = {
    "spark.sql.timestampNanosTypes.enabled": "true",
    "spark.sql.geospatial.enabled": "true",
    "spark.sql.timeType.enabled": "true",
    "spark.sql.ansi.enabled": "false",
}
POINT = "x'0101000000000000000000F03F0000000000000040'"
VARIANT = """parse_json('{"a":[1,-2.50,null,"é"],"b":{"c":true}}')"""

READABLE: dict[str, tuple[str, Any]] = {
    "boolean": ("true", True),
    "byte": ("cast(-7 as tinyint)", -7),
    "short": ("cast(-700 as smallint)", -700),
    "integer": ("-70000", -70000),
    "long": ("-7000000000L", -7000000000),
    "float": ("cast(1.5 as float)", 1.5),
    "double": ("1.25D", 1.25),
    "decimal": ("cast(12.34 as decimal(10,2))", Decimal("12.34")),
    "large_decimal": ("cast(-1.5 as decimal(38,10))", Decimal("-1.5000000000")),
    "string": ("'é'", "é"),
    "collated": ("'Ab' collate UTF8_LCASE", "Ab"),
    "char": ("cast('abc' as char(3))", "abc"),
    "binary": ("x'00ff'", b"\x00\xff"),
    "date": ("date'2024-02-29'", date(2024, 2, 29)),
    "timestamp": (
        "timestamp'2024-02-29 12:00:00.5Z'",
        datetime(2024, 2, 29, 12, 0, 0, 500_000, tzinfo=timezone.utc),
    ),
    "timestamp_ntz": (
        "timestamp_ntz'2024-02-29 12:00:00.5'",
        datetime(2024, 2, 29, 12, 0, 0, 500_000),  # it has no zone
    ),
    "time": ("time'12:34:56.123456'", time(12, 34, 56, 123_456)),
    "months": ("interval '1-2' year to month", 14),
    "span": ("interval '1 02:03:04.5' day to second", timedelta(1, 7384, 500_000)),
    "calendar": ("make_interval(1, 2, 0, 3, 0, 0, 1.5)", CalendarInterval(14, 3, 1_500_000)),
    "variant": (VARIANT, '{"a":[1,-2.5,null,"é"],"b":{"c":true}}'),
}
AT_THE_ENDS: dict[str, tuple[str, Any]] = {
    "far_date": ("date_add(date'9999-12-31', 1)", "+10000-01-01"),
    "early_date": ("date_add(date'0001-01-01', -1)", "0000-12-31"),
    "far_timestamp": (
        "timestamp_micros(253402300800000000 + 1)", "+10000-01-01T00:00:00.000001+00:00",
    ),
    "far_ntz": ("timestamp_ntz'9999-12-31 23:59:59' + interval 1 second", "+10000-01-01T00:00:00"),
    "nano_time": ("cast('12:34:56.123456789' as time(9))", "12:34:56.123456789"),
}  # fmt: skip
NOT_UTF8 = "cast(x'61ff62' as string)"
UNREADABLE: dict[str, tuple[str, str]] = {
    "text": (NOT_UTF8, "string"),
    "geometry": (f"st_geomfromwkb({POINT})", "geometry(SRID:0)"),
    "geography": (f"st_geogfromwkb({POINT})", "geography(OGC:CRS84, SPHERICAL)"),
    "nanos": ("cast('2024-02-29 12:00:00.123456789' as timestamp_ntz(9))", "timestamp_ntz(9)"),
    "nanos_ltz": ("cast('2024-02-29 12:00:00.123456789' as timestamp_ltz(9))", "timestamp_ltz(9)"),
}

Wrap = Callable[[Any], Any]
ONE: dict[str, tuple[str, Wrap]] = {
    "array": ("array({}, null)", lambda one: [one, None]),
    "struct": ("named_struct('f', {}, 'g', 1)", lambda one: (one, 1)),
    "map": ("map('k', {})", lambda one: {"k": one}),
}


def both(outer: Wrap, inner: Wrap) -> Wrap:
    return lambda one: outer(inner(one))


def shapes() -> dict[str, tuple[str, Wrap]]:
    found: dict[str, tuple[str, Wrap]] = {"plain": ("{}", lambda one: one), **ONE}
    for outer, (text, wrap) in ONE.items():
        for inner, (part, inside) in ONE.items():
            found[f"{outer}_{inner}"] = text.format(part), both(wrap, inside)
    return found


SHAPES = shapes()


@contextmanager
def set_confs(spark: SparkSession) -> Iterator[None]:
    for name, value in CONFS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in CONFS:
            spark.conf.unset(name)


STORE = "left-keyWithIndexToValue"


def kept(streams: Streams, reader: Reader, columns: Mapping[str, str]) -> Query:
    """A join that keeps rows with the keys 0 and 1, and with values of these expressions."""
    inputs = [streams.input(name, "id int") for name in ("left", "right")]
    for source in inputs:
        source.add([{"id": 0}, {"id": 1}])
    left, right = (source.stream(streams.spark) for source in inputs)
    texts = [f"{text} as {column}" for column, text in columns.items()]
    frame: DataFrame = left.selectExpr("id", *texts).join(right, "id")
    query = run_to_end(
        frame.writeStream.outputMode("append")
        .option("checkpointLocation", str(streams.checkpoint("q")))
        .format("noop")
        .trigger(availableNow=True)
        .start
    )
    found = reader.query(str(query.id))
    # No batch followed, so the driver confirms the state soon after the query's end.
    wait_until(lambda: state_of(found).count() == 2, "the batch is confirmed")
    return found


def state_of(query: Query, **choices: Any) -> OperatorState:
    return query.operator(0, STORE, **choices)


@pytest.mark.parametrize("shape", SHAPES)
def test_each_type_is_read_in_each_shape(streams: Streams, reader: Reader, shape: str) -> None:
    text, wrap = SHAPES[shape]
    atoms = READABLE | AT_THE_ENDS
    with set_confs(streams.spark):
        query = kept(streams, reader, {name: text.format(sql) for name, (sql, _) in atoms.items()})
    state = state_of(query)
    value = state.get({"field0": 1, "index": 0})
    for name, (_, expected) in READABLE.items():
        assert value[name] == wrap(expected), name
    for name, (_, iso) in AT_THE_ENDS.items():
        assert to_json(value[name]) == to_json(_as_rows(wrap(iso))), name
    values = [{**value, "id": number} for number in range(2)]
    assert sorted((one for _, one in state.items()), key=itemgetter("id")) == values
    assert state.get_many([[0, 0], [1, 0]]) == values
    (scanned,) = state.scan(where={"id": 1})
    assert scanned == {"field0": 1, "index": 0, **value}
    assert sorted((one.after for one in state.diff(-1)), key=itemgetter("id")) == values
    assert [one.value for one in state.history([1, 0])] == [value]
    changed = [one for batch in state.changes("start") for _, one in batch]
    assert sorted(changed, key=itemgetter("id")) == values
    table = state.to_arrow()
    table.validate(full=True)
    assert table.num_rows == state.count() == 2
    assert state.to_pandas().shape == (2, table.num_columns)
    assert_tables_agree(state, reader, query)


def _as_rows(value: Any) -> Any:
    """A tuple of `ONE` as the struct that it stands for."""
    if isinstance(value, tuple):
        return {"f": _as_rows(value[0]), "g": value[1]}
    if isinstance(value, dict):
        return {name: _as_rows(one) for name, one in value.items()}
    return [_as_rows(one) for one in value] if isinstance(value, list) else value


def assert_tables_agree(state: OperatorState, reader: Reader, query: Query) -> None:
    """Checks that SQL, Arrow and pandas return the same rows."""
    found = reader.sql(f'select * from "{table_of(query)}" order by id')
    table = state.to_arrow().sort_by("id")
    assert found.column_names == table.column_names
    for column in ("integer", "string", "variant"):
        assert found[column].to_pylist() == table[column].to_pylist()


@pytest.mark.parametrize("shape", ["plain", "array", "map_struct"])
def test_unreadable_column_is_named_and_others_are_readable(
    streams: Streams,
    reader: Reader,
    shared_redis_server: RedisServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    shape: str,
) -> None:
    text, _ = SHAPES[shape]
    columns = {name: text.format(sql) for name, (sql, _) in UNREADABLE.items()}
    with set_confs(streams.spark):
        query = kept(streams, reader, {"n": "id * 2", **columns})
    # What the join keeps beside the columns of its input is a number and a flag.
    plain = ["field0", "index", "id", "n"]
    for name, (_, type_) in UNREADABLE.items():
        alone = state_of(query, columns=[*plain, name])
        for call in ways_out(alone):
            with pytest.raises(UnreadableError) as raised:
                call()
            assert raised.value.column.split(".")[0] == name
            assert raised.value.type == type_
        with pytest.raises(UnreadableError, match=name):
            reader.sql(f'select "{name}" from "{table_of(query)}"')
    state = state_of(query)
    assert state.count() == 2
    expected = [{"field0": at, "index": 0, "id": at, "n": 2 * at} for at in range(2)]
    by_id = itemgetter("id")
    assert sorted(state.scan(columns=plain), key=by_id) == expected
    assert state.to_arrow(columns=plain).sort_by("id").to_pylist() == expected
    found = reader.sql(f'select {", ".join(plain)} from "{table_of(query)}" order by id')
    assert found.to_pylist() == expected
    for call in ways_out(state_of(query, columns=plain)):
        assert call() is not None
    replaced = state_of(query, text="replace", columns=[*plain, "text"])
    for call in ways_out(replaced):
        assert "a\ufffdb" in str(call())
    place = ["--url", shared_redis_server.url, "--store", STORE]
    scanned = ["scan", query.info.id, *place, "--columns", "id,n", "--json"]
    assert main(scanned) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    key = ["field0=1", "index=0", "--json"]
    assert main(["get", query.info.id, *place, *key]) == 1
    assert "REDIS_UNREADABLE" in capsys.readouterr().err
    shown = [
        "get",
        query.info.id,
        *place,
        *key,
        "--columns",
        "text",
        "--text",
        "replace",
    ]
    assert main(shown) == 0
    assert "a\ufffdb" in capsys.readouterr().out
    reader.export(query.info.id, tmp_path / "export")
    files = list((tmp_path / "export").rglob(f"*{STORE}*/**/*.parquet"))
    names = {name for file in files for name in pq.read_schema(file).names}
    assert {"id", "n", "text"} <= names
    assert not names & {"geometry", "geography", "nanos", "nanos_ltz"}
    live = streams.spark.read.format("redis_state").options(
        url=shared_redis_server.url, query=query.info.id, store=STORE, text="replace"
    )
    assert sorted(live.schema("id int, n int").load().collect()) == [(0, 0), (1, 2)]
    assert "a\ufffdb" in str(live.schema(f"text {SPARK_TYPES[shape]}").load().collect())


SPARK_TYPES = {
    "plain": "string",
    "array": "array<string>",
    "map_struct": "map<string, struct<f: string, g: int>>",
}


def table_of(query: Query) -> str:
    return f"{query.info.id}_{STORE.replace('-', '_')}"


def ways_out(state: OperatorState) -> list[Callable[[], Any]]:
    """Each way by which rows come out of a state."""
    key = {"field0": 1, "index": 0}
    return [
        lambda: state.get(key),
        lambda: state.get_many([key]),
        lambda: list(state.items()),
        lambda: list(state.scan()),
        lambda: list(state.diff(-1)),
        lambda: state.history(key),
        lambda: [list(batch) for batch in state.changes("start")],
        lambda: state.to_arrow().to_pylist(),
        lambda: [batch.to_pylist() for batch in state.to_batches()],
        lambda: state.to_pandas().to_dict(),
    ]
