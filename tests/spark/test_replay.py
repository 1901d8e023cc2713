"""A batch of production that runs again with other code, beside production."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from redis_state.cli.main import main
from redis_state.errors import NotFoundError, UsageError
from redis_state.files import folder_at
from redis_state.recovery.marker import gen_of
from redis_state.replay.code_file import function_in
from redis_state.testing import Replay, replay
from tests.spark.streams import PROVIDER, REDIS
from tests.spark.test_checkpoint_format_2 import format_of
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.usefixtures("interpreted")]
BATCHES = 5


class Production:
    """A query that sums orders by customer, with a file sink beside the state."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.checkpoint = str(folder / "checkpoint")
        (folder / "in").mkdir()
        spark.conf.set(PROVIDER, REDIS)
        for number in range(BATCHES):
            rows = [{"customer": f"c{n % 3}", "amount": n * 10 + number} for n in range(6)]
            path = folder / "in" / f"{number}.json"
            path.write_text("\n".join(map(json.dumps, rows)))
            os.utime(path, (1_000_000_000 + number,) * 2)
        self.run(self.build(lambda total: total))

    def build(self, change: Callable[[Any], Any]) -> Callable[..., Any]:
        source = f"{self.folder}/in"

        def query(spark: SparkSession, _: Replay | None = None) -> Any:
            orders = spark.readStream.schema("customer string, amount long")
            rows = orders.option("maxFilesPerTrigger", 1).json(source)
            totals = rows.groupBy("customer").agg(sf.sum(change(sf.col("amount"))).alias("total"))
            return totals.writeStream.outputMode("update")

        return query

    def run(self, query: Callable[..., Any]) -> None:
        out = f"{self.folder}/out"
        writer = query(self.spark).foreachBatch(
            lambda rows, batch: rows.write.mode("overwrite").parquet(f"{out}/{batch}")
        )
        writer = writer.option("checkpointLocation", self.checkpoint).trigger(availableNow=True)
        writer.start().awaitTermination()


def gens(raw: Any) -> set[bytes]:
    """The checkpoints that have any key which stays."""
    lasting = [name for name in raw.keys("{rs:*") if raw.ttl(name) == -1]
    return {name.split(b"}")[0].split(b":")[1] for name in lasting}


def numbers(raw: Any, production: Production) -> set[bytes]:
    """The format numbers of production's partitions: 2 where there is a pin."""
    gen = gen_of(folder_at(production.checkpoint))
    return {raw.hget(name, "f") for name in raw.keys(f"{{rs:{gen}:*:m")}


@pytest.fixture(scope="module", params=["1", "2"])
def production(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Production]:
    """A query that no test changes."""
    with format_of(spark, request.param):
        yield Production(spark, tmp_path_factory.mktemp("production"))


def test_same_code_makes_no_difference(
    production: Production, shared_redis_server: RedisServer
) -> None:
    raw = shared_redis_server.client()
    before = gens(raw)
    for batch in (0, 2):
        with replay(
            production.spark,
            production.build(lambda amount: amount),
            batch=batch,
            checkpoint=production.checkpoint,
            url=shared_redis_server.url,
            production=f"{production.folder}/out/{batch}",
        ) as run:
            assert run.state.same
            assert [one.produced for one in run.state.stores] == [3]
            assert run.input_rows == 6
            assert run.output.count() == 3
            assert run.produced is not None
            assert run.produced.only_replayed.isEmpty()
            assert run.produced.only_produced.isEmpty()
    assert gens(raw) == before
    assert numbers(raw, production) == {b"1"}, "a pin is left"


@pytest.mark.compatibility("replay", "checkpoint format {production}")
def test_changed_code_shows_exactly_the_keys_that_it_changes(
    production: Production, shared_redis_server: RedisServer
) -> None:
    # Doubles amounts above 40: of batch 3 those of customers 2 (n = 5) and 1 (n = 4).
    changed = production.build(lambda amount: sf.when(amount > 40, amount * 2).otherwise(amount))
    with replay(
        production.spark,
        changed,
        batch=3,
        checkpoint=production.checkpoint,
        url=shared_redis_server.url,
        production=f"{production.folder}/out/3",
    ) as run:
        found = {one.key["customer"]: (one.produced, one.replayed) for one in run.state.keys}
        more = {name: sum(r.values()) - sum(p.values()) for name, (p, r) in found.items()}
        assert more == {"c1": 43, "c2": 53}
        assert run.produced is not None
        assert {row.customer for row in run.produced.only_replayed.collect()} == {"c1", "c2"}


