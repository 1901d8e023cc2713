"""Prices, quantiles and tables of `tests.bench.production`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.production.kills import Recovery
from tests.bench.production.lanes import Batch
from tests.bench.production.measure import Measured, RedisUse
from tests.bench.production.prices import usd_a_day
from tests.bench.production.quantiles import quantile, ratio_to_better
from tests.bench.production.tables import Result, write_tables

MEASURED = Measured(
    query="aggregation",
    partitions=4,
    redis_ms=1.0,
    batches={
        name: [Batch(ms, 40.0, ms, {"rows": 1}) for _ in range(300)]
        for name, ms in (("redis", 300.0), ("hdfs", 900.0), ("rocksdb", 600.0))
    },
    requests={
        "redis": {"PUT": 600, "GET": 300},
        "hdfs": {"PUT": 3000, "DELETE": 900},
        "rocksdb": {"PUT": 6000, "HEAD": 1200},
    },
    placement={"redis": [2, 2], "hdfs": [2, 2], "rocksdb": [3, 1]},
    redis=RedisUse(memory_bytes=12_000_000, cpu_s=0.9, network_bytes=30_000_000),
)
KILLS = {
    name: [Recovery(seconds, 2)]
    for name, seconds in (("redis", 1.0), ("hdfs", 4.0), ("rocksdb", 2.0))
}


def test_quantile_is_a_value_of_the_series() -> None:
    series = [float(n) for n in range(1, 301)]
    assert [quantile(series, share) for share in (0.5, 0.99, 1.0)] == [150.0, 297.0, 300.0]
    assert quantile([7.0], 0.99) == 7.0


def test_ratio_is_to_the_better_of_sparks_providers() -> None:
    series = {"redis": [1.0] * 9 + [8.0], "hdfs": [2.0] * 10, "rocksdb": [4.0] * 10}
    median = ratio_to_better(series, 0.5)
    assert (median.point, median.low) == (0.5, 0.5)
    assert ratio_to_better(series, 1.0).point == 4.0


def test_few_batches_have_no_interval() -> None:
    found = ratio_to_better({"redis": [1.0], "hdfs": [2.0], "rocksdb": [4.0]}, 0.5)
    assert (found.point, found.low) == (0.5, None)


def test_price_of_a_day_counts_writes_and_reads_and_no_deletions() -> None:
    requests = {"PUT": 1000, "LIST": 1000, "GET": 4000, "HEAD": 1000, "DELETE": 9000}
    # 2,000 writes at 0.005 and 5,000 reads at 0.0004 for 1,000, in 100 batches.
    assert usd_a_day(requests, 100, pace_s=1) == pytest.approx(0.00012 * 86_400)
    assert usd_a_day(requests, 100, pace_s=10) == pytest.approx(0.00012 * 8_640)


def test_summary_compares_with_the_better_provider_and_the_aim() -> None:
    text = write_tables(Result("setup", [MEASURED], KILLS, ["links"]))
    batch = "| batch, p50, ms | 300 | 900 | 600 | 0.500 (0.500 – 0.500) | ≤ 0.5 reached |"
    assert batch in text
    assert "| batch, p99, ms | 300 | 900 | 600 |" in text
    assert "of 1 | 1.0 | 4.0 | 2.0 | 0.50 | |" in text
    assert "| requests to the object store a batch | 3.0 | 13.0 | 24.0 | 0.23 | |" in text


def test_short_run_claims_no_p99_and_no_kills() -> None:
    short = {name: all_[:60] for name, all_ in MEASURED.batches.items()}
    text = write_tables(Result("setup", [replace(MEASURED, batches=short)], {}, []))
    assert "p99" not in text
    assert "killed" not in text
    assert "| aggregation, 4 partitions, Redis 1 ms | 60 | longest | 300 | 900 | 600 | |" in text
