"""Write unsafe_row.json: rows, hashes and partitions made by Spark itself.

Run from the repository, in an environment with pyspark 4.3:

    python tests/vectors/generate_unsafe_row.py > tests/vectors/unsafe_row.json

A vector has the row's schema, its bytes as Spark's own projection made them, its values (as
`collect` gave them, written by `tagged`), and, for columns that Spark can hash, `hash(columns…)`
and the partition of 7 in which a repartition by the columns put the row. Where pyspark cannot
collect a type, the values stand in the case.
"""

from __future__ import annotations

import json
import os
import time
from datetime import date, datetime, timedelta, timezone
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any

PARTITIONS = 7

# Name, columns in SQL, values if pyspark cannot collect them.
CASES: list[tuple[str, str, list[Any] | None]] = [
    ("no columns", "", None),
    ("booleans", "true a, false b, cast(null as boolean) c", None),
    ("bytes", "cast(-128 as tinyint) a, cast(127 as tinyint) b, cast(null as tinyint) c", None),
    ("shorts", "cast(-32768 as smallint) a, cast(32767 as smallint) b", None),
    ("integers", "-2147483648 a, 2147483647 b, -1 c, 0 d, cast(null as int) e", None),
    ("longs", "cast('-9223372036854775808' as bigint) a, 9223372036854775807L b, -1L c", None),
    ("floats", "cast(1.5 as float) a, cast('NaN' as float) b, cast('-Infinity' as float) c", None),
    ("float zeros", "cast(0 as float) a, cast('-0.0' as float) b, float(3.4028235E38) c", None),
    ("doubles", "double(0.1) a, double('NaN') b, double('Infinity') c, double('-0.0') d", None),
    ("strings", "'' a, 'x' b, 'abcdefgh' c, 'Zürich 東京 🛫' d, cast(null as string) e", None),
    (
        "string lengths",
        "'abc' a, 'abcd' b, 'abcde' c, 'abcdef' d, 'abcdefg' e, 'abcdefghi' f",
        None,
    ),
    ("binary", "X'' a, X'00' b, X'FF80017F' c, X'FFFEFDFCFBFAF9F8F7' d", None),
    (
        "compact decimals",
        (
            "12.34BD a, -0.01BD b, cast(1 as decimal(18,0)) c, "
            "cast(null as decimal(5,2)) d, cast('-999999999999999999' as decimal(18,0)) e"
        ),
        None,
    ),
    (
        "large decimals",
        (
            "cast('123456789012345678901234567890.12345678' as decimal(38,8)) a, "
            "cast(-1 as decimal(38,10)) b, cast(null as decimal(20,2)) c, "
            "cast(0 as decimal(19,0)) d, "
            "cast('-99999999999999999999999999999999999999' as decimal(38,0)) e, "
            "cast('1.28' as decimal(30,2)) f, 'behind' g"
        ),
        None,
    ),
    (
        "dates",
        "date'1970-01-01' a, date'0001-01-01' b, date'9999-12-31' c, date'1969-12-31' d",
        None,
    ),
    (
        "timestamps",
        (
            "timestamp'2024-02-29 23:59:59.999999' a, timestamp'1969-12-31 23:59:59.5' b, "
            "cast(null as timestamp) c"
        ),
        None,
    ),
    (
        "timestamps without zone",
        (
            "timestamp_ntz'2013-01-01 05:15:00' a, "
            "timestamp_ntz'0001-01-01 00:00:00' b, timestamp_ntz'9999-12-31 23:59:59.999999' c"
        ),
        None,
    ),
    (
        "times",
        "time'00:00:00' a, time'23:59:59.999999' b, cast('12:30:45.123' as time(3)) c",
        [time_of_day(0, 0), time_of_day(23, 59, 59, 999999), time_of_day(12, 30, 45, 123000)],
    ),
    (
        "day-time intervals",
        (
            "interval '1 02:03:04.000005' day to second a, "
            "interval '-7' day b, interval '90' minute c"
        ),
        None,
    ),
    ("year-month intervals", "interval '1-2' year to month a, interval '-3' year b", [14, -36]),
    (
        "calendar intervals",
        ("make_interval(1, 2, 0, -3, 4, 5, 6.5) a, cast(null as interval) b, 'behind' c"),
        [{"calendar": [14, -3, 14706500000]}, None, "behind"],
    ),
    ("nothing", "null a, 1 b", None),
    ("struct", "named_struct('x', 1, 'y', 'text', 'z', cast(null as double)) a, 5 b", None),
    (
        "struct in struct",
        "named_struct('x', named_struct('y', 'deep', 'z', 1.5BD), 'w', 2L) a",
        None,
    ),
    (
        "window",
        (
            "named_struct('start', timestamp'2013-01-01 05:00:00', 'end', "
            "timestamp'2013-01-01 06:00:00') window, 'JFK' origin"
        ),
        None,
    ),
    ("null struct", "cast(null as struct<a:int,b:string>) a, 'behind' b", None),
    (
        "arrays",
        (
            "array(1, null, 3) a, array('x', null, '', 'long enough text') b, "
            "cast(array() as array<bigint>) c, array(true, false, null) d"
        ),
        None,
    ),
    (
        "narrow arrays",
        (
            "array(cast(1 as tinyint), cast(-1 as tinyint), null) a, "
            "array(cast(-2 as smallint)) b, array(cast(2.5 as float)) c, array(date'2013-01-01') d"
        ),
        None,
    ),
    (
        "wide arrays",
        (
            "array(1.5D, double('NaN')) a, array(timestamp'2013-01-01 00:00:00') b, "
            "array(1.23BD, null) c, "
            "array(cast(7 as decimal(38,2)), null, cast(-8 as decimal(38,2))) d"
        ),
        None,
    ),
    ("arrays of nothing", "array(null, null) a", None),
    (
        "array of structs",
        ("array(named_struct('x', 1, 'y', 'one'), null, named_struct('x', 2, 'y', 'two')) a"),
        None,
    ),
    ("array of arrays", "array(array(1, 2), array(), null, array(3)) a", None),
    ("long array", "sequence(1, 130) a", None),
    ("maps", "map('a', 1, 'b', null) a, map(1, array('x')) b, cast(map() as map<int,int>) c", None),
    ("map of structs", "map(named_struct('k', 1), named_struct('v', 'one')) a", None),
    ("collated", "'Abc' collate UTF8_LCASE a", None),
    ("seventy fields", ", ".join(f"{'null' if i % 3 else i} c{i}" for i in range(70)), None),
]


