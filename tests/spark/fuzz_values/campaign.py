"""Many schemas by their seeds, through the ways in and out of each part."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

import redis_state
from redis_state.live import Reader
from redis_state.reader import OperatorInfo, OperatorState, Query
from tests.spark.fuzz_values import processors, stores
from tests.spark.fuzz_values.in_spark import keep_in_spark
from tests.spark.fuzz_values.literals import written
from tests.spark.fuzz_values.operators import (
    BATCHES,
    Trial,
    every_type,
    kinds_in,
    kinds_of,
    rows_in,
)
from tests.spark.fuzz_values.schemas import case_of
from tests.spark.fuzz_values.texts import settled
from tests.spark.fuzz_values.ways_out import Expected, Findings, Out
from tests.spark.streams import REDIS, ROCKSDB, Streams
from tests.support.exporting import check_round_trip

COMMAND = "python -m tests.spark.fuzz_values"
SCHEMAS = 2_000
SCHEMAS_OF_A_QUERY = 25
_TEXT: dict[str, Any] = (
    {"text": "surrogates"} if "text" in inspect.signature(Query.operator).parameters else {}
)
"""Texts that are not UTF-8 come as surrogates, which stand for their bytes."""


def groups(seeds: Sequence[int], count: int = SCHEMAS_OF_A_QUERY) -> Iterator[Sequence[int]]:
    """The seeds of each query."""
    for at in range(0, len(seeds), count):
        yield seeds[at : at + count]


def operators(streams: Streams, url: str, seeds: Sequence[int], *, moved: bool = False) -> Findings:
    """One query over the schemas of some seeds, on Spark's provider and on ours.

    Args:
        moved: Whether its state is moved to Spark's provider and back, too.
    """
    found = Findings()
    with every_type(streams.spark), tempfile.TemporaryDirectory() as folder:
        trial = Trial(Streams(streams.spark, Path(folder)), [case_of(seed) for seed in seeds])
        trial.run()
        with redis_state.connect(url) as reader:
            query = reader.query(trial.ids[REDIS])
            wanted = {
                (info.operator, info.store): _expected(trial, info, found)
                for info in query.operators()
            }
            for info in query.operators():
                out = _out(reader, query, info, wanted[info.operator, info.store])
                out.check()
                _data_source(trial, url, info, out)
                found.add(out.found)
            _tried(found, "export and import", lambda: _round_trip(url, query))
        if moved:
            _tried(found, "migrate there and back", lambda: _moved(trial, url, wanted))
    return _repeatable(found, "operators", seeds)


def forms(streams: Streams, url: str, seeds: Sequence[int]) -> Findings:
    """Queries over the types of some seeds, in the forms that `redis_state` has for them."""
    cases = [case_of(seed) for seed in seeds]
    found = Findings()
    with every_type(streams.spark):
        for form in ("columns", processors.FORMS[seeds[0] // len(seeds) % len(processors.FORMS)]):
            found.add(keep_in_spark(streams, cases, form, url))
    return _repeatable(found, "forms", seeds)


def objects(url: str, seeds: Sequence[int]) -> Findings:
    """Processors in each of their forms, state objects and Python stores."""
    cases = [case_of(seed) for seed in seeds]
    found = Findings()
    for form in ("objects", *processors.FORMS):
        found.add(processors.keep(cases, form, url))
    found.add(stores.state_objects(seeds))
    found.add(stores.python_store(seeds, url))
    return _repeatable(found, "objects", seeds)


def _repeatable(found: Findings, part: str, seeds: Sequence[int]) -> Findings:
    command = f"{COMMAND} --part {part} --seed {seeds[0]} --schemas {len(seeds)}"
    found.faults = [f"{fault}  [{command}]" for fault in found.faults]
    return found


def _tried(found: Findings, way: str, call: Callable[[], None]) -> None:
    with found.watching(way, "the whole query"):
        call()
        found.compared[way] += 1


def _state(trial: Trial, checkpoint: str, operator: int, store: str) -> DataFrame:
    reader = trial.spark.read.format("statestore").option("operatorId", operator)
    named = reader if store == "default" else reader.option("storeName", store)
    return named.load(checkpoint)


def _expected(trial: Trial, info: OperatorInfo, found: Findings) -> Expected:
    """Returns the result of Spark's state reader for Spark's provider; compares that for ours."""
    place = info.operator, info.store
    theirs = _state(trial, trial.checkpoint(ROCKSDB), *place)
    ours = _state(trial, trial.checkpoint(REDIS), *place)
    rows = rows_in(theirs, "key", "value")
    found.compared["statestore"] += len(rows)
    if rows_in(ours, "key", "value") != rows:
        found.fault("statestore", f"operator {place}", "other rows than with Spark's provider")
    keys, values = kinds_in(theirs, "key"), kinds_in(theirs, "value")
    shape = f"operator {info.operator} {info.store}"
    labels = [f"{shape}, {kind.ddl}" for kind in (*keys, *values)]
    return Expected(keys, values, rows, labels)  # type: ignore[arg-type]  # pairs of texts


def _out(reader: Reader, query: Query, info: OperatorInfo, expected: Expected) -> Out:
    table = query.info.id
    if info.operator or info.store != "default":
        table += f"_{info.operator}"
    if info.store != "default":
        table += "_" + info.store.replace("-", "_")
    state = query.operator(info.operator, info.store, **_TEXT)

    def narrowed(columns: list[str]) -> OperatorState:
        return query.operator(info.operator, info.store, columns=columns, **_TEXT)

    return Out(reader, state, expected, len(BATCHES), table, narrowed)


def _data_source(trial: Trial, url: str, info: OperatorInfo, out: Out) -> None:
    """The DataFrame of all rows, with the texts that Spark makes of its columns."""
    options: Mapping[str, Any] = {
        "url": url,
        "query": trial.ids[REDIS],
        "operator": info.operator,
        "store": info.store,
        "at": len(BATCHES) - 1,
    }
    with out.found.watching("data source", f"operator {info.operator} {info.store}"):
        source = trial.spark.read.format("redis_state").options(**options)
        every = source.load()
        # Columns that are not asked for are not parsed; a VARIANT comes as text, as in Arrow.
        places = [at for at in out.readable if not out.expected.kinds[at].has("variant")]
        if not places:
            return
        frame = source.schema(StructType([every.schema.fields[at] for at in places])).load()
        kinds = kinds_of(frame)
        named = frame.toDF(*(f"c{at}" for at in range(len(kinds))))
        columns = [written(kind, f"c{at}") for at, kind in enumerate(kinds)]
        texts = [tuple(map(settled, row)) for row in named.selectExpr(*columns).collect()]
        out.compare("data source", texts, places)


def _round_trip(url: str, query: Query) -> None:
    check_round_trip(url, query.info.gen, at=len(BATCHES) - 1)


def _moved(trial: Trial, url: str, wanted: Mapping[tuple[int, str], Expected]) -> None:
    """The state in Spark's provider, and again in ours, has the rows that it had."""
    there, back = (str(trial.streams.checkpoint(name)) for name in ("there", "back"))
    redis_state.migrate(trial.spark, trial.checkpoint(REDIS), there, to="rocksdb")
    redis_state.migrate(trial.spark, there, back, to=url)
    for (operator, store), expected in wanted.items():
        for checkpoint in (there, back):
            found = rows_in(_state(trial, checkpoint, operator, store), "key", "value")
            assert found == expected.rows, f"operator {operator} {store} of {Path(checkpoint).name}"