@pytest.mark.parametrize("form", ["1", "2"])
def test_production_continues_as_before(
    spark: SparkSession, shared_redis_server: RedisServer, tmp_path: Path, form: str
) -> None:
    with format_of(spark, form):
        check_next_batch(Production(spark, tmp_path), shared_redis_server.url)


def check_next_batch(production: Production, url: str) -> None:
    """Replays the last batch, and checks that production's next one adds to its own state."""
    logs = Path(production.checkpoint, "commits")
    before = sorted(path.name for path in logs.iterdir())
    with replay(
        production.spark,
        production.build(lambda amount: -amount),
        batch=BATCHES - 1,
        checkpoint=production.checkpoint,
        url=url,
    ):
        assert sorted(path.name for path in logs.iterdir()) == before
    path = production.folder / "in" / "9.json"
    path.write_text(json.dumps({"customer": "c0", "amount": 1}))
    production.run(production.build(lambda amount: amount))
    rows = production.spark.read.parquet(f"{production.folder}/out/{BATCHES}").collect()
    # Customer 0 has n = 0 and n = 3 in each batch.
    assert [tuple(row) for row in rows] == [("c0", sum(30 + 2 * b for b in range(BATCHES)) + 1)]


def test_refusals_come_before_anything_is_made(
    production: Production, shared_redis_server: RedisServer
) -> None:
    raw = shared_redis_server.client()
    before = gens(raw)
    settings: dict[str, Any] = {
        "checkpoint": production.checkpoint,
        "url": shared_redis_server.url,
    }
    same = production.build(lambda amount: amount)
    with pytest.raises(UsageError, match="Choose one of the batches 0 to 4"):
        replay(production.spark, same, batch=BATCHES, **settings)
    file = production.folder / "in" / "2.json"
    aside = file.rename(production.folder / "2.json")
    try:
        with pytest.raises(NotFoundError, match=r"files that the batch read are gone: .*2\.json"):
            replay(production.spark, same, batch=2, **settings)
    finally:
        aside.rename(file)
    assert gens(raw) == before


def test_batch_that_fails_leaves_nothing_behind(
    production: Production, shared_redis_server: RedisServer
) -> None:
    raw = shared_redis_server.client()
    before = gens(raw)
    mistake = sf.raise_error(sf.lit("a mistake")).cast("long")
    wrong = production.build(lambda amount: mistake + amount)
    with pytest.raises(UsageError, match="the batch failed"):
        replay(
            production.spark,
            wrong,
            batch=1,
            checkpoint=production.checkpoint,
            url=shared_redis_server.url,
        )
    with pytest.raises(UsageError, match="not a DataStreamWriter"):
        replay(
            production.spark,
            lambda *_: None,
            batch=1,
            checkpoint=production.checkpoint,
            url=shared_redis_server.url,
        )
    assert gens(raw) == before
    assert numbers(raw, production) == {b"1"}, "a pin is left"


def test_code_files_that_do_not_build_a_query_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["replay", "--checkpoint", str(tmp_path), "--batch", "1", "--url", "redis://127.0.0.1"]
    for text, told in (
        (None, "there is no such file"),
        ("x = 1\n", "it has no function query"),
        ("import nothing_of_this_name\n", "it does not run: ModuleNotFoundError"),
        ("def query(:\n", "it does not run: SyntaxError"),
    ):
        code = tmp_path / "new.py"
        if text is not None:
            code.write_text(text)
        assert main([*words, "--code", str(code)]) != 0
        assert told in capsys.readouterr().err


def test_code_file_may_have_dataclasses_and_late_imports(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("VALUE = 7\n")
    code = tmp_path / "new.py"
    code.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Order:\n"
        "    amount: int\n"
        "def query(spark, replay):\n"
        "    from beside_it import VALUE\n"
        "    return Order(VALUE)\n"
    )
    made = function_in(str(code))(None, None)
    assert made.amount == 7
    # A worker that has no such module gets the class by value.
    by_value = cloudpickle.dumps(made)  # type: ignore[no-untyped-call]
    assert cloudpickle.loads(by_value).amount == 7
    assert type(made).__module__ not in sys.modules