def tagged(value: Any) -> Any:
    """A value as JSON, with its class where JSON has none; aware moments are written in UTC."""
    if value is None or (isinstance(value, (bool, int, str, dict)) and not _is_map(value)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, (bytes, bytearray)):
        return {"binary": bytes(value).hex()}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, datetime):
        naive = value if value.tzinfo is None else value.astimezone(timezone.utc)
        return {"datetime": naive.replace(tzinfo=None).isoformat(timespec="microseconds")}
    if isinstance(value, date):
        return {"date": value.isoformat()}
    if isinstance(value, time_of_day):
        return {"time": value.isoformat(timespec="microseconds")}
    if isinstance(value, timedelta):
        return {"microseconds": value // timedelta(microseconds=1)}
    if isinstance(value, dict):
        return {"map": [[tagged(key), tagged(item)] for key, item in value.items()]}
    return [tagged(item) for item in value]


def _is_map(value: Any) -> bool:
    return isinstance(value, dict) and set(value) != {"calendar"}


def hash_and_partition(frame: Any, names: list[str]) -> tuple[int, int] | None:
    """Computes hash and partition of the columns in Spark; `None` if Spark refuses their types."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    try:
        number = frame.select(f.hash(*names)).collect()[0][0]
    except AnalysisException:
        return None
    placed = frame.repartition(PARTITIONS, *names).select(f.spark_partition_id())
    return number, placed.collect()[0][0]


def vector(spark: Any, name: str, columns: str, values: list[Any] | None) -> dict[str, Any]:
    frame = spark.sql(f"SELECT {columns}" if columns else "SELECT 1 a").repartition(1)
    if not columns:
        frame = frame.select()
    plan = frame._jdf.queryExecution().executedPlan()
    rows = plan.executeCollect()
    data = bytes(rows[0].getBytes())
    if values is None:
        values = list(frame.collect()[0])
    result = {
        "name": name,
        "schema": json.loads(frame.schema.json()),
        "row": data.hex(),
        "values": [tagged(value) for value in values],
    }
    if columns:
        hashed = hash_and_partition(frame, frame.columns)
        if hashed is not None:
            result["hash"], result["partition"] = hashed
    return result


def main() -> None:
    from pyspark.sql import SparkSession

    os.environ["TZ"] = "UTC"
    time.tzset()
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.timeType.enabled", "true")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.driver.extraJavaOptions", "-Duser.timezone=UTC")
        .getOrCreate()
    )
    vectors = [vector(spark, *case) for case in CASES]
    print(f'{{"spark": "{spark.version}", "partitions": {PARTITIONS}, "vectors": [')
    print(",\n".join(json.dumps(item, ensure_ascii=False) for item in vectors))
    print("]}")
    spark.stop()


if __name__ == "__main__":
    main()
